"""The cost of an all-reduce, and of each half of it, as documents: measured, or an algorithm on a network.

Each document gives the curve g (``pace.solver.cost_curve``) for a number of workers; the formulas are in
``pace.collectives``, and so are their symbols. ``pace.checker.collective_times`` has the judge's own.

Bytes of a half are those of the whole buffer, before a reduce-scatter and after an all-gather. A profile
without measured halves takes them from its all-reduce (``AllReduce.halves``).
"""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from pace import collectives
from pace.collectives import ring_factors
from pace.documents.cost_document import AtLeastOne, CostDocument, NetworkChange, NonNegative, Positive
from pace.documents.push_pull import PushPull
from pace.solver.cost_curve import CostCurve


class _AllReduce(CostDocument):
    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        raise NotImplementedError

    def halves(self, workers: int) -> tuple[CostCurve, CostCurve]:
        """Return what a reduce-scatter and an all-gather cost: half each, where nothing tells them apart."""
        half = collectives.halved(self.cost(workers))
        return half, half


class AffineAllReduce(_AllReduce):
    """g(x) = latency_s + x * seconds_per_byte, as measured at the profile's number of workers."""

    kind: Literal["affine"] = "affine"
    latency_s: NonNegative
    seconds_per_byte: NonNegative

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        if workers == 1:
            return collectives.FREE
        return CostCurve.affine(self.latency_s, self.seconds_per_byte)

    def with_changes(self, change: NetworkChange) -> "RingAllReduce":
        """Read the line as a ring's (eq. 1) and change its parts; `latency_s` is per message."""
        steps, volume = ring_factors(change.measured_workers)
        if not steps:
            raise ValueError(
                "a cost measured with one worker says nothing about a network: measure with at least 2"
            )
        # Workers change nothing here: a ring's document holds for every number of them.
        bandwidth = change.bandwidth_bytes_per_s
        if bandwidth is None:
            if self.seconds_per_byte == 0:
                raise ValueError("a cost of 0 s per byte has no bandwidth that can be kept: give a bandwidth")
            bandwidth = volume / self.seconds_per_byte
        latency = self.latency_s / steps if change.latency_s is None else change.latency_s
        return RingAllReduce(bandwidth_bytes_per_s=bandwidth, latency_s=latency)


class SampledAllReduce(_AllReduce):
    """A curve g through measured (bytes, seconds) pairs, in any order. Noise and repeats are allowed.

    Repeats are averaged. Isotonic regression, weighted by repeats, smooths decreases, so that g never falls.
    Below the smallest sample and beyond the largest, g is an assumption
    (``pace.collectives.through_samples``).

    Attributes
    ----------
    counts, deviations_s
        Number of calls behind each sample, and their standard deviation in seconds; empty if not known.
    ranks
        Number of ranks whose records the samples are from. Samples of one rank contain its waits for late
        ranks.
    """

    kind: Literal["samples"] = "samples"
    samples: Annotated[tuple[tuple[AtLeastOne, NonNegative], ...], Field(min_length=1)]
    counts: tuple[Annotated[int, Field(ge=1)], ...] = ()
    deviations_s: tuple[NonNegative, ...] = ()
    ranks: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_for_each_sample(self) -> Self:
        for name, values in (("counts", self.counts), ("deviations_s", self.deviations_s)):
            if values and len(values) != len(self.samples):
                raise ValueError(f"{len(values)} {name} for {len(self.samples)} samples")
        return self

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        if workers == 1:
            return collectives.FREE
        return collectives.through_samples(self.samples, workers)

    def latency_floor_s(self, workers: int) -> float:
        """Return what the smallest message costs, measured or assumed; no sample is below it."""
        floor = collectives.through_samples(self.samples, workers).durations_s[0]
        return min(floor, *(seconds for _, seconds in self.samples))

    def with_changes(self, change: NetworkChange) -> Self:
        """Scale the samples as a ring would scale (eq. 1); `latency_s` is per message.

        The cost of the smallest messages counts as latency, what is above it as volume. A bandwidth
        is compared with the one that the largest sample reached.
        """
        steps, volume = ring_factors(change.measured_workers)
        if not steps:
            raise ValueError(
                "samples measured with one worker say nothing about a network: measure with at least 2"
            )
        workers = change.measured_workers if change.workers is None else change.workers
        new_steps, new_volume = ring_factors(workers)
        ordered = sorted(self.samples)
        floor = self.latency_floor_s(change.measured_workers)
        scale = new_volume / volume
        if change.bandwidth_bytes_per_s is not None:
            size, seconds = ordered[-1]
            if seconds <= floor:
                raise ValueError("the samples' times do not grow with the size, so they give no bandwidth")
            scale *= volume * size / (seconds - floor) / change.bandwidth_bytes_per_s
        new_floor = (floor / steps if change.latency_s is None else change.latency_s) * new_steps
        changed = [(size, new_floor + (seconds - floor) * scale) for size, seconds in ordered]
        if ordered[0][0] > collectives.LATENCY_MEASURED_BYTES:
            changed.insert(0, (1.0, new_floor))  # what was assumed at the old latency must not come back
        return self.model_copy(update={"samples": tuple(changed), "counts": (), "deviations_s": ()})


