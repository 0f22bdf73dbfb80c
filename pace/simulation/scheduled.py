"""PACE's schedules as a policy: with real segments, or as if preemption were free."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Fusion, Schedule
from pace.planning.allreduce.optimize import plan_for
from pace.planning.allreduce.realize import RealizedPlan
from pace.planning.fusion.problem import FusionProblem
from pace.planning.fusion.search import fuse
from pace.simulation.grouped import GroupedSender
from pace.simulation.knobs import knobs
from pace.simulation.traffic import Rules, Traffic
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.one_machine import Instance, solve


@knobs
class Scheduled:
    """PACE's schedules: segments in planned order, without a barrier.

    Attributes
    ----------
    fusion
        The fusion search.
    preemption
        "real": segments that each take the full g of their bytes and cannot be recalled. "free": the oracle's
        schedule of the best groups, as in the model of the PACE paper.
    framework
        "ddp": the best list of buckets for DDP, sent first in, first out to a barrier.
    """

    fusion: Fusion = "optimal"
    preemption: Literal["real", "free"] = "real"
    framework: Literal["ddp"] | None = None

    def prepare(self, profile: Profile) -> "GroupedSender | FreelyPreempting":
        """Optimize for the profile."""
        if self.preemption == "real":
            plan = plan_for(profile, Options(fusion=self.fusion, framework=self.framework))
            return _sender_of_plan(profile, plan, barrier=self.framework is not None)
        problem = FusionProblem.of(profile)
        partition = fuse(problem, Options(fusion=self.fusion)).partitions[0]
        return FreelyPreempting(
            groups=partition,
            sizes=problem.sizes,
            tail_s=problem.tail,
            cost=problem.cost,
            rules=Rules(in_order=True, ideal=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Follows one schedule, whatever a profile's ops and costs are, as training does.

    Attributes
    ----------
    barrier
        Whether updates wait for all gradients; None: if the schedule is for a framework with a barrier.
    """

    schedule: Schedule
    barrier: bool | None = None

    def prepare(self, profile: Profile) -> GroupedSender:
        """Return what sends the schedule's segments strictly in order of priority."""
        sender = sender_of(profile, self.schedule)
        if self.barrier is None:
            return sender
        return replace(sender, rules=replace(sender.rules, barrier=self.barrier))


def _sender_of_plan(profile: Profile, plan: RealizedPlan, *, barrier: bool) -> GroupedSender:
    sending = plan.sending
    return GroupedSender(
        groups=plan.partition,
        segment_groups=sending.groups,
        segment_bytes=sending.elements * plan.buffers.element_bytes[sending.groups],
        cost=profile.clocked_cost,
        rules=Rules(in_order=True, barrier=barrier),
        num_gradients=len(profile.gradients),
        priority=np.arange(len(sending.groups), dtype=np.float64),
    )


def sender_of(profile: Profile, schedule: Schedule) -> GroupedSender:
    """Return a sender for a schedule of this profile; it sends segments strictly in order of priority."""
    index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
    return GroupedSender(
        groups=tuple(tuple(index[name] for name in group.tensors) for group in schedule.groups),
        segment_groups=np.array([segment.group for segment in schedule.transfers], dtype=np.int64),
        segment_bytes=np.array([segment.size_bytes for segment in schedule.transfers], dtype=np.int64),
        cost=profile.clocked_cost,
        rules=Rules(in_order=True, barrier=schedule.framework is not None),
        num_gradients=len(profile.gradients),
        priority=np.array([segment.priority for segment in schedule.transfers], dtype=np.float64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FreelyPreempting:
    """Serves fixed groups by longest tail, preempting at no cost."""

    groups: tuple[tuple[int, ...], ...]
    sizes: IntArray
    tail_s: FloatArray
    cost: CostCurve
    rules: Rules

    def traffic(self, ready_s: FloatArray) -> Traffic:
        """Return the pieces of the oracle's schedule as transfers, with bytes in proportion to their time."""
        members = [list(group) for group in self.groups]
        sizes = np.array([self.sizes[group].sum() for group in members], dtype=np.int64)
        instance = Instance(
            ready=np.array([ready_s[group].max() for group in members]),
            processing=self.cost(sizes),
            tail=np.array([self.tail_s[group].max() for group in members]),
        )
        solution = solve(instance)
        durations = solution.ends - solution.starts
        total = instance.processing[solution.jobs]
        pieces = [np.flatnonzero(solution.jobs == group) for group in range(len(members))]
        carriers = [np.zeros(0, dtype=np.int64)] * len(self.sizes)
        for group, of_group in zip(self.groups, pieces, strict=True):
            for gradient in group:
                carriers[gradient] = of_group
        return Traffic(
            release_s=solution.starts,
            duration_s=durations,
            size_bytes=np.round(sizes[solution.jobs] * durations / total).astype(np.int64),
            priority=np.arange(len(durations), dtype=np.float64),
            after=np.full(len(durations), -1, dtype=np.int64),
            carriers=tuple(carriers),
        )
