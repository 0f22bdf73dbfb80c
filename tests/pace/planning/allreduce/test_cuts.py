"""Where groups are cut: against all groups, cuts and orders of small profiles."""

from collections.abc import Iterator

import numpy as np
import pytest

from pace import Gradient, Op, Options, Profile, check, optimize
from pace.documents.collective_costs import AllReduce, SampledAllReduce
from pace.documents.load import NO_LOAD
from pace.planning.fusion.choice import TIE
from pace.planning.fusion.problem import FusionProblem
from pace.solver.cost_curve import CostCurve
from tests.strategies import affine, set_partitions

GRAIN = 16
# Plans that are this much slower than the fastest one are found.
MOST = 5e-3
MOST_UNDER_LOAD = 0.0125


def is_feasible(problem: FusionProblem, window_s: float) -> bool:
    """Return whether any groups, cut at multiples of 16 bytes and sent in any order, keep to the window.

    Of each state, the bytes that are left of each group, only the earliest end counts.
    """
    if window_s < problem.compute_s:
        return False
    for partition in set_partitions(range(len(problem.sizes))):
        if any(len({int(problem.dtypes[number]) for number in group}) > 1 for group in partition):
            continue
        ready = [max(float(problem.ready[number]) for number in group) for group in partition]
        tail = [max(float(problem.tail[number]) for number in group) for group in partition]
        sizes = tuple(sum(int(problem.sizes[number]) for number in group) for group in partition)
        earliest = {sizes: 0.0}
        for state in sorted(_states(sizes), key=sum, reverse=True):
            if state not in earliest:
                continue
            for group, left in enumerate(state):
                for after in range(left - GRAIN, -GRAIN, -GRAIN) if left else ():
                    rest = max(after, 0)
                    rest += -rest % GRAIN if rest and (sizes[group] - rest) % GRAIN else 0
                    start = max(earliest[state], ready[group])
                    end = start + _price(problem.cost, left - rest)
                    if end + (0.0 if rest else tail[group]) > window_s:
                        continue
                    following = (*state[:group], rest, *state[group + 1 :])
                    earliest[following] = min(end, earliest.get(following, np.inf))
        if tuple(0 for _ in sizes) in earliest:
            return True
    return False


def _states(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for left in {0, *range(sizes[0], 0, -GRAIN)}:
        for rest in _states(sizes[1:]):
            yield (left, *rest)


def _price(cost: CostCurve, size_bytes: int) -> float:
    return float(cost(size_bytes))


def drawn(seed: int, kind: str) -> Profile:
    """Return up to three gradients, with communication 0.3 to 2 times as long as compute."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 4))
    seconds = [float(random.exponential()) if random.random() < 0.85 else 0.0 for _ in range(2 * count)]
    stream = None if kind == "branches" else "compute"
    sizes = [GRAIN * int(random.integers(1, 6 if kind != "jump" else 12)) for _ in range(count)]
    compute_s, total = sum(seconds) or 1.0, sum(sizes)
    latency_s = float(random.choice([0.0, 0.01, 0.05, 0.2])) * compute_s
    per_byte_s = float(random.uniform(0.3, 2)) * compute_s / total
    allreduce: AllReduce = affine(latency_s, per_byte_s)
    if kind == "jump":
        at = [GRAIN * (1 + number) for number in range(total // GRAIN)]
        steps = [GRAIN * per_byte_s * float(random.choice([0.1, 0.3, 1, 4])) for _ in at]
        allreduce = SampledAllReduce(
            samples=tuple(zip(at, (latency_s + np.cumsum(steps)).tolist(), strict=True))
        )
    return Profile(
        name=kind,
        workers=2,
        ops=(
            *(Op(name=f"bwd/{at}", duration_s=seconds[at], stream=stream) for at in range(count)),
            *(
                Op(name=f"fwd/{at}", duration_s=seconds[count + at], stream=stream, waits_for=(f"g{at}",))
                for at in reversed(range(count))
            ),
        ),
        gradients=tuple(
            Gradient(
                name=f"g{at}",
                size_bytes=size,
                producer=f"bwd/{at}",
                dtype="float16" if kind == "branches" and random.random() < 0.3 else "float32",
            )
            for at, size in enumerate(sizes)
        ),
        allreduce=allreduce,
        load=NO_LOAD,
    )


@pytest.mark.parametrize("kind", ["layered", "branches", "jump"])
def test_no_plan_of_small_profiles_is_faster(kind: str) -> None:
    """30 random profiles of each kind, against all groups, cuts and orders."""
    for seed in range(30):
        profile = drawn(seed, kind)
        schedule = optimize(profile)
        window_s = schedule.predicted.iteration_s
        assert check(profile, schedule) == []
        assert not is_feasible(FusionProblem.of(profile), window_s * (1 - MOST)), seed


@pytest.mark.parametrize("kind", ["layered", "branches", "jump"])
def test_no_restriction_makes_a_plan_faster(kind: str) -> None:
    """Neither smaller segments nor smaller groups."""
    for seed in range(8):
        profile = drawn(100 + seed, kind)
        iteration_s = optimize(profile).predicted.iteration_s
        for limit in (16, 48, 96):
            for chosen in (Options(max_segment_bytes=limit), Options(max_group_bytes=limit)):
                assert iteration_s <= optimize(profile, chosen).predicted.iteration_s * (1 + 2 * TIE), seed


def _network(seed: int) -> Profile:
    """Return 20 to 60 layers of very different sizes; communication takes 0.5 to 1.3 times the compute."""
    random = np.random.default_rng(seed)
    count = int(random.integers(20, 60))
    forward_s = random.exponential(size=count) + 0.05
    forward_s *= 0.033 / forward_s.sum()
    sizes = [GRAIN * int(10 ** random.uniform(2, 6.5)) for _ in range(count)]
    per_byte_s = float(random.uniform(0.5, 1.3)) * 0.1 / sum(sizes)
    return Profile(
        name="network",
        workers=4,
        ops=(
            *(
                Op(name=f"bwd/{at}", duration_s=2 * float(forward_s[at]), stream="compute")
                for at in range(count)
            ),
            *(
                Op(name=f"fwd/{at}", duration_s=float(forward_s[at]), stream="compute", waits_for=(f"g{at}",))
                for at in reversed(range(count))
            ),
        ),
        gradients=tuple(
            Gradient(name=f"g{at}", size_bytes=size, producer=f"bwd/{at}") for at, size in enumerate(sizes)
        ),
        allreduce=affine(float(10 ** random.uniform(-5, -3.5)), per_byte_s),
    )


def test_no_restriction_makes_the_plan_of_a_network_much_faster() -> None:
    """Under load, where groups are searched at random: a restricted search may find better ones."""
    for seed in (13, 17, 21, 25):
        profile = _network(seed)
        expected_s = optimize(profile).predicted.expected_s
        total = sum(gradient.size_bytes for gradient in profile.gradients)
        assert expected_s is not None
        for share in (0.05, 0.1, 0.2, 0.4):
            for chosen in (
                Options(max_segment_bytes=int(share * total)),
                Options(max_group_bytes=int(share * total)),
            ):
                restricted_s = optimize(profile, chosen).predicted.expected_s
                assert restricted_s is not None
                assert expected_s <= restricted_s * (1 + MOST_UNDER_LOAD), (seed, chosen)
