"""What plans of all-reduces take under load, and better groups and cuts for it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pace.documents.options import Options
from pace.planning.allreduce.fewer_calls import Call
from pace.planning.fusion.problem import Grouping, Partition
from pace.planning.under_load import SEED, UnderLoad
from pace.solver.arrays import IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.loaded import CallCosts, Calls, Compute, LoadedWindows
from pace.solver.whole_groups import MOST_GRADIENTS

if TYPE_CHECKING:
    from pace.planning.allreduce.realize import RealizedPlan

# So many plans are priced in all windows; twice as many of few gradients.
MOST_PLANS = 12
# How many changes of cuts are tried in how many calls of all windows, and by how many calls a plan may grow.
MOST_RECUTS = 2000
MOST_REPLAYED = 200_000
MOST_ADDED = 16


@dataclass(frozen=True, kw_only=True)
class AllReducesUnderLoad(UnderLoad):
    """The load of a profile whose gradients are summed by all-reduces."""

    def replayed(self, plan: "RealizedPlan") -> "RealizedPlan":
        """Return the plan with the times that it takes in the mean window, with the stated extra time."""
        if self.problem.extra is None:
            return plan
        calls = self.calls(plan, self.problem.extra)
        found = LoadedWindows.mean().replay(self.compute, calls)
        objective = float(found.windows[0])
        sending = replace(plan.sending, starts=found.starts, ends=found.ends, objective=objective)
        return replace(plan, sending=sending)

    def expected_s(self, plan: "RealizedPlan") -> float:
        """Return the mean of the windows in seconds, or their 95th percentile, in wall time."""
        return self.expected_window_s(self.calls(plan, self.extra))

    def shortlist(self, plans: list["RealizedPlan"]) -> list["RealizedPlan"]:
        """Return the plans that are fastest in one window, with any and with each small number of calls.

        So few are priced in all windows.
        """
        most = MOST_PLANS * (2 if len(self.problem.sizes) <= MOST_GRADIENTS else 1)
        if len(plans) <= most:
            return plans
        rough_s = [self.expected_window_s(self.calls(plan, self.extra), self.typical) for plan in plans]
        by_window = sorted(range(len(plans)), key=rough_s.__getitem__)
        kept = set(by_window[:most])
        of_calls: dict[int, int] = {}
        for number in by_window:
            of_calls.setdefault(len(plans[number].sending.groups), number)
        kept |= {number for calls, number in of_calls.items() if calls <= MOST_PLANS}
        return [plans[number] for number in sorted(kept)]

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
            np.array([self.spread[last] for last in lasts]),
            np.array([problem.tail[list(call.members)].max() for call in calls]),
            np.array([float(call.size_bytes) for call in calls]),
            np.array([call.kind for call in calls], dtype=np.int64),
            np.array([whole if call.kind < 0 else cut for call in calls]),
            *self._in_kernels(),
            merges,
            means,
        )
        places = zip(merges[:count].tolist(), means[:count].tolist(), strict=True)
        return [(first, second, seconds) for (first, second), seconds in places]

    def _in_kernels(self) -> tuple[CallCosts, Compute, LoadedWindows]:
        """Return what kernels need of costs, of compute and of the common random windows."""
        problem = self.problem
        costs = CallCosts(cost=problem.cost.knots(), extra=self.extra.knots(), slowdown=problem.slowdown)
        return costs, self.compute, self.windows

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
            self.spread[members],
            problem.tail[members],
            problem.sizes[members] // problem.element_bytes[members],
            problem.element_bytes[members].astype(np.float64),
            *self._in_kernels(),
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
            self.spread_of(plan.partition),
            buffers.tail,
            sent[np.argsort(-buffers.tail[sent], kind="stable")],
            buffers.element_bytes.astype(np.float64),
            *self._in_kernels(),
            float(options.max_segment_bytes or np.inf),
            min(MOST_RECUTS, MOST_REPLAYED // (calls * len(self.windows.slower))),
            SEED,
            groups,
            counts,
            calls,
        )
        return groups[:found], counts[:found]

    def calls(self, plan: "RealizedPlan", extra: CostCurve) -> Calls:
        """Return a plan's calls, which take so much longer while compute runs."""
        buffers, groups = plan.buffers, plan.sending.groups
        sizes = plan.sending.elements * buffers.element_bytes[groups]
        return Calls(
            ready=buffers.ready,
            spread=self.spread_of(plan.partition),
            tail=buffers.tail,
            groups=groups,
            durations=self.problem.cost(sizes),
            extra=extra(sizes),
        )
