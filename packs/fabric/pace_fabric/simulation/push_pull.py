"""Servers without a plan: every worker pushes when it is ready, and transfers share the links.

They differ in when the server commits what it receives, and in when a worker may begin again.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.draws import Computations, draw_links
from pace_fabric.simulation.fluid import Arrival, FairNetwork
from pace_fabric.simulation.records import CommitRecord, FabricRun

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
