"""The gradients of a profile as the search for a sharded plan sees them."""

from dataclasses import dataclass

import numpy as np

from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost import CostCurve
from pace.solver.two_halves.calls import Half

# What ranks exchange for the norm: the sum of squares as one float64, in which infinities and NaN show too.
NORM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingProblem:
    """Gradients, what each half costs, and whether a norm lies between the halves.

    Attributes
    ----------
    gradients
        With the tail of each gradient's own consumers, whatever the update rule.
    reduce_scatter, all_gather
        What they cost, on the compute clock (``pace.solver.compute_clock``) as everything here.
    norm_s
        How long the exchange of the norm takes; None where updates wait for their own gradients only.
    """

    gradients: FusionProblem
    reduce_scatter: CostCurve
    all_gather: CostCurve
    norm_s: float | None
    workers: int

    @classmethod
    def of(cls, profile: Profile) -> "ShardingProblem":
        """Build from a profile; raises InvalidOptions where gradients have no such halves."""
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

    @property
    def floor_s(self) -> float:
        """The window if nothing took time on the network; gradients without bytes are there when ready."""
        problem = self.gradients
        unsent = problem.sizes == 0
        waits = problem.ready[unsent] + problem.tail[unsent]
        return max(problem.compute_s, float(np.max(waits, initial=0.0)))

    def stretch_s(self, carried_s: float) -> float:
        """Return how much longer a window is than on the compute clock, where segments take `carried_s`.

        The exchange of the norm is carried besides them.
        """
        norm_s = self.norm_s or 0.0 if self.gradients.sizes.any() else 0.0
        return self.gradients.stretch_s(carried_s + norm_s)

    @property
    def elements(self) -> IntArray:
        """Elements of every gradient."""
        return self.gradients.sizes // self.gradients.element_bytes

    def scattered(self, partition: Partition) -> Half:
        """Return reduce-scatters of these groups, without padding."""
        return Half.of(partition, self.gradients.ready, self.gradients.sizes)

    def gathered(self, partition: Partition) -> Half:
        """Return all-gathers of these groups, without padding."""
        return Half.of(partition, self.gradients.tail, self.gradients.sizes)

    def chains(self) -> list[tuple[IntArray, IntArray]]:
        """Return, for each dtype with bytes to send, its gradients by ready time and by tail."""
        problem = self.gradients
        by_tail = problem.sent_by_tail()
        return [(members, by_tail[np.isin(by_tail, members)]) for members in problem.classes()]

    def with_whole_cost(self) -> FusionProblem:
        """Return the problem of all-reduces that cost what both halves do together."""
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
    """Return a curve's durations with its latency, and not 0, where a size is 0."""
    return np.where(sizes > 0, curve(sizes), curve.durations_s[0])
