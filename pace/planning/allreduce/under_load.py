"""What plans take under load: late ranks, and calls that take longer while compute runs.

Where a profile does not say how large both are, they are assumed. An assumption decides between plans; it
changes no predicted window and no bound.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pace.documents.options import Options, Risk
from pace.documents.profile import Profile
from pace.documents.schedule import Fusion
from pace.planning.allreduce.fewer_calls import Call
from pace.planning.frameworks.grouping_rules import ddp_buckets
from pace.planning.fusion.problem import FusionProblem, Grouping, Partition
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.loaded import CallCosts, Calls, Compute, LoadedRun, LoadedWindows
from pace.solver.sending import Buffers, Sending, send_in_order
from pace.solver.whole_groups import MOST_GRADIENTS

if TYPE_CHECKING:
    from pace.planning.allreduce.realize import RealizedPlan

SEED = 20200706
NUM_WINDOWS = 16
# So many plans are priced in all windows; twice as many of few gradients.
MOST_PLANS = 12
# Measured over NCCL: 1 to 1.5 ms a call beside ResNet-50. A job whose iteration is short has shorter kernels.
ASSUMED_DELTA_S = 1.25e-3
MOST_OF_WINDOW = 0.1
# How many changes of cuts are tried in how many calls of all windows, and by how many calls a plan may grow.
MOST_RECUTS = 2000
MOST_REPLAYED = 200_000
MOST_ADDED = 16
# Standard deviation of an op's duration, relative to its mean; and of a rank's speed.
OP_DEVIATION = 0.05
RANK_DEVIATION = 0.02


@dataclass(frozen=True, kw_only=True)
class UnderLoad:
    """The load of a profile, stated or assumed, on the compute clock."""

    profile: Profile
    problem: FusionProblem
    risk: Risk = "mean"
    fusion: Fusion = "optimal"
    _spreads: dict[Partition, FloatArray] = field(default_factory=dict)

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
    def _spread(self) -> FloatArray:
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
    def _compute(self) -> Compute:
        problem = self.problem
        spread = float(self._spread.max(initial=0.0))
        return Compute(
            backward_s=problem.backward_s,
            backward_spread_s=spread,
            forward_s=problem.compute_s - problem.backward_s,
        )

    @cached_property
    def _random(self) -> LoadedWindows:
        return self._sample(NUM_WINDOWS if self._deviation or self._spread.any() else 1)

    @cached_property
    def _typical(self) -> LoadedWindows:
        return self._sample(1)

    @property
    def _deviation(self) -> float:
        return RANK_DEVIATION if self._sigma is None and not self._assumes_nothing else 0.0

    def _sample(self, count: int) -> LoadedWindows:
        return LoadedWindows.sample(self.profile.workers, count=count, deviation=self._deviation, seed=SEED)

    @cached_property
    def loaded_cost(self) -> CostCurve:
        """What an all-reduce takes while compute runs, stated or assumed, on the compute clock."""
        return self.problem.cost.plus(self.extra)

    def replayed(self, plan: "RealizedPlan") -> "RealizedPlan":
        """Return the plan with the times that it takes in the mean window, with the stated extra time."""
        if self.problem.extra is None:
            return plan
        calls = self._calls(plan.partition, plan.buffers, plan.sending, self.problem.extra)
        found = LoadedWindows.mean().replay(self._compute, calls)
        objective = float(found.windows[0])
        sending = replace(plan.sending, starts=found.starts, ends=found.ends, objective=objective)
        return replace(plan, sending=sending)

    def expected_s(self, plan: "RealizedPlan") -> float:
        """Return the mean of the windows in seconds, or their 95th percentile, in wall time."""
        return self._expected_s(plan, self._random)

    def ddp_s(self) -> float:
        """Return the expected window of DDP's default buckets, sent first in, first out to a barrier."""
        problem = FusionProblem.of(self.profile, barrier=True)
        buckets = ddp_buckets(problem)
        partition = buckets + problem.unsent()
        buffers = problem.buffers(partition)
        numbers = np.arange(len(buckets))
        sending = send_in_order(buffers, numbers, buffers.elements[numbers], problem.cost)
        calls = self._calls(partition, buffers, sending, self.extra)
        return self._window_s(self._random.replay(self._compute, calls))

    def shortlist(self, plans: list["RealizedPlan"]) -> list["RealizedPlan"]:
        """Return the plans that are fastest in one window, with any and with each small number of calls.

        So few are priced in all windows.
        """
        most = MOST_PLANS * (2 if len(self.problem.sizes) <= MOST_GRADIENTS else 1)
        if len(plans) <= most:
            return plans
        rough_s = [self._expected_s(plan, self._typical) for plan in plans]
        by_window = sorted(range(len(plans)), key=rough_s.__getitem__)
        kept = set(by_window[:most])
        of_calls: dict[int, int] = {}
        for number in by_window:
            of_calls.setdefault(len(plans[number].sending.groups), number)
        kept |= {number for calls, number in of_calls.items() if calls <= MOST_PLANS}
        return [plans[number] for number in sorted(kept)]

    def _expected_s(self, plan: "RealizedPlan", random: LoadedWindows) -> float:
        calls = self._calls(plan.partition, plan.buffers, plan.sending, self.extra)
        return self._window_s(random.replay(self._compute, calls))

    def _window_s(self, found: LoadedRun) -> float:
        windows = found.windows + (self.problem.slowdown - 1) * found.busy
        if self.risk == "mean":
            return float(np.add.reduce(windows)) / len(windows)
        return float(np.percentile(windows, 95))

    def merges(self, calls: list[Call], options: Options) -> list[tuple[int, int, float]]:
        """Merge a call with the next one of its kind, again and again; return their places, and the window.

        Each time it is the two after which the expected window, in seconds, is shortest. They are sent in
        place of the second one.
        """
        from pace.solver.kernels import loaded as kernel

        cut = float(options.max_segment_bytes or np.inf)
        whole = min(cut, float(options.max_group_bytes or np.inf))
        merges, means = np.empty((len(calls), 2), dtype=np.int64), np.empty(len(calls))
        problem = self.problem
        lasts = [max(call.members, key=lambda number: problem.ready[number]) for call in calls]
        count = kernel.merge_greedily(
            np.array([problem.ready[last] for last in lasts]),
            np.array([self._spread[last] for last in lasts]),
            np.array([problem.tail[list(call.members)].max() for call in calls]),
            np.array([float(call.size_bytes) for call in calls]),
            np.array([call.kind for call in calls], dtype=np.int64),
            np.array([whole if call.kind < 0 else cut for call in calls]),
            *self._windows(),
            merges,
            means,
        )
        places = zip(merges[:count].tolist(), means[:count].tolist(), strict=True)
        return [(first, second, seconds) for (first, second), seconds in places]

    def _windows(self) -> tuple[CallCosts, Compute, LoadedWindows]:
        """Return what kernels need of costs, of compute and of the common random windows."""
        problem = self.problem
        costs = CallCosts(cost=problem.cost.knots(), extra=self.extra.knots(), slowdown=problem.slowdown)
        return costs, self._compute, self._random

    def regrouped(self, partition: Partition, patience_s: float, options: Options) -> Partition:
        """Search for better groups, at random; calls are cut with this patience (``cut_while_sending``)."""
        from pace.solver.kernels.regroup import regroup

        problem, grouping = self.problem, Grouping.of(self.problem, partition)
        members = grouping.members
        regroup(
            grouping.group_of,
            problem.dtypes[members],
            grouping.orders,
            grouping.places,
            problem.ready[members],
            self._spread[members],
            problem.tail[members],
            problem.sizes[members] // problem.element_bytes[members],
            problem.element_bytes[members].astype(np.float64),
            *self._windows(),
            patience_s,
            float(options.max_segment_bytes or np.inf),
            float(options.max_group_bytes or np.inf),
            options.search_calls,
            SEED,
        )
        return grouping.partition() + problem.unsent()

    def recut(self, plan: "RealizedPlan", options: Options) -> tuple[IntArray, IntArray]:
        """Search for better cuts and a better order of a plan's groups, at random.

        Returns the group and the number of elements of each call.
        """
        from pace.solver.kernels.recut import recut

        buffers, sending = plan.buffers, plan.sending
        calls = len(sending.groups)
        room = np.zeros(max(2 * calls, calls + MOST_ADDED), dtype=np.int64)
        groups, counts = room.copy(), room.copy()
        groups[:calls], counts[:calls] = sending.groups, sending.elements
        sent = np.unique(sending.groups)
        found = recut(
            buffers.ready,
            self._spread_of(plan.partition),
            buffers.tail,
            sent[np.argsort(-buffers.tail[sent], kind="stable")],
            buffers.element_bytes.astype(np.float64),
            *self._windows(),
            float(options.max_segment_bytes or np.inf),
            min(MOST_RECUTS, MOST_REPLAYED // (calls * len(self._random.slower))),
            SEED,
            groups,
            counts,
            calls,
        )
        return groups[:found], counts[:found]

    def _spread_of(self, partition: Partition) -> FloatArray:
        if partition not in self._spreads:
            members = np.fromiter(chain.from_iterable(partition), dtype=np.int64)
            firsts = np.cumsum([0, *map(len, partition)])[:-1]
            found = np.maximum.reduceat(self._spread[members], firsts) if len(members) else np.zeros(0)
            self._spreads[partition] = found
        return self._spreads[partition]

    def _calls(self, partition: Partition, buffers: Buffers, sending: Sending, extra: CostCurve) -> Calls:
        groups = sending.groups
        sizes = sending.elements * buffers.element_bytes[groups]
        return Calls(
            ready=buffers.ready,
            spread=self._spread_of(partition),
            tail=buffers.tail,
            groups=groups,
            durations=self.problem.cost(sizes),
            extra=extra(sizes),
        )