class _Network(CostDocument):
    bandwidth_bytes_per_s: Positive
    latency_s: NonNegative
    reduce_bytes_per_s: Positive | None = None

    def with_changes(self, change: NetworkChange) -> Self:
        """Change the network; a formula takes the number of workers when it is evaluated."""
        changes = {"bandwidth_bytes_per_s": change.bandwidth_bytes_per_s, "latency_s": change.latency_s}
        return self.model_copy(update={name: value for name, value in changes.items() if value is not None})


class RingAllReduce(_Network, _AllReduce):
    """Ring: g(x) = 2(n-1) alpha + 2(n-1)/n x/B + (n-1)/n x gamma (the PACE paper's eq. 1)."""

    kind: Literal["ring"] = "ring"

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        return collectives.ring(workers, self)

    def halves(self, workers: int) -> tuple[CostCurve, CostCurve]:
        """Return what a reduce-scatter and an all-gather cost."""
        return collectives.ring_halves(workers, self)


class HalvingDoublingAllReduce(_Network, _AllReduce):
    """Recursive halving and doubling: g(x) = 2 lg n alpha + 2(n-1)/n x/B + (n-1)/n x gamma.

    When n is no power of two, p = 2^floor(lg n) takes n's place and folding the others in and out
    adds 2 alpha + 2 x/B + x gamma (Thakur, Rabenseifner, Gropp 2005, section 4.5).
    """

    kind: Literal["halving-doubling"] = "halving-doubling"

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        return collectives.halving_doubling(workers, self)

    def halves(self, workers: int) -> tuple[CostCurve, CostCurve]:
        """Return what a reduce-scatter and an all-gather cost."""
        return collectives.halving_doubling_halves(workers, self)


class TreeAllReduce(_Network, _AllReduce):
    """Binary tree, reduce then broadcast: g(x) = ceil(lg n) (2 alpha + 2 x/B + x gamma)."""

    kind: Literal["tree"] = "tree"

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        return collectives.tree(workers, self)

    def halves(self, workers: int) -> tuple[CostCurve, CostCurve]:
        """Return what a reduce-scatter and an all-gather cost."""
        return collectives.tree_halves(workers, self)


class NetworkLevel(_Network):
    """One level of a two-level network."""


class TwoLevelAllReduce(_AllReduce):
    """Reduce-scatter inside each node, ring between nodes, all-gather inside each node.

    g(x) = ring over workers_per_node at `intra` + ring over the nodes at `inter`: the shards of one
    node's workers cross its network link together, so a node sends 2(m-1)/m x bytes for m nodes.
    """

    kind: Literal["two-level"] = "two-level"
    intra: NetworkLevel
    inter: NetworkLevel
    workers_per_node: Annotated[int, Field(ge=1)]

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers; ValueError if they do not fill whole nodes."""
        return collectives.two_level(workers, self.workers_per_node, self.intra, self.inter)

    def halves(self, workers: int) -> tuple[CostCurve, CostCurve]:
        """Return what a reduce-scatter and an all-gather cost; ValueError as ``cost`` raises it."""
        return collectives.two_level_halves(workers, self.workers_per_node, self.intra, self.inter)

    def with_changes(self, change: NetworkChange) -> Self:
        """Change the network between the nodes."""
        return self.model_copy(update={"inter": self.inter.with_changes(change)})


Algorithm = Literal["ring", "tree", "halving-doubling", "two-level"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

ON_ONE_LEVEL: dict[Algorithm, type[RingAllReduce | HalvingDoublingAllReduce | TreeAllReduce]] = {
    "ring": RingAllReduce,
    "tree": TreeAllReduce,
    "halving-doubling": HalvingDoublingAllReduce,
}
"""Algorithms whose formula needs the bandwidth and the latency of one link."""

AllReduce = Annotated[
    AffineAllReduce
    | SampledAllReduce
    | RingAllReduce
    | HalvingDoublingAllReduce
    | TreeAllReduce
    | TwoLevelAllReduce
    | PushPull,
    Field(discriminator="kind"),
]


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
