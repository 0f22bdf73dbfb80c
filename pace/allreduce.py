"""What one all-reduce costs: the documents and their formulas.

Each document gives the curve g (``pace.solver.cost``) for a number of workers. One worker has nothing to
reduce, so g is 0 there.

Symbols in the formulas: n workers, alpha latency of one message in seconds, B bandwidth of one
link in bytes per second, gamma seconds to reduce one byte.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pace.solver.cost import CostCurve

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]


FREE = CostCurve.affine(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChange:
    """What is to change of a network; None keeps what there is.

    Attributes
    ----------
    measured_workers
        How many workers a measured cost was measured with.
    latency_s
        Of one message.
    """

    measured_workers: int
    workers: int | None = None
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None


def _kind_is_required(schema: dict[str, Any]) -> None:
    # In Python the class says which kind it is; a document has only the field.
    if "kind" in schema["properties"]:
        schema["required"] = ["kind", *schema.get("required", [])]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_kind_is_required)


class AffineAllReduce(_Document):
    """g(x) = latency_s + x * seconds_per_byte, as measured at the profile's number of workers."""

    kind: Literal["affine"] = "affine"
    latency_s: NonNegative
    seconds_per_byte: NonNegative

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        if workers == 1:
            return FREE
        return CostCurve.affine(self.latency_s, self.seconds_per_byte)

    def with_changes(self, change: NetworkChange) -> "RingAllReduce":
        """Read the line as a ring's (eq. 1) and change its parts; `latency_s` is per message."""
        steps, volume = _ring_factors(change.measured_workers)
        if not steps:
            raise ValueError("a cost measured with one worker says nothing about a network")
        # Workers change nothing here: a ring's document holds for every number of them.
        bandwidth = change.bandwidth_bytes_per_s
        if bandwidth is None:
            if self.seconds_per_byte == 0:
                raise ValueError("a cost of 0 s per byte has no bandwidth to keep: give one")
            bandwidth = volume / self.seconds_per_byte
        latency = self.latency_s / steps if change.latency_s is None else change.latency_s
        return RingAllReduce(bandwidth_bytes_per_s=bandwidth, latency_s=latency)


class SampledAllReduce(_Document):
    """g through measured (bytes, seconds) pairs, in any order, noise and repeats allowed.

    Repeats are averaged and decreases smoothed by isotonic regression (weighted by repeats), so
    that g never falls. Below the smallest sample g is constant; beyond the largest it goes on with
    the last slope that is not zero.
    """

    kind: Literal["samples"] = "samples"
    samples: Annotated[tuple[tuple[AtLeastOne, NonNegative], ...], Field(min_length=1)]

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        if workers == 1:
            return FREE
        sizes, inverse, counts = np.unique(
            [size for size, _ in self.samples], return_inverse=True, return_counts=True
        )
        means = np.bincount(inverse, weights=[seconds for _, seconds in self.samples]) / counts
        if np.any(np.diff(means) < 0):
            from scipy.optimize import isotonic_regression  # 0.2 s to import, and only noise needs it

            means = np.asarray(isotonic_regression(means, weights=counts).x)
        slopes = np.diff(means) / np.diff(sizes)
        rising = slopes[slopes > 0]
        last = float(rising[-1]) if rising.size else float(means[-1] / sizes[-1])
        return CostCurve(
            sizes_bytes=tuple(sizes.tolist()), durations_s=tuple(means.tolist()), slope_beyond=last
        )

    def with_changes(self, change: NetworkChange) -> Self:
        """Scale the samples as a ring would scale (eq. 1); `latency_s` is per message.

        The smallest sample's duration counts as latency, what is above it as volume. A bandwidth
        is compared with the one that the largest sample reached.
        """
        steps, volume = _ring_factors(change.measured_workers)
        if not steps:
            raise ValueError("samples measured with one worker say nothing about a network")
        workers = change.measured_workers if change.workers is None else change.workers
        new_steps, new_volume = _ring_factors(workers)
        ordered = sorted(self.samples)
        floor = min(seconds for _, seconds in ordered)
        scale = new_volume / volume
        if change.bandwidth_bytes_per_s is not None:
            size, seconds = ordered[-1]
            if seconds <= floor:
                raise ValueError("samples that do not rise reach no bandwidth to compare with")
            scale *= volume * size / (seconds - floor) / change.bandwidth_bytes_per_s
        new_floor = (floor / steps if change.latency_s is None else change.latency_s) * new_steps
        changed = tuple((size, new_floor + (seconds - floor) * scale) for size, seconds in ordered)
        return self.model_copy(update={"samples": changed})


