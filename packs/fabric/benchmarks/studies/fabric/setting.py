"""The paper's networks and computations, five times as slow, on the testbed's hosts; and the changing links.

Links of 10 Gb/s become 100 Mb/s and updates of 100 MB become 5 MB, so that transfers last five times as long,
and so do computations, ticks and the time between two draws. Links are shaped so that their payload has the
stated rate.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.network.hosts import Host, reshape
from benchmarks.harness.network.rates import PAYLOAD
from benchmarks.studies.papers.mlfabric import COMPUTE, NETWORKS, RATES
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.draws import Computations, draw_links, rates_at

SLOWER = 5.0
LAG_S = 0.2 * SLOWER
FULL_BYTES_PER_S = 12.5e6

# Besides the paper's: links that are all as fast and do not change, and computations without stragglers.
_SHARES = NETWORKS | {"even": (0.0,) * (len(RATES) - 1) + (1.0,)}
_STRAGGLING = COMPUTE | {"equal": (0.0, 1.0)}


def scenario_of(
    network: str, compute: str, *, machines: int, megabytes: float, seconds: float, seed: int, flows: int
) -> FabricScenario:
    """Return what is run and simulated: two workers on each host, summed first where there is a choice.

    Raises
    ------
    ValueError
        If there is no network or no computation of this name.
    """
    for kind, name, known in (("network", network, _SHARES), ("computation", compute, _STRAGGLING)):
        if name not in known:
            raise ValueError(f'{kind} "{name}": expected one of {", ".join(known)}')
    percent, slowdown = _STRAGGLING[compute]
    scale = megabytes / 5.0
    return FabricScenario.model_validate(
        {
            "name": f"{network} {compute}",
            "machines": machines,
            "workers_per_machine": 2,
            "sum_hosts": True,
            "update_bytes": round(megabytes * 1e6) // 4 * 4,
            "compute_s": 0.1 * SLOWER * scale,
            "straggling": {"percent": percent, "slowdown": slowdown},
            "links": {
                "bytes_per_s": tuple(rate / 100 for rate in RATES),
                "shares": tuple(_SHARES[network]),
                "every_s": 5.0 * SLOWER * scale,
            },
            "server_bytes_per_s": FULL_BYTES_PER_S,
            "delay_bound": 2 * machines,
            "tick_s": 0.1 * SLOWER * scale,
            "lag_s": LAG_S * scale,
            "flows": flows,
            "duration_s": seconds,
            "seed": seed,
        }
    )


def host_computations(scenario: FabricScenario, machine: int) -> "HostComputations":
    """Return the durations of a host's computations, which last as long as its slowest worker's."""
    share = scenario.workers_per_machine
    return HostComputations(Computations(scenario), range(machine * share, (machine + 1) * share))


@dataclass(frozen=True, slots=True)
class HostComputations:
    """Durations, one after the other."""

    drawn: Computations
    workers: range

    def draw_s(self) -> float:
        """Return the next one."""
        return max(self.drawn.draw_s(worker) for worker in self.workers)


def payload_mbit_s(bytes_per_s: float) -> float:
    """Return how a link is shaped that is to carry so much payload."""
    return bytes_per_s * 8 / 1e6 / PAYLOAD


class ChangingLinks:
    """Shapes the machines' links as they were drawn, from a moment on; the others stay as they are.

    Parameters
    ----------
    on
        The hosts of the scenario's machines, in order.
    """

    def __init__(self, scenario: FabricScenario, on: Sequence[Host]) -> None:
        self._scenario, self._on = scenario, list(on)
        self._links = draw_links(scenario)
        self._shaped: dict[str, tuple[float, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began_s = 0.0

    def shape(self, at_s: float) -> None:
        """Shape all links as they are at a moment of the run."""
        rates = rates_at(self._links, at_s)
        for machine, host in enumerate(self._on):
            wanted = (float(rates[2 * machine]), float(rates[2 * machine + 1]))
            if self._shaped.get(host.name) != wanted:
                up, down = (payload_mbit_s(rate) for rate in wanted)
                reshape(host, up_mbit_s=up, down_mbit_s=down)
                self._shaped[host.name] = wanted

    def start(self, began_s: float) -> None:
        """Change links from now on; the run begins at `began_s` of the monotonic clock."""
        self._began_s = began_s
        self._thread.start()

    def stop(self) -> None:
        """Change nothing any longer."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        every, number = self._scenario.links.every_s, 1
        while not self._over.wait(max(self._began_s + number * every - time.monotonic(), 0.0)):
            self.shape(number * every + 1e-6)
            number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Result of one contender.

    Attributes
    ----------
    commits
        Seconds since the start, and how many workers' updates were committed then.
    facts
        What else its logs say.
    """

    commits: list[tuple[float, int]]
    facts: dict[str, Any] = field(default_factory=dict)

    def iteration_s(self, num_workers: int) -> float | None:
        """Return the seconds for as many commits as there are workers; None if there was no commit."""
        updates = sum(number for _, number in self.commits)
        return num_workers * max(at for at, _ in self.commits) / updates if updates else None


def sleep_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
