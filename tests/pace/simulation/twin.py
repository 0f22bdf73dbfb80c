"""The simulator's twin: ops, streams, gradients and the network as SimPy processes.

Shares with the simulator only what a policy decided (its transfers); when ops run, when gradients are ready,
what the network carries when and what the forward pass waits for are worked out by processes that wait for
one another.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy
from simpy.events import EventPriority

from pace import Profile
from pace.simulation.traffic import Rules, Traffic

Process = Generator[simpy.Event, Any, None]
LATE = EventPriority(2)  # after SimPy's URGENT and NORMAL: when everything else of this moment has happened


class Settled(simpy.Event):
    """Happens at the present time, after every other event of it."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=LATE)


@dataclass
class Network:
    """Hands transfers over as rules allow, and serves them first come, first served."""

    env: simpy.Environment
    traffic: Traffic
    rules: Rules
    starts_s: dict[int, float] = field(default_factory=dict)
    ends_s: dict[int, float] = field(default_factory=dict)
    handed: list[int] = field(default_factory=list)
    most_in_flight: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.traffic.release_s)
        self.ended = [self.env.event() for _ in range(count)]
        self.released: set[int] = set()
        self.line = simpy.Store(self.env)
        self.changed = self.env.event()
        for transfer in range(count):
            self.env.process(self.release(transfer))
        self.env.process(self.serve())
        self.env.process(self.hand_over())

    def notify(self) -> None:
        """Wake the process that hands over."""
        if not self.changed.triggered:
            self.changed.succeed()

    def release(self, transfer: int) -> Process:
        """Wait for a transfer's time, and for the one that goes before it."""
        yield self.env.timeout(float(self.traffic.release_s[transfer]))
        before = int(self.traffic.after[transfer])
        if before >= 0:
            yield self.ended[before]
        self.released.add(transfer)
        self.notify()

    def serve(self) -> Process:
        """Carry one transfer after another."""
        while True:
            transfer = yield self.line.get()
            self.starts_s[transfer] = self.env.now
            yield self.env.timeout(float(self.traffic.duration_s[transfer]))
            self.ends_s[transfer] = self.env.now
            self.ended[transfer].succeed()
            self.notify()

    def in_flight(self) -> int:
        """Bytes handed over that have not arrived."""
        return sum(int(self.traffic.size_bytes[t]) for t in self.handed if t not in self.ends_s)

    def next_transfer(self) -> int | None:
        """Return what the rules hand over now, if anything."""
        left = [t for t in range(len(self.traffic.release_s)) if t not in self.handed]
        if self.rules.in_order:
            first = min(left, key=lambda t: (self.traffic.priority[t], t), default=None)
            candidates = [first] if first in self.released else []
        else:
            candidates = [t for t in left if t in self.released]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda t: (self.traffic.priority[t], t))
        flying = self.in_flight()
        if all(t in self.ends_s for t in self.handed):
            return chosen
        if self.rules.overshoots:
            return chosen if flying < self.rules.credit_bytes else None
        fits = flying + int(self.traffic.size_bytes[chosen]) <= self.rules.credit_bytes
        return chosen if fits else None

    def hand_over(self) -> Process:
        """Decide anew whenever something was released or has arrived."""
        while True:
            yield Settled(self.env)
            chosen = self.next_transfer()
            if chosen is not None:
                self.handed.append(chosen)
                self.most_in_flight = max(self.most_in_flight, self.in_flight())
                self.line.put(chosen)
                continue
            self.changed = self.env.event()
            yield self.changed


@dataclass(frozen=True, kw_only=True)
class TwinWindow:
    """What the twin saw."""

    iteration_s: float
    ready_s: list[float]
    arrival_s: list[float]
    starts_s: list[float]
    ends_s: list[float]
    handed: list[int]
    most_in_flight: float


def run_twin(profile: Profile, traffic: Traffic, rules: Rules) -> TwinWindow:
    """Run one window of `profile` with a policy's transfers."""
    env = simpy.Environment()
    network = Network(env, traffic, rules)
    op_ended = {op.name: env.event() for op in profile.ops}
    arrived = {gradient.name: env.event() for gradient in profile.gradients}
    ready: dict[str, float] = {}
    arrival: dict[str, float] = {}
    last_of_window = [0.0]
    # A norm of whole gradients is known when all are reduced; that of shards is one of the transfers.
    barrier = rules.barrier or (profile.update == "global-norm" and not rules.sharded)

    def run_op(number: int) -> Process:
        op = profile.ops[number]
        yield env.all_of([op_ended[name] for name in op.deps])
        neighbors = [other for other in profile.ops[:number] if other.stream == op.stream]
        if op.stream is not None and neighbors:
            yield op_ended[neighbors[-1].name]
        if op.waits_for:
            names = arrived if barrier else op.waits_for
            yield env.all_of([arrived[name] for name in names])
        yield env.timeout(op.duration_s)
        op_ended[op.name].succeed()
        last_of_window[0] = max(last_of_window[0], env.now)

    def reduce(number: int) -> Process:
        gradient = profile.gradients[number]
        yield op_ended[gradient.producer]
        ready[gradient.name] = env.now
        yield env.all_of([network.ended[int(t)] for t in traffic.carriers[number]])
        arrival[gradient.name] = env.now
        arrived[gradient.name].succeed()
        last_of_window[0] = max(last_of_window[0], env.now)

    for number in range(len(profile.ops)):
        env.process(run_op(number))
    for number in range(len(profile.gradients)):
        env.process(reduce(number))
    env.run()
    count = range(len(traffic.release_s))
    return TwinWindow(
        iteration_s=last_of_window[0],
        ready_s=[ready[gradient.name] for gradient in profile.gradients],
        arrival_s=[arrival[gradient.name] for gradient in profile.gradients],
        starts_s=[network.starts_s[t] for t in count],
        ends_s=[network.ends_s[t] for t in count],
        handed=network.handed,
        most_in_flight=network.most_in_flight,
    )
