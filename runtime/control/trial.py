"""Law 7, never slower: times every way of running for a few iterations and keeps the fastest."""

import json
import statistics
from dataclasses import dataclass

from pace.runtime.engine.plan import SendPlan
from pace.runtime.transports.transport import Transport

# The first iteration of each turn pays for new buffers and sends nothing before its end, since it learns the
# order of use. Without a barrier that is waited for in the second.
WARM_UP_BARRIER = 1
WARM_UP_OVERLAP = 2

# Of each turn; every candidate has two turns.
MEASURED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way of running.

    Attributes
    ----------
    name
        "plain" (buckets in order of readiness, then a barrier), "barrier" (the plan, then a barrier),
        "overlap" or "sharded" (a sharded plan).
    """

    name: str
    plan: SendPlan
    barrier: bool

    @property
    def warm_up(self) -> int:
        """How many iterations of a turn are not counted."""
        return WARM_UP_BARRIER if self.barrier else WARM_UP_OVERLAP


class Trial:
    """Walks through candidates and back, then holds what all ranks measured and which one won.

    There and back (A, B, C, C, B, A), so that a machine that grows slower or faster meanwhile favors none:
    with a steady drift, every candidate's mean moment is the same. Ranks take every step together, so all of
    them move on at the same iteration.
    """

    def __init__(self, candidates: list[Candidate], transport: Transport) -> None:
        self._candidates = candidates
        self._transport = transport
        self._durations: list[list[float]] = [[] for _ in candidates]
        there = list(range(len(candidates)))
        self._turns = there + there[::-1]
        self._left_out: set[int] = set()
        self._measured = 0
        self._current = self._turns.pop(0)
        self._warm_up = self.current.warm_up
        self.measured_s: dict[str, float] = {}
        self.winner: Candidate | None = None

    @property
    def current(self) -> Candidate:
        """The candidate to run now."""
        return self._candidates[self._current]

    def record(self, iteration_s: float) -> bool:
        """Take the duration of an iteration; True when ``current`` or ``winner`` has changed."""
        if self._warm_up:
            self._warm_up -= 1
            return False
        self._durations[self._current].append(iteration_s)
        self._measured += 1
        if self._measured < MEASURED:
            return False
        if not self._turns:
            self._decide()
            return True
        self._measured = 0
        before, self._current = self._current, self._turns.pop(0)
        if self._current == before:  # at the turning point nothing changes, so nothing warms up
            return False
        # The larger of both, on the way there and back alike, or a drift would favor one of them.
        self._warm_up = max(self._candidates[before].warm_up, self.current.warm_up)
        return True

    def leave_out(self, candidate: Candidate) -> None:
        """Go on without a candidate, not the first, that cannot be run after all; on all ranks alike."""
        number = self._candidates.index(candidate)
        self._left_out.add(number)
        self._turns = [turn for turn in self._turns if turn != number]
        if self.winner is not None:
            self.measured_s.pop(candidate.name)
            self._choose()
            return
        self._measured = 0
        self._current = self._turns.pop(0)
        self._warm_up = max(candidate.warm_up, self.current.warm_up)

    def _decide(self) -> None:
        # The slowest rank sets the pace; all ranks compute the same from the same numbers.
        tried = [number for number in range(len(self._candidates)) if number not in self._left_out]
        mine = [statistics.median(self._durations[number]) for number in tried]
        replies = [json.loads(each) for each in self._transport.gather(json.dumps(mine).encode())]
        slowest = [max(column) for column in zip(*replies, strict=True)]
        self.measured_s = {
            self._candidates[number].name: duration for number, duration in zip(tried, slowest, strict=True)
        }
        self._choose()

    def _choose(self) -> None:
        name = min(self.measured_s, key=lambda each: self.measured_s[each])
        self._current = next(n for n, each in enumerate(self._candidates) if each.name == name)
        self.winner = self.current
