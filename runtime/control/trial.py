"""Makes sure that PACE is never slower: times each candidate for a few iterations and keeps the fastest."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pace.runtime.engine.plan import SendPlan
from pace.runtime.transports.device import Clock
from pace.runtime.transports.transport import Transport
from pace.solver.knob_search import Measured

# The first iteration of each turn allocates buffers, and sends nothing before its end, because it learns the
# order of use. Without a barrier, the second iteration waits for that.
WARM_UP_BARRIER = 1
WARM_UP_OVERLAP = 2

# Iterations of each turn; every candidate has two turns.
MEASURED = 2

# The median absolute deviation of a normal distribution, in standard deviations.
DEVIATIONS_OF_MAD = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan, with a barrier or without.

    Attributes
    ----------
    name
        "plain" (buckets in order of readiness, then a barrier), "barrier" (the plan, then a barrier),
        "overlap" (the plan without a barrier) or "sharded" (a sharded plan).
    """

    name: str
    plan: SendPlan
    barrier: bool

    @property
    def warm_up(self) -> int:
        """The number of iterations at the start of a turn that do not count."""
        return WARM_UP_BARRIER if self.barrier else WARM_UP_OVERLAP


@dataclass(frozen=True, slots=True)
class Lap:
    """An iteration between two stamps of a clock, which may run behind the host: read it late."""

    clock: Clock
    began: Any
    ended: Any

    @property
    def seconds(self) -> float:
        """The iteration's seconds; waits until the device has come to its end."""
        return self.clock.seconds([self.began, self.ended])[1]


def on_slowest_rank(transport: Transport, durations_s: Sequence[Sequence[float]]) -> list[Measured]:
    """Return each list's median on the rank where it is largest, with its standard error.

    Every rank must call it with as many lists, and all get the same. The standard error is that of the mean
    of normal samples, estimated from their median absolute deviation.
    """
    mine = []
    for samples in durations_s:
        median = statistics.median(samples)
        spread = statistics.median(abs(each - median) for each in samples)
        mine.append((median, DEVIATIONS_OF_MAD * spread / len(samples) ** 0.5))
    replies = [json.loads(each) for each in transport.gather(json.dumps(mine).encode())]
    return [Measured(*max(column)) for column in zip(*replies, strict=True)]


class Trial:
    """Runs through the candidates forward and back, then holds the measurements of all ranks and the winner.

    The order A, B, C, C, B, A favors no candidate if the machine becomes slower or faster meanwhile: with a
    steady drift, the mean time at which a candidate runs is the same for all. Ranks take every step together,
    so all of them change at the same iteration.
    """

    def __init__(self, candidates: list[Candidate], transport: Transport) -> None:
        self._candidates = candidates
        self._transport = transport
        self._durations: list[list[float]] = [[] for _ in candidates]
        self._laps: list[Lap] = []
        there = list(range(len(candidates)))
        self._turns = there + there[::-1]
        self._left_out: set[int] = set()
        self._current = self._turns.pop(0)
        self._warm_up = self.current.warm_up
        self.measured: dict[str, Measured] = {}
        self.winner: Candidate | None = None

    @property
    def num_steps(self) -> int:
        """The number of iterations of the turns that are left, if no candidate is left out."""
        turns = [self.current, *(self._candidates[each] for each in self._turns)]
        changes = [pair for pair in pairwise(turns) if pair[0] is not pair[1]]
        warm_up = sum(max(one.warm_up, other.warm_up) for one, other in changes)
        return self._warm_up + warm_up + MEASURED * len(turns)

    @property
    def current(self) -> Candidate:
        """The candidate to run now."""
        return self._candidates[self._current]

    def record(self, lap: Lap) -> bool:
        """Record an iteration; return whether ``current`` or ``winner`` has changed."""
        if self._warm_up:
            self._warm_up -= 1
            return False
        self._laps.append(lap)
        if len(self._laps) < MEASURED:
            return False
        self._durations[self._current] += [each.seconds for each in self._laps]
        self._laps.clear()
        if not self._turns:
            self._decide()
            return True
        before, self._current = self._current, self._turns.pop(0)
        if self._current == before:  # at the turning point the candidate stays, so it needs no warm-up
            return False
        # The larger of both, in both directions, or a drift would favor one of them.
        self._warm_up = max(self._candidates[before].warm_up, self.current.warm_up)
        return True

    def leave_out(self, candidate: Candidate) -> None:
        """Leave out a candidate, not the first, because it cannot run; every rank must call it."""
        number = self._candidates.index(candidate)
        self._left_out.add(number)
        self._turns = [turn for turn in self._turns if turn != number]
        if self.winner is not None:
            self.measured.pop(candidate.name)
            self._choose()
            return
        self._laps.clear()
        self._current = self._turns.pop(0)
        self._warm_up = max(candidate.warm_up, self.current.warm_up)

    def _decide(self) -> None:
        # The slowest rank limits all of them. All ranks compute the same from the same numbers.
        tried = [number for number in range(len(self._candidates)) if number not in self._left_out]
        slowest = on_slowest_rank(self._transport, [self._durations[number] for number in tried])
        self.measured = {
            self._candidates[number].name: each for number, each in zip(tried, slowest, strict=True)
        }
        self._choose()

    def _choose(self) -> None:
        name = min(self.measured, key=lambda each: self.measured[each].cost)
        self._current = next(n for n, each in enumerate(self._candidates) if each.name == name)
        self.winner = self.current
