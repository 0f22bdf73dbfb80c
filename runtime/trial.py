"""Law 7, never slower: times every way of running for a few iterations and keeps the fastest."""

import json
import statistics
from dataclasses import dataclass

from pace.runtime.plan import Plan
from pace.runtime.transport import Transport

# The first iterations of each candidate pay for new buffers and learn the order of use.
WARM_UP = 2
MEASURED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way of running.

    Attributes
    ----------
    name
        "plain" (buckets in order of readiness, then a barrier), "barrier" (the plan, then a barrier) or
        "overlap".
    """

    name: str
    plan: Plan
    barrier: bool


class Trial:
    """Walks through candidates, then holds what all ranks measured and which one won.

    Ranks take every step together, so all of them move on at the same iteration.
    """

    def __init__(self, candidates: list[Candidate], transport: Transport) -> None:
        self._candidates = candidates
        self._transport = transport
        self._durations: list[list[float]] = [[] for _ in candidates]
        self._current = 0
        self.measured_s: dict[str, float] = {}
        self.winner: Candidate | None = None

    @property
    def current(self) -> Candidate:
        """The candidate to run now."""
        return self._candidates[self._current]

    def record(self, iteration_s: float) -> bool:
        """Take the duration of an iteration; True when ``current`` or ``winner`` has changed."""
        durations = self._durations[self._current]
        durations.append(iteration_s)
        if len(durations) < WARM_UP + MEASURED:
            return False
        if self._current + 1 < len(self._candidates):
            self._current += 1
            return True
        self._decide()
        return True

    def _decide(self) -> None:
        # The slowest rank sets the pace; all ranks compute the same from the same numbers.
        mine = [statistics.median(durations[WARM_UP:]) for durations in self._durations]
        said = [json.loads(each) for each in self._transport.gather(json.dumps(mine).encode())]
        slowest = [max(column) for column in zip(*said, strict=True)]
        self.measured_s = {
            candidate.name: duration for candidate, duration in zip(self._candidates, slowest, strict=True)
        }
        self._current = slowest.index(min(slowest))
        self.winner = self._candidates[self._current]
