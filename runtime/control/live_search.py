"""ByteScheduler's tuner in a running job: each proposal runs for some iterations, and the best one stays."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch

from pace.runtime.capture.cost_sampler import CostSampler
from pace.runtime.capture.self_profile import TransportNetwork
from pace.runtime.control.trial import Candidate, Lap, Trial, on_slowest_rank
from pace.runtime.engine.plan import GradientSize, SendPlan, plan_locally
from pace.runtime.event_log import log
from pace.runtime.options import Knob, Tune
from pace.runtime.transports.transport import Discipline, Sequencing, Transport
from pace.solver.arrays import FloatArray
from pace.solver.knob_search import CREDIT_IN_PARTITIONS, Measured, Places, log_place, log_value, places

# With more parts than this, the overhead of parts would dominate the window.
MOST_PARTS = 512
LEAST_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSpace:
    """The unit cube of a job's knobs, and the plan at each place in it; sizes are on a logarithmic scale.

    Attributes
    ----------
    knobs
        The knob of each dimension.
    suggested_bytes
        The size of partitions and groups that theory suggests.
    """

    knobs: tuple[Knob, ...]
    sizes: Sequence[GradientSize]
    sequencing: Sequencing
    suggested_bytes: float

    @classmethod
    def of(
        cls, tune: Tune, sizes: Sequence[GradientSize], sequencing: Sequencing, suggested_bytes: float
    ) -> "KnobSpace":
        """Build from a search, without knobs that cannot be tuned on the transport."""
        return cls(
            knobs=tunable(tune, sequencing),
            sizes=sizes,
            sequencing=sequencing,
            suggested_bytes=suggested_bytes,
        )

    @property
    def start(self) -> FloatArray:
        """The place at which a search begins."""
        sizes = {
            "partition": self.suggested_bytes,
            "credit": CREDIT_IN_PARTITIONS * self.suggested_bytes,
            "group": self.suggested_bytes,
        }
        return np.array(
            [log_place(sizes[knob], *self._range) if knob in sizes else 0.75 for knob in self.knobs]
        )

    def settings(self, place: FloatArray) -> dict[str, Any]:
        """Return the settings of a place."""
        at = dict(zip(self.knobs, np.clip(place, 0, 1).tolist(), strict=True))
        partition = self._bytes(at["partition"]) if "partition" in at else round(self.suggested_bytes)
        return {
            "partition_bytes": partition,
            "credit_bytes": self._bytes(at["credit"])
            if "credit" in at
            else round(CREDIT_IN_PARTITIONS * partition),
            # With a size below the smallest gradient, every gradient is a group.
            "group_bytes": self._bytes(at["group"]) if "group" in at else 1,
            "order": self._order(at.get("order", 1.0)),
        }

    def plan(self, place: FloatArray) -> SendPlan:
        """Return the plan of a place; the same on every rank."""
        chosen = self.settings(place)
        plan = plan_locally(
            self.sizes,
            max_group_bytes=chosen["group_bytes"],
            max_segment_bytes=chosen["partition_bytes"],
            credit_bytes=chosen["credit_bytes"],
        )
        return replace(plan, order=chosen["order"])

    def _order(self, at: float) -> Discipline:
        if at >= 0.5:
            return "priority"
        return "overtake" if self.sequencing == "keyed" else "static"

    @property
    def _range(self) -> tuple[float, float]:
        total = max(sum(gradient.size_bytes for gradient in self.sizes), 1)
        return min(max(total / MOST_PARTS, LEAST_BYTES), total), float(total)

    def _bytes(self, at: float) -> int:
        return round(log_value(at, *self._range))


def tunable(tune: Tune, sequencing: Sequencing) -> tuple[Knob, ...]:
    """Return the knobs of a search that have an effect on a transport, in the same order on every rank."""
    keyed = sequencing == "keyed"
    return tuple(knob for knob in get_args(Knob) if knob in tune.knobs and not (keyed and knob == "credit"))


# How many proposals are timed again at the end, in addition to plain operation.
FINALISTS = 2


class NetworkCost:
    """Measures the time that each part loses, and the time of a byte, on a job's own transport."""

    def __init__(
        self, transport: Transport, sizes: Sequence[GradientSize], model: torch.nn.Module, *, timeout_s: float
    ) -> None:
        self._transport = transport
        self._total = sum(gradient.size_bytes for gradient in sizes)
        self._model = model
        self._timeout_s = timeout_s

    def suggested_bytes(self) -> float:
        """Return delta0 in bytes; every rank must call it, with nothing in flight. Takes about two seconds.

        Cutting M bytes into parts of delta bytes loses theta seconds for each of the M / delta parts. And
        whenever a more urgent part becomes ready, it waits for the part in flight. ByteScheduler's bounds on
        the sum are smallest at sqrt(M theta B) for all-reduces, where B is the rate at which an all-reduce
        sums bytes, and at sqrt(M theta B / (2 S)) for S parameter servers, where B is a worker's rate.

        Raises
        ------
        CommunicationFailed
            If a rank or a server is gone.
        """
        exchange = self._transport.measure_exchange(self._total)
        if exchange is not None:
            busy_bytes_per_s = exchange.worker_bytes_per_s / (2 * exchange.servers)
            return math.sqrt(self._total * exchange.partition_s * busy_bytes_per_s)
        device = next(iter(self._model.parameters())).device
        network = TransportNetwork(self._transport, device, timeout_s=self._timeout_s)
        measured = CostSampler(network, largest_bytes=self._total, slices=1).finish().sizes
        theta_s = measured[0].duration_s
        (bytes_before, before_s), (bytes_last, last_s) = (
            (size.size_bytes, size.duration_s) for size in measured[-2:]
        )
        if last_s <= before_s:
            return float(self._total)  # the time of a byte is too short to be measured
        return math.sqrt(self._total * theta_s * (bytes_last - bytes_before) / (last_s - before_s))


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
    measured
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
        self.measured: dict[str, Measured] = {}
        self.trials: list[TriedProposal] = []

    def record(self, lap: Lap) -> bool:
        """Record an iteration; return whether ``current`` or ``winner`` has changed."""
        if self._final is not None:
            changed = self._final.record(lap)
            self.current, self.winner = self._final.current, self._final.winner
            self.measured = self._final.measured
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
        (measured,) = on_slowest_rank(self._transport, [[lap.seconds for lap in self._laps]])
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
