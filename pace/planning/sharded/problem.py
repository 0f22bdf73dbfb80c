"""The gradients of a profile and the costs of both halves, for the search for a sharded plan."""

from dataclasses import dataclass, replace

import numpy as np

from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.two_halves.calls import Half

# Bytes that ranks exchange for the norm: the sum of squares as one float64, which also shows infinity and
# NaN.
NORM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingProblem:
    """Gradients, the cost of each half, and the norm between the halves.

    All times are on the compute clock (``pace.solver.compute_clock``).

    Attributes
    ----------
    gradients
        The gradients, each with the tail of its own consumers, for any update rule.
    reduce_scatter, all_gather
        The costs of both kinds of calls.
    norm_s
        How long the exchange of the norm takes, in seconds; None if updates wait for their own gradients
        only.
    workers
        Number of ranks.
    """

    gradients: FusionProblem
    reduce_scatter: CostCurve
    all_gather: CostCurve
    norm_s: float | None
    workers: int

    @classmethod
    def of(cls, profile: Profile) -> "ShardingProblem":
        """Build from a profile.

        Raises
        ------
        InvalidOptions
            If the profile's cost has no reduce-scatters and all-gathers.
        """
        try:
            first, second = profile.clocked_half_costs
        except ValueError as error:
            raise InvalidOptions(f'profile "{profile.name}": {error}') from None
        norm_s = float(profile.clocked_cost(NORM_BYTES)) if profile.update == "global-norm" else None
        return cls(
            gradients=FusionProblem.of(profile, barrier=False),
            reduce_scatter=first,
            all_gather=second,
            norm_s=norm_s,
            workers=profile.workers,
        )

    def slower(self, extra_s: float) -> "ShardingProblem":
        """Return the problem as if each call took `extra_s` longer."""
        return replace(
            self,
            reduce_scatter=self.reduce_scatter.slower(extra_s),
            all_gather=self.all_gather.slower(extra_s),
        )

    @property
    def floor_s(self) -> float:
        """The window in seconds if transfers took no time."""
        problem = self.gradients
        unsent = problem.sizes == 0
        waits = problem.ready[unsent] + problem.tail[unsent]
        return max(problem.compute_s, float(np.max(waits, initial=0.0)))

    def stretch_s(self, carried_s: float) -> float:
        """Return by how many seconds segments that take `carried_s` lengthen a window in wall time.

        The exchange of the norm is included, as if no compute ran beside it.
        """
        norm_s = self.norm_s or 0.0 if self.gradients.sizes.any() else 0.0
        return self.gradients.stretch_s(carried_s + norm_s)

    @property
    def elements(self) -> IntArray:
        """The number of elements of each gradient."""
        return self.gradients.sizes // self.gradients.element_bytes

    def scattered(self, partition: Partition) -> Half:
        """Return the reduce-scatters of these groups, without padding."""
        return Half.of(partition, self.gradients.ready, self.gradients.sizes)

    def gathered(self, partition: Partition) -> Half:
        """Return the all-gathers of these groups, without padding."""
        return Half.of(partition, self.gradients.tail, self.gradients.sizes)

    def chains(self) -> list[tuple[IntArray, IntArray]]:
        """Return the gradients of each dtype by ready time and by tail, without gradients of no bytes."""
        problem = self.gradients
        by_tail = problem.sent_by_tail()
        return [(members, by_tail[np.isin(by_tail, members)]) for members in problem.classes()]

    def with_whole_cost(self) -> FusionProblem:
        """Return the problem with all-reduces that cost as much as both halves together."""
        first, second = self.reduce_scatter, self.all_gather
        knots = np.union1d(first.sizes_bytes, second.sizes_bytes)
        durations: FloatArray = _from_zero(first, knots) + _from_zero(second, knots)
        whole = CostCurve(
            sizes_bytes=tuple(knots.tolist()),
            durations_s=tuple(durations.tolist()),
            slope_beyond=first.slope_beyond + second.slope_beyond,
        )
        problem = self.gradients
        return FusionProblem(
            ready=problem.ready,
            tail=problem.tail,
            sizes=problem.sizes,
            element_bytes=problem.element_bytes,
            dtypes=problem.dtypes,
            compute_s=problem.compute_s,
            cost=whole,
            slowdown=problem.slowdown,
        )


def _from_zero(curve: CostCurve, sizes: FloatArray) -> FloatArray:
    """Return a curve's durations; for a size of 0 its latency instead of 0."""
    return np.where(sizes > 0, curve(sizes), curve.durations_s[0])