class _Network(_Document):
    bandwidth_bytes_per_s: Positive
    latency_s: NonNegative
    reduce_bytes_per_s: Positive | None = None

    def with_changes(self, change: NetworkChange) -> Self:
        """Change the network; a formula takes the number of workers when it is evaluated."""
        changes = {"bandwidth_bytes_per_s": change.bandwidth_bytes_per_s, "latency_s": change.latency_s}
        return self.model_copy(update={name: value for name, value in changes.items() if value is not None})


class _NetworkAllReduce(_Network):
    def _cost(self, workers: int, messages: float, sent: float, reduced: float) -> CostCurve:
        if workers == 1:
            return FREE
        gamma = 0.0 if self.reduce_bytes_per_s is None else 1.0 / self.reduce_bytes_per_s
        return CostCurve.affine(
            messages * self.latency_s, sent / self.bandwidth_bytes_per_s + reduced * gamma
        )


def _ring_factors(workers: int) -> tuple[int, float]:
    """Return the messages of a ring all-reduce and the share of the buffer that each worker sends."""
    return 2 * (workers - 1), 2 * (workers - 1) / workers


class RingAllReduce(_NetworkAllReduce):
    """Ring: g(x) = 2(n-1) alpha + 2(n-1)/n x/B + (n-1)/n x gamma (the PACE paper's eq. 1)."""

    kind: Literal["ring"] = "ring"

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        messages, sent = _ring_factors(workers)
        return self._cost(workers, messages, sent, sent / 2)


class HalvingDoublingAllReduce(_NetworkAllReduce):
    """Recursive halving and doubling: g(x) = 2 lg n alpha + 2(n-1)/n x/B + (n-1)/n x gamma.

    When n is no power of two, p = 2^floor(lg n) takes n's place and folding the others in and out
    adds 2 alpha + 2 x/B + x gamma (Thakur, Rabenseifner, Gropp 2005, section 4.5).
    """

    kind: Literal["halving-doubling"] = "halving-doubling"

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        rounds = workers.bit_length() - 1
        power = 1 << rounds
        folded = 0 if power == workers else 1
        share = (power - 1) / power
        return self._cost(workers, 2 * (rounds + folded), 2 * (share + folded), share + folded)


class TreeAllReduce(_NetworkAllReduce):
    """Binary tree, reduce then broadcast: g(x) = ceil(lg n) (2 alpha + 2 x/B + x gamma)."""

    kind: Literal["tree"] = "tree"

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        depth = math.ceil(math.log2(workers))
        return self._cost(workers, 2 * depth, 2 * depth, depth)


class NetworkLevel(_Network):
    """One level of a two-level network."""


class TwoLevelAllReduce(_Document):
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
        local = min(self.workers_per_node, workers)
        if workers % local:
            raise ValueError(f"{workers} workers do not fill nodes of {local}")
        levels = ((self.intra, local), (self.inter, workers // local))
        lines = [RingAllReduce(**level.model_dump()).cost(count).line for level, count in levels]
        return CostCurve.affine(
            sum(line.latency_s for line in lines if line),
            sum(line.seconds_per_byte for line in lines if line),
        )

    def with_changes(self, change: NetworkChange) -> Self:
        """Change the network between the nodes."""
        return self.model_copy(update={"inter": self.inter.with_changes(change)})


AllReduce = Annotated[
    AffineAllReduce
    | SampledAllReduce
    | RingAllReduce
    | HalvingDoublingAllReduce
    | TreeAllReduce
    | TwoLevelAllReduce,
    Field(discriminator="kind"),
]
