"""Random parts of a run, equal for every policy: computations, and the rates of links."""

import numpy as np

from pace.solver.arrays import FloatArray
from pace_fabric.documents.scenario import MARGIN_S, FabricScenario
from pace_fabric.solver.capacity import Capacities


class Computations:
    """Durations of each worker's computations. The n-th of a worker is equal under every policy."""

    def __init__(self, scenario: FabricScenario) -> None:
        self._scenario = scenario
        self._random = [np.random.default_rng([scenario.seed, 1, w]) for w in range(scenario.num_workers)]

    def draw_s(self, worker: int) -> float:
        """Return the next computation's duration."""
        slow = self._scenario.straggling
        factor = slow.slowdown if self._random[worker].random() * 100 < slow.percent else 1.0
        return self._scenario.compute_s * factor


def draw_links(scenario: FabricScenario) -> Capacities:
    """Return every link over the run: machines first, then the server, then the replica."""
    random = np.random.default_rng([scenario.seed, 2])
    hosts = scenario.machines + 2
    num_steps = int(np.ceil((scenario.duration_s + MARGIN_S) / scenario.links.every_s))
    drawn = random.choice(scenario.links.bytes_per_s, p=scenario.links.shares, size=(num_steps, 2 * hosts))
    if not scenario.server_varies:
        drawn[:, 2 * scenario.machines :] = scenario.server_bytes_per_s
    links = []
    for link in range(2 * hosts):
        steps: list[tuple[float, float]] = []
        for number, rate in enumerate(drawn[:, link].tolist()):
            if not steps or steps[-1][1] != rate:
                steps.append((number * scenario.links.every_s, rate))
        links.append(steps)
    return Capacities.of_steps(links)


def rates_at(links: Capacities, at_s: float) -> FloatArray:
    """Return the rate of every link at a moment."""
    from pace_fabric.solver.kernels.capacity import rates_at as kernel

    rates = np.empty(len(links.counts))
    kernel(links.times, links.rates, links.counts, max(at_s, 0.0), rates)
    return rates
