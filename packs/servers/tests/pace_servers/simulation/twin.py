"""The simulator's twin: workers, connections and servers as SimPy processes, links filled up together.

Shares with the simulator the partitions, priorities and rules that a policy decided, and op durations. When
ops run, what is handed over, which message a connection takes, what a sum waits for and how links are
shared is worked out again. What happens at one moment is settled in the order of kind, worker and number.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import simpy

from pace import Profile
from pace.documents.cluster import Cluster
from pace_servers.simulation.traffic import ServersTraffic
from tests.pace.simulation.twin import Settled

Process = Generator[simpy.Event, Any, None]
OP_ENDS, ARRIVES, CREDIT = 0, 1, 2


def fair_rates(flows: list[tuple[str, str]], capacity: dict[str, float], most: float) -> list[float]:
    """Raise all rates together; a flow stops rising when one of its links is full, or at `most`."""
    rates = [0.0] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        step = min(most - rates[flow] for flow in rising)
        for link, limit in capacity.items():
            on_it = sum(link in flows[flow] for flow in rising)
            if on_it:
                used = sum(rate for rate, flow in zip(rates, flows, strict=True) if link in flow)
                step = min(step, (limit - used) / on_it)
        for flow in rising:
            rates[flow] += max(step, 0.0)
        full = {
            link
            for link, limit in capacity.items()
            if sum(rate for rate, flow in zip(rates, flows, strict=True) if link in flow)
            >= limit * (1 - 1e-9)
        }
        rising = {flow for flow in rising if not full & set(flows[flow]) and rates[flow] < most * (1 - 1e-9)}
    return rates


@dataclass
class Message:
    """A push or a pull under way."""

    pull: bool
    worker: int
    part: int
    left: float
    rate: float = 0.0


class Twin:
    """All windows of all workers."""

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        traffic: ServersTraffic,
        durations: Any,
        staleness: float,
        works: tuple[list[float], list[float]],
    ) -> None:
        self.env = simpy.Environment()
        self.profile, self.traffic, self.rules = profile, traffic, traffic.rules
        self.exchange = cluster.exchange
        self.durations, self.staleness = durations, staleness
        self.windows, self.workers = len(durations), profile.workers
        self.parts = range(len(traffic.server))
        self.push_work, self.pull_work = works
        self.ends: dict[tuple[int, int], float] = {}
        self.times: dict[tuple[int, int, int], list[float]] = {}
        self.pending: list[tuple[int, int, int, Callable[[], None]]] = []
        self.settling = False
        self.messages: list[Message] = []
        self.since = 0.0
        self.wake = self.env.event()
        self.sequence = 0
        self.window = [0] * self.workers
        self.wanting: dict[tuple[int, int], list[tuple[float, int]]] = {}
        self.handed: dict[tuple[int, int], list[int]] = {}
        self.answering: dict[tuple[int, int], list[tuple[float, int]]] = {}
        self.flying: dict[tuple[int, ...], list[int]] = {}
        self.pushed = [[0] * len(self.parts) for _ in range(self.workers)]
        self.asked: set[tuple[int, int]] = set()
        self.pushed_over: dict[tuple[int, int], int] = {}
        self.pulled_over: dict[tuple[int, int], int] = {}
        self.arrived: list[dict[int, simpy.Event]] = []
        rate = self.exchange.worker_bytes_per_s
        self.capacity = {f"{way} {host}": rate for way in ("up", "down") for host in range(self.workers)}
        if not self.exchange.colocated:
            at_server = self.exchange.server_bytes_per_s or rate
            self.capacity |= {
                f"{way} {at}": at_server for way in ("in", "out") for at in range(self.exchange.servers)
            }
        pace = min(rate / self.exchange.servers, (self.exchange.server_bytes_per_s or rate) / self.workers)
        self.most = pace if self.rules.paced else inf
        self.window_done = [self.env.event() for _ in range(self.workers)]
        for worker in range(self.workers):
            self.env.process(self.train(worker))
        self.env.process(self.carry())
        self.env.run()

    def later(self, delay: float, kind: int, worker: int, what: int, action: Callable[[], None]) -> None:
        """Settle an action after a delay, in the order of kind, worker and number among its moment's."""

        def wait() -> Process:
            yield self.env.timeout(delay)
            self.pending.append((kind, worker, what, action))
            if not self.settling:
                self.settling = True
                self.env.process(self.settle())

        self.env.process(wait())

    def settle(self) -> Process:
        """Carry out what is pending until this moment has nothing left, then hand over and send."""
        yield Settled(self.env)
        while self.pending:
            self.pending.sort(key=lambda entry: entry[:3])
            _, _, _, action = self.pending.pop(0)
            action()
        self.settling = False
        self.hand_over()
        self.start()

    def train(self, worker: int) -> Process:
        """Run one window after another."""
        for window in range(self.windows):
            self.window[worker] = window
            ended = {op.name: self.env.event() for op in self.profile.ops}
            missing = {at: len(group) for at, group in enumerate(self.traffic.groups)}
            pulled = {part: self.env.event() for part in self.parts}
            self.arrived = self.arrived or [{} for _ in range(self.workers)]
            self.arrived[worker] = pulled
            for number in range(len(self.profile.ops)):
                self.env.process(self.run_op(worker, window, number, ended, missing, pulled))
            yield self.env.all_of([*ended.values(), *pulled.values()])
            self.ends[window, worker] = self.env.now

    def run_op(
        self,
        worker: int,
        window: int,
        number: int,
        ended: dict[str, simpy.Event],
        missing: dict[int, int],
        pulled: dict[int, simpy.Event],
    ) -> Process:
        """Wait for what an op needs, run it, and release the groups that it completes."""
        op = self.profile.ops[number]
        yield self.env.all_of([ended[name] for name in op.deps])
        neighbors = [other for other in self.profile.ops[:number] if other.stream == op.stream]
        if op.stream is not None and neighbors:
            yield ended[neighbors[-1].name]
        if op.waits_for:
            behind_all = self.rules.barrier or self.profile.update == "global-norm"
            names = [g.name for g in self.profile.gradients] if behind_all else list(op.waits_for)
            index = {gradient.name: at for at, gradient in enumerate(self.profile.gradients)}
            wanted = {index[name] for name in names}
            yield self.env.all_of(
                [
                    pulled[part]
                    for part in self.parts
                    if wanted & set(self.traffic.groups[int(self.traffic.part_groups[part])])
                ]
            )
            carried = {gradient for group in self.traffic.groups for gradient in group}
            yield self.env.all_of(
                [ended[self.profile.gradients[g].producer] for g in wanted if g not in carried]
            )

        def end() -> None:
            for at, group in enumerate(self.traffic.groups):
                made = sum(self.profile.gradients[gradient].producer == op.name for gradient in group)
                missing[at] -= made
                if made and missing[at] == 0:
                    for part in self.parts:
                        if self.traffic.part_groups[part] == at:
                            self.want(worker, part)
            ended[op.name].succeed()

        self.later(float(self.durations[window][worker][number]), OP_ENDS, worker, number, end)

    def want(self, worker: int, part: int) -> None:
        """Queue a push at its connection."""
        key = float(self.traffic.push_priority[part])
        key = -inf if isnan(key) else key
        if self.rules.arrival_pushes:
            key = self.sequence
            self.sequence += 1
        self.wanting.setdefault((worker, int(self.traffic.server[part])), []).append((key, part))

    def before(self, part: int, priority: Any) -> int:
        """Count the partitions of strictly smaller priority on the same server."""
        server = self.traffic.server[part]
        return sum(
            bool(self.traffic.server[other] == server and priority[other] < priority[part])
            for other in self.parts
        )

    def ranked(self, server: int, priority: Any) -> int:
        """Count a server's partitions that have a priority."""
        return sum(
            bool(self.traffic.server[part] == server and not isnan(priority[part])) for part in self.parts
        )

    def hand_over(self) -> None:
        """Let every worker hand over what its credit admits, best first."""
        rules = self.rules
        for worker in range(self.workers):
            while True:
                candidates = []
                for (owner, server), queue in self.wanting.items():
                    if owner != worker or not queue:
                        continue
                    key, part = min(queue)
                    if rules.push_in_order and not isnan(self.traffic.push_priority[part]):
                        on_it = self.ranked(server, self.traffic.push_priority)
                        gate = self.before(part, self.traffic.push_priority) + self.window[worker] * on_it
                        if self.pushed_over.get((worker, server), 0) < gate:
                            continue
                    if rules.per_connection and not self.admits((worker, server), part):
                        continue
                    candidates.append((key, part, server))
                if not candidates:
                    break
                key, part, server = min(candidates)
                if not rules.per_connection and not self.admits((worker,), part):
                    break
                self.wanting[worker, server].remove((key, part))
                purse = (worker, server) if rules.per_connection else (worker,)
                self.flying.setdefault(purse, []).append(part)
                self.handed.setdefault((worker, server), []).append(part)
                self.sequence += 1
                if not isnan(self.traffic.push_priority[part]):
                    self.pushed_over[worker, server] = self.pushed_over.get((worker, server), 0) + 1

    def admits(self, purse: tuple[int, ...], part: int) -> bool:
        """Say whether the credit admits a partition."""
        flying = self.flying.get(purse, [])
        if not flying:
            return True
        total = sum(int(self.traffic.sizes[other]) for other in flying)
        if self.rules.overshoots:
            return total < self.rules.credit_bytes
        return total + int(self.traffic.sizes[part]) <= self.rules.credit_bytes

    def start(self) -> None:
        """Give every free stream of a connection its next message."""
        self.progress()
        for (worker, server), queue in self.handed.items():
            while queue and self.busy(False, worker, server) < self.rules.streams:
                part = queue.pop(0)
                self.times[self.window[worker], worker, part] = [self.env.now]
                self.send(Message(False, worker, part, self.push_work[part]), server)
        for (worker, server), waiting in self.answering.items():
            while waiting and self.busy(True, worker, server) < self.rules.streams:
                key, part = min(waiting)
                if self.rules.pull_in_order and not isnan(self.traffic.pull_priority[part]):
                    on_it = self.ranked(server, self.traffic.pull_priority)
                    earlier = (self.pushed[worker][part] - 1) * on_it
                    gate = self.before(part, self.traffic.pull_priority) + earlier
                    if self.pulled_over.get((worker, server), 0) < gate:
                        break
                if not isnan(self.traffic.pull_priority[part]):
                    self.pulled_over[worker, server] = self.pulled_over.get((worker, server), 0) + 1
                waiting.remove((key, part))
                self.times[self.window[worker], worker, part].append(self.env.now)
                self.send(Message(True, worker, part, self.pull_work[part]), server)
        self.share()

    def busy(self, pull: bool, worker: int, server: int) -> int:
        """Count a connection's messages under way."""
        return sum(
            m.pull == pull and m.worker == worker and self.traffic.server[m.part] == server
            for m in self.messages
        )

    def send(self, message: Message, server: int) -> None:
        """Put a message on its links; on the worker's own host it arrives at once."""
        if message.left == 0 or (self.exchange.colocated and message.worker == server):
            self.end(message, at_once=True)
        else:
            self.messages.append(message)

    def links(self, message: Message) -> tuple[str, str]:
        """Name the two links that a message crosses."""
        server = int(self.traffic.server[message.part])
        if message.pull:
            far = f"up {server}" if self.exchange.colocated else f"out {server}"
            return far, f"down {message.worker}"
        far = f"down {server}" if self.exchange.colocated else f"in {server}"
        return f"up {message.worker}", far

    def progress(self) -> None:
        """Book what has been carried since the last change."""
        for message in self.messages:
            message.left -= message.rate * (self.env.now - self.since)
        self.since = self.env.now

    def share(self) -> None:
        """Share the links anew and wake the process that waits for the next message to end."""
        rates = fair_rates([self.links(m) for m in self.messages], self.capacity, self.most)
        for message, rate in zip(self.messages, rates, strict=True):
            message.rate = rate
        if not self.wake.triggered:
            self.wake.succeed()

    def carry(self) -> Process:
        """End messages one moment after another."""
        while True:
            self.wake = self.env.event()
            if not self.messages:
                yield self.wake
                continue
            step = min(message.left / message.rate for message in self.messages)
            yield self.env.any_of([self.env.timeout(max(step, 0.0)), self.wake])
            if self.wake.triggered:
                continue
            self.progress()
            size = max(self.push_work + self.pull_work)
            done = [message for message in self.messages if message.left <= 1e-9 * size]
            self.messages = [message for message in self.messages if message.left > 1e-9 * size]
            for message in done:
                self.end(message, at_once=False)
            self.share()
            # What a free connection sends next is settled with everything else of this moment.
            self.later(0.0, CREDIT + 1, 0, 0, lambda: None)

    def end(self, message: Message, *, at_once: bool) -> None:
        """Book a message's end: a push arrives and returns its credit, a pull completes its gradient."""
        worker, part = message.worker, message.part
        self.times[self.window[worker], worker, part].append(self.env.now)
        if message.pull:
            if self.rules.until_pulled:
                self.later(0.0, CREDIT, worker, part, lambda: self.return_credit(worker, part))
            self.arrived[worker][part].succeed()
            return
        trip = 0.0 if at_once else self.exchange.round_trip_s
        self.later(trip, ARRIVES, worker, part, lambda: self.arrive(worker, part))
        if not self.rules.until_pulled:
            back = trip if self.rules.acknowledged else 0.0
            self.later(back, CREDIT, worker, part, lambda: self.return_credit(worker, part))

    def return_credit(self, worker: int, part: int) -> None:
        """Give credit back."""
        server = int(self.traffic.server[part])
        self.flying[(worker, server) if self.rules.per_connection else (worker,)].remove(part)

    def arrive(self, worker: int, part: int) -> None:
        """Add a contribution; answer every worker whose pull may go."""
        self.pushed[worker][part] += 1
        self.asked.add((worker, part))
        if self.rules.step_barrier:
            clock = self.pushed[worker][part]
            if all(count >= clock for counts in self.pushed for count in counts):
                for other in range(self.workers):
                    for each in self.parts:
                        self.answer(other, each)
            return
        slowest = min(counts[part] for counts in self.pushed)
        for other in range(self.workers):
            if (other, part) in self.asked and slowest >= self.pushed[other][part] - self.staleness:
                self.answer(other, part)

    def answer(self, worker: int, part: int) -> None:
        """Queue a pull at its server."""
        self.asked.discard((worker, part))
        key = float(self.traffic.pull_priority[part])
        key = -inf if isnan(key) else key
        if self.rules.arrival_pulls:
            key = self.sequence
            self.sequence += 1
        self.answering.setdefault((worker, int(self.traffic.server[part])), []).append((key, part))
