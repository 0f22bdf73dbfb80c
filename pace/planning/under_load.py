"""What plans take under load: late ranks, and calls that take longer while compute runs.

Where a profile does not say how large both are, they are assumed. An assumption decides between plans; it
changes no predicted window and no bound.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from pace.documents.options import Risk
from pace.documents.profile import Profile
from pace.documents.schedule import Fusion
from pace.planning.frameworks.grouping_rules import ddp_buckets
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.solver.arrays import FloatArray
from pace.solver.cost_curve import CostCurve
from pace.solver.loaded import Calls, Compute, LoadedRun, LoadedWindows
from pace.solver.whole_groups import MOST_GRADIENTS

SEED = 20200706
NUM_WINDOWS = 16
# Measured over NCCL: 1 to 1.5 ms a call beside ResNet-50. A job whose iteration is short has shorter kernels.
ASSUMED_DELTA_S = 1.25e-3
MOST_OF_WINDOW = 0.1
# Standard deviation of an op's duration, relative to its mean; and of a rank's speed.
OP_DEVIATION = 0.05
RANK_DEVIATION = 0.02


@dataclass(frozen=True, kw_only=True)
class UnderLoad:
    """The load of a profile, stated or assumed, on the compute clock.

    Attributes
    ----------
    problem
        The profile's gradients.
    risk
        What to minimize.
    fusion
        How groups are found. Only for "optimal" fusion, load is assumed.
    """

    profile: Profile
    problem: FusionProblem
    risk: Risk = "mean"
    fusion: Fusion = "optimal"
    _spread_of: dict[Partition, FloatArray] = field(default_factory=dict)

    @cached_property
    def extra(self) -> CostCurve:
        """How much longer a call takes while compute runs, stated or assumed."""
        if self.problem.extra is not None:
            return self.problem.extra
        problem = self.problem
        window_s = max(problem.compute_s, float(problem.cost(problem.sizes.sum())))
        assumed = min(ASSUMED_DELTA_S, MOST_OF_WINDOW * window_s)
        stated = self.profile.load is not None and self.profile.load.delta is not None
        if stated or self._assumes_nothing or self.profile.workers == 1:
            assumed = 0.0
        return CostCurve.affine(assumed / self.problem.slowdown, 0.0)

    @property
    def _sigma(self) -> dict[str, float] | None:
        return None if self.profile.load is None else self.profile.load.sigma

    @property
    def _assumes_nothing(self) -> bool:
        # Other fusions are as their sources say; and of few gradients all plans of whole groups are compared.
        return self.fusion != "optimal" or int(np.count_nonzero(self.problem.sizes)) <= MOST_GRADIENTS

    @cached_property
    def spread(self) -> FloatArray:
        """Standard deviation of each gradient's ready time over ranks, in seconds."""
        ready = self.problem.ready
        if self._sigma is not None:
            ends = zip(self.profile.ops, self.profile.graph.end_times().tolist(), strict=True)
            known = sorted((end, self._sigma[op.name]) for op, end in ends if op.name in self._sigma)
            if not known:
                return np.zeros_like(ready)
            at, seconds = zip(*known, strict=True)
            return np.asarray(np.interp(ready, at, seconds))
        if self._assumes_nothing:
            return np.zeros_like(ready)
        durations = self.profile.graph.durations_s
        total = float(durations.sum())
        measured = np.array([op.duration_std_s for op in self.profile.ops])
        variance = np.where(measured > 0, measured, OP_DEVIATION * durations) ** 2
        return np.asarray(np.sqrt(ready * (float(variance.sum()) / total if total else 0.0)))

    @cached_property
    def compute(self) -> Compute:
        """The compute of a mean window."""
        problem = self.problem
        spread = float(self.spread.max(initial=0.0))
        return Compute(
            backward_s=problem.backward_s,
            backward_spread_s=spread,
            forward_s=problem.compute_s - problem.backward_s,
        )

    @cached_property
    def windows(self) -> LoadedWindows:
        """Random windows, the same for all plans."""
        return self._sample(NUM_WINDOWS if self._deviation or self.spread.any() else 1)

    @cached_property
    def typical(self) -> LoadedWindows:
        """One of these windows, to find out which plans are worth more."""
        return self._sample(1)

    @property
    def _deviation(self) -> float:
        return RANK_DEVIATION if self._sigma is None and not self._assumes_nothing else 0.0

    def _sample(self, count: int) -> LoadedWindows:
        return LoadedWindows.sample(self.profile.workers, count=count, deviation=self._deviation, seed=SEED)

    def expected_window_s(self, calls: Calls, windows: LoadedWindows | None = None) -> float:
        """Return the mean of the windows of these calls, or their 95th percentile; wall time in seconds.

        Parameters
        ----------
        windows
            Only these windows; default: all of ``windows``.
        """
        return self._window_s((windows or self.windows).replay(self.compute, calls))

    def ddp_s(self) -> float:
        """Return the expected window of DDP's default buckets, sent first in, first out to a barrier."""
        problem = FusionProblem.of(self.profile, barrier=True)
        buckets = ddp_buckets(problem)
        partition = buckets + problem.unsent()
        buffers = problem.buffers(partition)
        sizes = buffers.sizes[: len(buckets)]
        calls = Calls(
            ready=buffers.ready,
            spread=self.spread_of(partition),
            tail=buffers.tail,
            groups=np.arange(len(buckets)),
            durations=problem.cost(sizes),
            extra=self.extra(sizes),
        )
        return self.expected_window_s(calls)

    def _window_s(self, found: LoadedRun) -> float:
        windows = found.windows + (self.problem.slowdown - 1) * found.busy
        if self.risk == "mean":
            return float(np.add.reduce(windows)) / len(windows)
        return float(np.percentile(windows, 95))

    def spread_of(self, partition: Partition) -> FloatArray:
        """Return by how much each group is late if ranks are one standard deviation late, in seconds."""
        if partition not in self._spread_of:
            members = np.fromiter(chain.from_iterable(partition), dtype=np.int64)
            firsts = np.cumsum([0, *map(len, partition)])[:-1]
            found = np.maximum.reduceat(self.spread[members], firsts) if len(members) else np.zeros(0)
            self._spread_of[partition] = found
        return self._spread_of[partition]
