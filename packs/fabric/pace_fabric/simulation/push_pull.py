"""Servers without a plan: every worker pushes when it is ready, and transfers share the links.

They differ in when the server commits what it receives, and in when a worker may begin again.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.draws import Computations, draw_links, rates_at
from pace_fabric.simulation.records import CommitRecord, FabricRun
from pace_fabric.solver.capacity import Capacities


@dataclass(frozen=True, slots=True)
class Arrival:
    """A transfer that has ended, with what was said of it when it began."""

    at_s: float
    source: int
    target: int
    label: tuple[str, int, int]


class FairNetwork:
    """A network whose transfers share every link fairly.

    Parameters
    ----------
    links
        Rates over the whole run.
    """

    def __init__(self, links: Capacities) -> None:
        self.links = links
        self.now = 0.0
        used = np.arange(links.times.shape[1]) < links.counts[:, None]
        self._changes = np.unique(links.times[used])
        self._source = np.empty(0, dtype=np.int64)
        self._target = np.empty(0, dtype=np.int64)
        self._left = np.empty(0)
        self._labels: list[tuple[str, int, int]] = []
        self._rates = np.empty(0)
        self._stale = True

    def start(self, source: int, target: int, size_bytes: float, label: tuple[str, int, int]) -> None:
        """Begin a transfer now."""
        self._source = np.append(self._source, source)
        self._target = np.append(self._target, target)
        self._left = np.append(self._left, size_bytes)
        self._labels.append(label)
        self._stale = True

    def next_end_s(self) -> float:
        """Return when the next transfer ends if nothing else begins; infinity without any."""
        if not self._labels:
            return np.inf
        at = self.now
        left = self._left.copy()
        while True:
            rates = self._rates_now() if at == self.now else self._fair(rates_at(self.links, at))
            change = self._next_change(at)
            with np.errstate(divide="ignore"):
                first = float((left / rates).min())
            if at + first <= change:
                return at + first
            if change == np.inf:
                return np.inf
            left = left - rates * (change - at)
            at = change

    def advance(self, to_s: float) -> list[Arrival]:
        """Let time pass until `to_s`; return the transfers that end exactly then or before."""
        while self._labels and self.now < to_s:
            until = min(to_s, self._next_change(self.now))
            self._left = self._left - self._rates_now() * (until - self.now)
            if until == self._next_change(self.now):
                self._stale = True
            self.now = until
        self.now = to_s
        done = (
            self._left <= 1e-6 * np.maximum(self._rates_now(), 1.0)
            if self._labels
            else np.empty(0, dtype=bool)
        )
        arrivals = [
            Arrival(to_s, int(self._source[i]), int(self._target[i]), self._labels[i])
            for i in np.flatnonzero(done).tolist()
        ]
        if arrivals:
            self._source, self._target = self._source[~done], self._target[~done]
            self._left = self._left[~done]
            self._labels = [label for label, ended in zip(self._labels, done, strict=True) if not ended]
            self._stale = True
        return arrivals

    def _next_change(self, at: float) -> float:
        place = int(np.searchsorted(self._changes, at, side="right"))
        return float(self._changes[place]) if place < len(self._changes) else np.inf

    def _rates_now(self) -> FloatArray:
        if self._stale:
            self._rates = self._fair(rates_at(self.links, self.now))
            self._stale = False
        return self._rates

    def _fair(self, capacity: FloatArray) -> FloatArray:
        return fair_rates(self._source, self._target, capacity)


def fair_rates(source: IntArray, target: IntArray, capacity: FloatArray) -> FloatArray:
    """Return max-min fair rates of transfers, by filling all up together until a link is full."""
    from pace.solver.kernels.max_min import share

    rates, links, users = np.zeros(len(source)), len(capacity), np.empty(len(capacity), dtype=np.int64)
    up, down, alike = 2 * source, 2 * target + 1, np.ones(len(source))
    share(up, down, len(source), capacity, alike, np.empty(links), users, np.empty(links), rates)
    return rates


PushPullPolicy = Literal["async", "chain", "ssp", "fedbuff", "quorum"]


@dataclass(frozen=True, slots=True)
class _Received:
    worker: int
    from_version: int
    at_s: float


class _Server:
    """State of one simulated run of a policy."""

    def __init__(self, scenario: FabricScenario, policy: PushPullPolicy) -> None:
        self.scenario = scenario
        self.policy = policy
        self.run = FabricRun(policy=policy, duration_s=scenario.duration_s, num_workers=scenario.num_workers)
        self.network = FairNetwork(draw_links(scenario))
        self.compute = Computations(scenario)
        self.server = scenario.machines
        # The server that commits and answers: with a chain, the second one.
        self.answering = self.server + (policy == "chain")
        self.version = 0
        self.clock = [0] * scenario.num_workers
        self.computing: list[tuple[float, int, int]] = []
        self.buffer: list[_Received] = []
        self.waiting: list[int] = []  # workers that may not begin yet
        self.close_s = float("inf")  # when a quorum's grace ends

    def simulate(self) -> FabricRun:
        for worker in range(self.scenario.num_workers):
            heapq.heappush(self.computing, (self.compute.draw_s(worker), worker, 0))
        while True:
            now = min(
                self.network.next_end_s(),
                self.computing[0][0] if self.computing else float("inf"),
                self.close_s,
            )
            if now > self.scenario.duration_s:
                return self.run
            arrivals = self.network.advance(now)
            while self.computing and self.computing[0][0] <= now:
                _, worker, version = heapq.heappop(self.computing)
                self.run.computed += 1
                self._send(self._machine(worker), self.server, ("push", worker, version))
            for arrival in arrivals:
                self._arrived(arrival)
            if now >= self.close_s:
                self._commit_round(now)

    def _machine(self, worker: int) -> int:
        return worker // self.scenario.workers_per_machine

    def _send(self, source: int, target: int, label: tuple[str, int, int]) -> None:
        self.run.messages += label[0] == "push"
        self.network.start(source, target, float(self.scenario.update_bytes), label)

    def _arrived(self, arrival: Arrival) -> None:
        kind, worker, version = arrival.label
        if kind == "pull":
            heapq.heappush(self.computing, (arrival.at_s + self.compute.draw_s(worker), worker, version))
            return
        if kind == "push":
            self.run.server_bytes += self.scenario.update_bytes
            if self.policy == "chain":
                self._send(self.server, self.answering, ("copy", worker, version))
                return
        else:
            self.run.replica_bytes += self.scenario.update_bytes
        self.clock[worker] += 1
        self.buffer.append(_Received(worker, version, arrival.at_s))
        if self.policy == "quorum":
            self.waiting.append(worker)
            if len(self.buffer) == min(self.scenario.quorum, self.scenario.num_workers):
                self.close_s = arrival.at_s + self.scenario.grace_s
            return
        if self.policy != "fedbuff" or len(self.buffer) >= self.scenario.buffer:
            self._commit_all(arrival.at_s)
        self.waiting.append(worker)
        self._begin(self._allowed())

    def _allowed(self) -> list[int]:
        if self.policy != "ssp":
            return list(self.waiting)
        slowest = min(self.clock)
        return [worker for worker in self.waiting if self.clock[worker] - slowest <= self.scenario.staleness]

    def _begin(self, workers: Iterable[int]) -> None:
        for worker in workers:
            self.waiting.remove(worker)
            self._send(self.answering, self._machine(worker), ("pull", worker, self.version))

    def _commit_round(self, now: float) -> None:
        self._commit_all(now)
        self.run.rounds_s.append(now)
        self.close_s = float("inf")
        self._begin(list(self.waiting))

    def _commit_all(self, now: float) -> None:
        together = self.policy in ("fedbuff", "quorum")
        before = self.version
        for received in self.buffer:
            self.run.commits.append(
                CommitRecord(
                    worker=received.worker,
                    version=before if together else self.version,
                    from_version=received.from_version,
                    num_updates=1,
                    planned_s=received.at_s,
                    at_s=now,
                )
            )
            self.version += 1
        self.buffer.clear()


def simulate_push_pull(scenario: FabricScenario, policy: PushPullPolicy) -> FabricRun:
    """Simulate one of the policies without a plan.

    ``async`` commits on arrival; ``chain`` when the update has passed on to a second server, which answers;
    ``ssp`` on arrival, and a worker is at most `staleness` clocks ahead of the slowest; ``fedbuff`` commits
    `buffer` updates together; ``quorum`` waits for so many, then for `grace_s` more.
    """
    return _Server(scenario, policy).simulate()
