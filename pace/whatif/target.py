"""Which bandwidth a wanted scaling efficiency takes: a root search on the simulator."""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.simulation import make_policy, run_policy
from pace.whatif.grid import AXES, Grid
from pace.whatif.results import Answer
from pace.whatif.scenario import Scenario, TwoLevel, computed_at, networked_at

LEAST_GBPS, MOST_GBPS = 1e-3, 1e5
BRACKETS = 33
TOLERANCE = 1e-4


def bandwidth_for(
    profile: Profile,
    policy: str,
    target_efficiency: float,
    scenario: Scenario | None = None,
    two_level: TwoLevel | None = None,
) -> float | None:
    """Return the least bandwidth in Gb/s at which `policy` reaches a scaling efficiency.

    A policy's efficiency need not rise steadily with bandwidth, because what it fuses changes with it; the
    search looks at 33 bandwidths between 1 Mb/s and 100 Tb/s and bisects where the target is first passed, to
    a relative error of 1e-4.

    Returns
    -------
    float or None
        Gbit/s; None if latency alone, or what the policy does not hide, keeps it below at any bandwidth.

    Raises
    ------
    InvalidOptions
        If the target is not in (0, 1], the policy unknown, or the profile cannot answer.
    """
    if not 0 < target_efficiency <= 1:
        raise InvalidOptions(f"target_efficiency is {target_efficiency}: expected over 0, at most 1")
    chosen = make_policy(policy)
    base = computed_at(profile, scenario or Scenario())
    fixed = {axis: getattr(scenario, axis) for axis in AXES if axis != "bandwidth_gbps"} if scenario else {}

    def excess(log_gbps: float) -> float:
        at = Scenario(**fixed, bandwidth_gbps=float(np.exp(log_gbps)))
        point = networked_at(base, at, two_level)
        window = run_policy(point, chosen).iteration_s
        return point.timing.compute_s / window - target_efficiency if window else 1.0 - target_efficiency

    grid = np.linspace(np.log(LEAST_GBPS), np.log(MOST_GBPS), BRACKETS).tolist()
    below = grid[0]
    if excess(below) >= 0:
        return LEAST_GBPS
    for upper in grid[1:]:
        if excess(upper) >= 0:
            return float(np.exp(_first_passed(excess, below, upper)))
        below = upper
    return None


def _first_passed(excess: Callable[[float], float], below: float, above: float) -> float:
    # Efficiency jumps where a policy fuses differently: bisection keeps a side that reaches the target, which
    # faster root searches do not promise.
    while above - below > TOLERANCE:
        middle = (below + above) / 2
        if excess(middle) >= 0:
            above = middle
        else:
            below = middle
    return above


def answer_all(profile: Profile, grid: Grid, target_efficiency: float) -> tuple[Answer, ...]:
    """Return the bandwidth for every point of the grid's other axes and every policy."""
    first = grid.bandwidth_gbps[:1] or (None,)
    rest = [scenario for scenario in grid.scenarios() if scenario.bandwidth_gbps == first[0]]
    return tuple(
        Answer(
            **asdict(scenario)
            | {"bandwidth_gbps": bandwidth_for(profile, policy, target_efficiency, scenario, grid.two_level)},
            policy=policy,
            target_efficiency=target_efficiency,
        )
        for scenario in rest
        for policy in grid.policies
    )
