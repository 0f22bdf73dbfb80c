"""What each half of an all-reduce costs, as measured: a reduce-scatter or an all-gather of so many bytes.

Bytes are those of the whole buffer, before a reduce-scatter and after an all-gather. A profile without
measured halves takes them from its all-reduce (``AllReduce.halves`` in ``pace.documents.collective_costs``).
"""

from typing import Annotated, Literal

from pydantic import Field

from pace import collectives
from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.cost_document import AtLeastOne, CostDocument, NetworkChange, NonNegative
from pace.solver.cost_curve import CostCurve


class AffineHalf(CostDocument):
    """x -> latency_s + x * seconds_per_byte, as measured at the profile's number of workers."""

    kind: Literal["affine"] = "affine"
    latency_s: NonNegative
    seconds_per_byte: NonNegative

    def cost(self, workers: int) -> CostCurve:
        """Return the curve for `workers` workers."""
        return collectives.FREE if workers == 1 else CostCurve.affine(self.latency_s, self.seconds_per_byte)

    def with_changes(self, change: NetworkChange) -> "AffineHalf":
        """Change the network under half a ring; `latency_s` is per message."""
        whole = AffineAllReduce(latency_s=2 * self.latency_s, seconds_per_byte=2 * self.seconds_per_byte)
        changed = whole.with_changes(change)
        line = changed.cost(_workers_of(change)).line
        assert line is not None
        return AffineHalf(latency_s=line.latency_s / 2, seconds_per_byte=line.seconds_per_byte / 2)


class SampledHalf(CostDocument):
    """The curve through measured (bytes, seconds) pairs, smoothed and extrapolated as an all-reduce's."""

    kind: Literal["samples"] = "samples"
    samples: Annotated[tuple[tuple[AtLeastOne, NonNegative], ...], Field(min_length=1)]

    def cost(self, workers: int) -> CostCurve:
        """Return the curve for `workers` workers."""
        return collectives.FREE if workers == 1 else collectives.halved(self._whole().cost(workers))

    def with_changes(self, change: NetworkChange) -> "SampledHalf":
        """Scale the samples as half a ring would scale; `latency_s` is per message."""
        changed = self._whole().with_changes(change)
        return SampledHalf(samples=tuple((size, seconds / 2) for size, seconds in changed.samples))

    def _whole(self) -> SampledAllReduce:
        # What is assumed below the smallest sample is a latency of an all-reduce's messages.
        return SampledAllReduce(samples=tuple((size, 2 * seconds) for size, seconds in self.samples))


HalfCost = Annotated[AffineHalf | SampledHalf, Field(discriminator="kind")]


def _workers_of(change: NetworkChange) -> int:
    return change.measured_workers if change.workers is None else change.workers
