"""The simulation's twin: the same training in SimPy with exact fractions for time, bytes and rates.

Shares with the simulation only the document, the fleet and the orders of transfers. Because nothing is
rounded, what is simultaneous here is so by arithmetic, and the order of simultaneous ends is put to the test.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import simpy
from simpy.events import EventPriority

from pace.documents.steps import StepsDocument
from pace_servers.documents.fleet import Fleet

LATE = EventPriority(2)  # after SimPy's URGENT and NORMAL: when everything else of this moment has happened
RANK = {"downlink": 0, "worker": 1, "uplink": 2, "ps": 3}
Key = tuple[int, int, int, int]


@dataclass
class Transfer:
    """A chunk in service."""

    left: Fraction
    last: bool
    op: int
    rate: Fraction = Fraction(0)
    is_due: bool = False


@dataclass
class Worker:
    """One client: what its present step still needs, and its queues."""

    number: int
    step: int = -1
    missing: dict[int, set[int]] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)
    rest: dict[int, Fraction] = field(default_factory=dict)
    served: dict[int, int] = field(default_factory=dict)
    queues: dict[Any, list[int]] = field(default_factory=dict)
    busy: dict[Any, int] = field(default_factory=dict)
    windows: dict[Any, Fraction] = field(default_factory=dict)
    alive: bool = False
    between: bool = False
    clock: int = 0
    counted_round: int = -1
    version: int = 0
    pulled_now: bool = False


class Twin:
    """Runs a fleet; `ends` lists (time, worker, staleness, kept) of every step."""

    def __init__(
        self,
        document: StepsDocument,
        workers: int,
        fleet: Fleet,
        drawn: list[list[int]],
        *,
        steps: int,
        priority: list[float] | None = None,
        deviates: list[list[float]] | None = None,
        spreads: list[float] | None = None,
    ) -> None:
        self.env = simpy.Environment(initial_time=Fraction(0))  # type: ignore[arg-type]  # any number is time
        self.document, self.fleet, self.drawn, self.steps = document, fleet, drawn, steps
        self.priority = priority
        self.deviates = deviates or [[0.0]] * workers
        self.spreads = spreads or [0.0] * len(document.ops)
        self.workers = [Worker(number) for number in range(workers)]
        self.flows: dict[tuple[int, int, str], Transfer] = {}
        self.advanced = Fraction(0)
        self.generation = 0
        self.due: dict[Key, Callable[[], object]] = {}
        self.settling = False
        self.versions = 0
        self.round, self.ended_in_round = 0, 0
        self.ends: list[tuple[Fraction, int, int, bool]] = []
        self.op_ends: dict[tuple[int, int, int], Fraction] = {}
        self.total = workers * steps
        self.dependents: list[list[int]] = [
            [op for op, before in enumerate(document.dependencies) if number in before]
            for number in range(len(document.ops))
        ]
        for worker in self.workers:
            join = fleet.join_s[worker.number % len(fleet.join_s)] if fleet.join_s else 0.0
            self.at(Fraction(join), (worker.number, 4, 0, 0), partial(self.join, worker))
            leave = fleet.leave_s[worker.number % len(fleet.leave_s)] if fleet.leave_s else None
            if leave is not None:
                self.at(Fraction(leave), (worker.number, 4, 0, 1), partial(self.leave, worker))

    def run(self) -> "Twin":
        """Run to the end."""
        while self.env.peek() != float("inf") and len(self.ends) < self.total:
            self.env.step()
        return self

    # Time

    def at(self, delay: Fraction, key: Key, action: Callable[[], object]) -> None:
        """After a delay, have `action` wait for its turn among what is simultaneous."""

        def fall_due(_: Any) -> None:
            self.due[key] = action
            self.settle()

        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(fall_due)
        self.env.schedule(event, delay=delay)  # type: ignore[arg-type]  # a fraction

    def settle(self) -> None:
        """Have one due action done when nothing else happens at this moment."""
        if self.settling or not self.due:
            return
        self.settling = True

        def act(_: Any) -> None:
            self.settling = False
            self.advance()
            if self.due:
                self.due.pop(min(self.due))()
            self.reshare()
            self.settle()

        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(act)
        self.env.schedule(event, priority=LATE)

    # Links

    def limit(self, end: str, number: int, direction: str) -> Fraction:
        """Return the rate of one end of a connection."""
        fleet = self.fleet
        rates = (
            fleet.server_bytes_per_s
            if end == "server"
            else fleet.download_bytes_per_s
            if direction == "downlink"
            else fleet.upload_bytes_per_s
        )
        return Fraction(rates[number % len(rates)] if rates else self.document.link.bytes_per_s)

    def advance(self) -> None:
        """Move every transfer on to the present."""
        now = Fraction(self.env.now)
        for flow in self.flows.values():
            flow.left -= flow.rate * (now - self.advanced)
            assert flow.left >= 0
        self.advanced = now

    def reshare(self) -> None:
        """Give every transfer its max-min fair rate, and look again when the first of them ends."""
        self.generation += 1
        for direction in ("downlink", "uplink"):
            open_flows = {key for key in self.flows if key[2] == direction}
            limits: dict[tuple[str, int], Fraction] = {}
            for worker, server, _ in open_flows:
                limits["worker", worker] = self.limit("worker", worker, direction)
                limits["server", server] = self.limit("server", server, direction)
            while open_flows:
                users = {
                    link: [f for f in open_flows if link in (("worker", f[0]), ("server", f[1]))]
                    for link in limits
                }
                units = {
                    link: limits[link] / sum(self.weight(flow) for flow in sharing)
                    for link, sharing in users.items()
                    if sharing
                }
                tightest = min(units, key=lambda link: units[link])
                for shared in users[tightest]:
                    rate = self.flows[shared].rate = units[tightest] * self.weight(shared)
                    open_flows.discard(shared)
                    limits["worker", shared[0]] -= rate
                    limits["server", shared[1]] -= rate
        generation = self.generation
        for key, flow in self.flows.items():
            if flow.is_due:
                continue

            def look(_: Any, key: tuple[int, int, str] = key, flow: Transfer = flow) -> None:
                if generation != self.generation or flow.is_due:
                    return
                flow.is_due = True
                self.due[key[0], RANK[key[2]], key[1], flow.op] = lambda: self.end_chunk(key, flow)
                self.settle()

            event = simpy.Event(self.env)
            event._ok, event._value = True, None
            event.callbacks.append(look)
            self.env.schedule(event, delay=flow.left / flow.rate)  # type: ignore[arg-type]

    def weight(self, key: tuple[int, int, str]) -> Fraction:
        """Return by what a transfer shares its links."""
        number = key[0]
        op = self.flows[key].op
        place = self.workers[number].step * len(self.document.ops) + op
        deviate = self.deviates[number][place % len(self.deviates[number])]
        return Fraction(math.exp(self.spreads[op] * deviate))

    def end_chunk(self, key: tuple[int, int, str], flow: Transfer) -> None:
        """Requeue the rest of a stream, or end its transfer."""
        assert flow.left == 0
        worker, (_, server, direction) = self.workers[key[0]], key
        del self.flows[key]
        del worker.busy[key[1:]]
        op = self.document.ops[flow.op]
        overhead = self.document.overhead
        if not flow.last:
            worker.queues[key[1:]].append(flow.op)
        elif overhead.seconds or overhead.seconds_per_byte:
            seconds = Fraction(overhead.seconds_per_byte) * (op.size_bytes or 0) + Fraction(overhead.seconds)
            rank = 1 if direction == "downlink" else 3
            seconds /= self.speed(worker) if rank == 1 else 1
            self.at(seconds, (worker.number, rank, server, flow.op), lambda: self.end_op(worker, flow.op))
        elif self.end_op(worker, flow.op):
            return
        self.serve(worker, key[1:])

    # Steps

    def speed(self, worker: Worker) -> Fraction:
        """Return how fast a worker computes."""
        speed = self.fleet.speed
        return Fraction(speed[worker.number % len(speed)]) if speed else Fraction(1)

    def duration(self, worker: Worker, op: int) -> Fraction:
        """Return the seconds of a compute op in the present step."""
        drawn = self.drawn[worker.number]
        step = self.document.steps[drawn[worker.step % len(drawn)]]
        compute = Fraction(step.duration_s[op])
        return compute / self.speed(worker) if self.document.ops[op].resource == "worker" else compute

    def submit(self, worker: Worker, number: int) -> None:
        """Begin an op, or queue it."""
        op = self.document.ops[number]
        server = op.server or 0
        skipped = (op.resource == "downlink" and worker.step % self.fleet.pull_every != 0) or (
            op.resource in ("uplink", "ps") and (worker.step + 1) % self.fleet.push_every != 0
        )
        if skipped:
            rank = 3 if op.resource == "ps" else 1
            self.at(Fraction(0), (worker.number, rank, server, number), lambda: self.end_op(worker, number))
            return
        if op.resource == "downlink" and not worker.pulled_now:
            worker.pulled_now = True
            worker.version = self.versions
        if op.is_transfer or op.stream is not None:
            queue = (server, op.resource) if op.is_transfer else (op.resource, server, op.stream)
            worker.rest[number] = Fraction(op.size_bytes or 0)
            worker.served[number] = 0
            worker.queues.setdefault(queue, []).append(number)
            self.serve(worker, queue)
            return
        key = (worker.number, RANK[op.resource], server, number)
        self.at(self.duration(worker, number), key, lambda: self.end_op(worker, number))

    def serve(self, worker: Worker, queue: Any) -> None:
        """Start what is next in a queue that is idle."""
        waiting = worker.queues.get(queue, [])
        if queue in worker.busy or not waiting:
            return
        link = self.document.link
        if len(queue) == 3:
            number = waiting.pop(0)
            worker.busy[queue] = number
            key = (worker.number, RANK[queue[0]], queue[1], number)

            def end() -> None:
                worker.busy.pop(queue, None)  # nothing is busy where the worker has left
                if not self.end_op(worker, number):
                    self.serve(worker, queue)

            self.at(self.duration(worker, number), key, end)
            return
        choice = waiting[0]
        if self.priority is not None and link.discipline in ("tic", "reverse", "random"):
            choice = min(waiting, key=lambda op: self.priority[op] if self.priority else 0)
        elif link.discipline == "first-service-first":
            choice = next((op for op in waiting if worker.served[op] == 0), choice)
        waiting.remove(choice)
        worker.busy[queue] = choice
        rest = worker.rest[choice]
        chunk = rest
        if link.discipline in ("window", "first-service-first") and worker.served[choice] == 0:
            chunk = min(rest, Fraction(link.window_bytes or 0))
        if link.discipline == "adaptive" and worker.served[choice] == 0:
            most = Fraction(link.window_bytes or 0)
            window = worker.windows.get(queue, min(Fraction(65535), most))
            if rest > window:
                chunk = window
                window = min(2 * window, most)
            worker.windows[queue] = window
        worker.served[choice] += 1
        worker.rest[choice] = rest - chunk
        self.flows[worker.number, queue[0], queue[1]] = Transfer(chunk, chunk == rest, choice)

    def end_op(self, worker: Worker, number: int) -> bool:
        """Submit what waited for an op; say whether it was the last of its step."""
        if not worker.alive:
            return True
        self.op_ends[worker.number, worker.step, number] = Fraction(self.env.now)
        worker.unfinished.discard(number)
        for after in self.dependents[number]:
            worker.missing[after].discard(number)
            if not worker.missing[after]:
                self.submit(worker, after)
        if worker.unfinished:
            return False
        fleet = self.fleet
        pushed = (worker.step + 1) % fleet.push_every == 0
        kept = fleet.barrier != "quorum" or fleet.late != "drop" or worker.counted_round + 1 >= self.round
        staleness = self.versions - worker.version if pushed and kept else -1
        self.ends.append((Fraction(self.env.now), worker.number, staleness, kept))
        self.versions += pushed and kept
        worker.clock += 1
        worker.counted_round = self.round if kept else self.round - 1
        self.ended_in_round += kept
        worker.between = True
        self.go_on()
        return True

    def go_on(self) -> None:
        """Start the steps that nothing holds back."""
        fleet = self.fleet
        alive = [worker for worker in self.workers if worker.alive]
        if fleet.quorum is not None and 0 < self.ended_in_round >= min(fleet.quorum, len(alive)):
            self.round += 1
            self.ended_in_round = 0
        ahead = 0 if fleet.barrier == "all" else fleet.max_ahead
        for worker in self.workers:
            held = not worker.between
            if fleet.is_uniform:
                held |= worker.step + 1 >= self.steps
            if fleet.quorum is not None:
                held |= worker.counted_round >= self.round
            if ahead is not None and not held:
                held = worker.clock - min(other.clock for other in alive) > ahead
            if not held:
                self.start(worker)

    def start(self, worker: Worker) -> None:
        """Begin a worker's next step."""
        worker.between = False
        worker.step += 1
        if worker.step % self.fleet.pull_every == 0:
            worker.version = self.versions
        worker.pulled_now = False
        worker.unfinished = set(range(len(self.document.ops)))
        worker.missing = {op: set(before) for op, before in enumerate(self.document.dependencies)}
        drawn = self.drawn[worker.number]
        starts = self.document.steps[drawn[worker.step % len(drawn)]].start_s
        roots = [op for op, before in worker.missing.items() if not before]
        for op in sorted(roots, key=lambda op: (starts[op] if starts else 0, op)):
            self.submit(worker, op)

    def join(self, worker: Worker) -> None:
        """Let a worker take part."""
        clocks = [other.clock for other in self.workers if other.alive]
        worker.clock = min(clocks, default=0)
        worker.counted_round = self.round - 1
        worker.alive = worker.between = True
        self.go_on()

    def leave(self, worker: Worker) -> None:
        """Stop a worker at once."""
        worker.alive = worker.between = False
        for key in [key for key in self.flows if key[0] == worker.number]:
            del self.flows[key]
        for due in [due for due in self.due if due[0] == worker.number and due[1] in (0, 2)]:
            del self.due[due]
        worker.queues.clear()
        worker.busy.clear()
        self.go_on()
