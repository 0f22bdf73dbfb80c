"""Converts a place in the unit cube of a search to sizes, an order, and the plan with these."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from pace.runtime.engine.plan import GradientSize, SendPlan, plan_locally
from pace.runtime.options import Knob, Tune
from pace.runtime.transports.transport import Discipline, Sequencing
from pace.solver.arrays import FloatArray
from pace.solver.knob_search import CREDIT_IN_PARTITIONS, log_place, log_value

# With more parts than this, the overhead of parts would dominate the window.
MOST_PARTS = 512
LEAST_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSpace:
    """The unit cube of a job's knobs; sizes are on a logarithmic scale.

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
