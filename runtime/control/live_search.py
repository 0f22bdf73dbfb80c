"""ByteScheduler's tuner in a running job: each proposal runs for some iterations, and the best one stays."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pace.runtime.control.knob_space import KnobSpace
from pace.runtime.control.network_cost import NetworkCost
from pace.runtime.control.trial import Candidate, Lap, Trial
from pace.runtime.engine.plan import GradientSize
from pace.runtime.event_log import log
from pace.runtime.options import Tune
from pace.runtime.transports.transport import Transport
from pace.solver.arrays import FloatArray
from pace.solver.knob_search import Measured, Places, places

# How many proposals are timed again at the end, in addition to plain operation.
FINALISTS = 2
# The median absolute deviation of a normal distribution, in standard deviations.
DEVIATIONS_OF_MAD = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedProposal:
    """A proposal, and the median of its iterations on the slowest rank, in seconds."""

    settings: dict[str, Any]
    candidate: Candidate
    iteration_s: float


class LiveSearch:
    """Runs through proposals, then holds the measurements and the winner, like ``Trial``.

    The first trial is plain operation. After it nothing is in flight, so the network is measured. This gives
    the sizes at which the search begins. Rank 0 searches, and the other ranks get the next place from it.
    Ranks take every step together, so all of them change at the same iteration.

    Attributes
    ----------
    current
        The candidate that runs now.
    winner
        The best candidate; None before the end.
    measured_s
        The iteration times measured in the final comparison, by name; empty before.
    trials
        All proposals that were timed.
    """

    def __init__(
        self,
        tune: Tune,
        plain: Candidate,
        sizes: Sequence[GradientSize],
        transport: Transport,
        network: NetworkCost,
        *,
        barrier: bool,
    ) -> None:
        self._tune = tune
        self._plain = plain
        self._sizes = sizes
        self._transport = transport
        self._network = network
        self._barrier = barrier
        self._space: KnobSpace | None = None
        self._search: Places | None = None
        self._place: FloatArray | None = None
        self._final: Trial | None = None
        self._laps: list[Lap] = []
        self._warm_up = plain.warm_up
        self.current = plain
        self.winner: Candidate | None = None
        self.measured_s: dict[str, float] = {}
        self.trials: list[TriedProposal] = []

    def record(self, lap: Lap) -> bool:
        """Record an iteration; return whether ``current`` or ``winner`` has changed."""
        if self._final is not None:
            changed = self._final.record(lap)
            self.current, self.winner = self._final.current, self._final.winner
            self.measured_s = self._final.measured_s
            return changed
        if self._warm_up:
            self._warm_up -= 1
            return False
        self._laps.append(lap)
        if len(self._laps) < self._tune.iterations:
            return False
        self._end_trial()
        return True

    def _end_trial(self) -> None:
        measured = self._agree([lap.seconds for lap in self._laps])
        self._laps.clear()
        if self._space is None:
            suggested = self._network.suggested_bytes()
            self._space = KnobSpace.of(self._tune, self._sizes, self._transport.sequencing, suggested)
            self._say("pace.tuning", method=self._tune.method, plain_s=measured.cost, start_bytes=suggested)
            place = self._propose(None)
        else:
            assert self._place is not None
            settings = self._space.settings(self._place)
            self.trials.append(
                TriedProposal(settings=settings, candidate=self.current, iteration_s=measured.cost)
            )
            if self._transport.rank == 0:
                log.debug("pace.tuning_trial", iteration_s=measured.cost, number=len(self.trials), **settings)
            place = self._propose(measured)
        if place is None:
            self._begin_final()
            return
        self._place = place
        self.current = Candidate(name="tuned", plan=self._space.plan(place), barrier=self._barrier)
        self._warm_up = self.current.warm_up

    def _agree(self, durations_s: list[float]) -> Measured:
        """Return the median of the slowest rank, and its standard deviation over repetitions."""
        median = statistics.median(durations_s)
        spread = statistics.median(abs(each - median) for each in durations_s)
        mine = [median, DEVIATIONS_OF_MAD * spread / len(durations_s) ** 0.5]
        replies = [json.loads(each) for each in self._transport.gather(json.dumps(mine).encode())]
        return Measured(*max(replies))

    def _propose(self, measured: Measured | None) -> FloatArray | None:
        """Return rank 0's next place on every rank; None at the end."""
        found = self._next_place(measured) if self._transport.rank == 0 else None
        place = json.loads(self._transport.broadcast(found))
        return None if place is None else np.array(place)

    def _next_place(self, measured: Measured | None) -> bytes:
        assert self._space is not None
        try:
            if measured is None or self._search is None:
                self._search = places(
                    self._tune.method,
                    len(self._space.knobs),
                    self._tune.num_trials,
                    seed=self._tune.seed,
                    first=self._space.start,
                )
                return json.dumps(next(self._search).tolist()).encode()
            return json.dumps(self._search.send(measured).tolist()).encode()
        except StopIteration:
            return b"null"
        except Exception as error:  # whatever a library raises, the other ranks wait, and training goes on
            log.warning("pace.tuning_failed", reason=f"{type(error).__name__}: {error}")
            return b"null"

    def _begin_final(self) -> None:
        """Time the best proposals again, alternating with plain operation: the best of many was lucky too."""
        by_plan = {
            each.candidate.plan.sha256: each
            for each in sorted(self.trials, key=lambda each: each.iteration_s, reverse=True)
        }
        best = list(by_plan.values())[::-1][:FINALISTS]
        names = ("tuned", "tuned, second")
        self._final = Trial(
            [
                self._plain,
                *(
                    Candidate(name=name, plan=each.candidate.plan, barrier=self._barrier)
                    for name, each in zip(names, best, strict=False)
                ),
            ],
            self._transport,
        )
        self.current = self._final.current

    def _say(self, event: str, **values: Any) -> None:
        if self._transport.rank == 0:
            log.info(event, **values)
