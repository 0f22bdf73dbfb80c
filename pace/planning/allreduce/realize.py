"""Cuts groups into segments that a network can carry, and chooses the fastest such plan (docs/solver.md)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.planning.fusion.oracle import PricingOracle
from pace.planning.fusion.problem import FusionProblem, Partition, oracle_instance
from pace.planning.fusion.search import FusionResult
from pace.solver.arrays import IntArray
from pace.solver.cost import CostCurve
from pace.solver.one_machine import Instance
from pace.solver.sending import (
    Buffers,
    Sending,
    cut_as_solved,
    cut_while_sending,
    necessary_segments,
    send_in_order,
)
from pace.solver.whole_groups import MOST_GRADIENTS, best_whole_groups

# A group is cut only if a longer tail would wait longer than so many latencies. Each number is tried.
PATIENCE_FACTORS = (0.0, 1.0, 2.0, 4.0, 8.0, np.inf)
# Plans whose windows differ by less count as equally fast. The one that is faster on a slower network wins.
TIE = 1e-4
ROUNDING = 1e-9
SLOWER_NETWORK = 1.1
# Up to this number of slots, a double still distinguishes fractions of a slot.
MAX_SLOTS = 1e9
# Each segment is an entry of the document and a call of the network library.
MAX_SEGMENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RealizedPlan:
    """Groups, their buffers, and the segments in sending order.

    Times are on the compute clock (``pace.solver.compute_clock``), except `risk_s`.

    Attributes
    ----------
    start_slots, num_slots : arrays of shape (num_segments,)
        First slot and number of slots of each segment; None without slots.
    risk_s
        Mean or 95th percentile of the window over the scenarios, in seconds; None without scenarios.
    note
        What is known of the plan, in words, in addition to how its groups were found.
    """

    partition: Partition
    buffers: Buffers
    sending: Sending
    start_slots: IntArray | None = None
    num_slots: IntArray | None = None
    risk_s: float | None = None
    note: str = ""


def fastest_plan(
    profile: Profile, problem: FusionProblem, fusion: FusionResult, options: Options, oracle: PricingOracle
) -> RealizedPlan:
    """Return the fastest plan of the groups that a search found; with ``options.slot_s``, the oracle's plan.

    Raises
    ------
    InvalidOptions
        If slots or segments are too small.
    SolverFailed
        If the oracle finds no solution.
    """
    if options.slot_s is not None:
        return _slotted_plan(problem, fusion.partitions[0], options, oracle)
    plans = [
        RealizedPlan(partition=partition, buffers=buffers, sending=sending)
        for partition in (_in_order(problem, partition) for partition in fusion.partitions)
        for buffers in (problem.buffers(partition),)
        for sending in _sendings(buffers, problem.cost, options)
    ]
    plans, note = _with_whole_groups(problem, plans, options)
    if not options.scenarios:
        least = min(_window(problem, plan) for plan in plans)
        best = min(
            (plan for plan in plans if _window(problem, plan) <= least * (1 + TIE)),
            key=lambda plan: (window_when_slower(problem, plan), len(plan.sending.groups)),
        )
        if note and _window(problem, best) > least * (1 + ROUNDING):
            note = f"; no plan of whole groups is over {100 * TIE:g} % faster"
        return replace(best, note=note)
    from pace.planning.allreduce.scenarios import price, sample

    scenarios = sample(profile, options)
    priced = [
        replace(
            plan,
            risk_s=price(scenarios, plan.partition, plan.buffers, plan.sending, problem.cost, options)
            + stretch_s(problem, plan.sending),
        )
        for plan in plans
    ]
    return min(priced, key=lambda plan: (plan.risk_s, _window(problem, plan), len(plan.sending.groups)))


def _with_whole_groups(
    problem: FusionProblem, plans: list[RealizedPlan], options: Options
) -> tuple[list[RealizedPlan], str]:
    """For few gradients, add the fastest plan that cuts no group; return the plans and what this proves."""
    sent = problem.sent_by_ready()
    if (
        options.fusion != "optimal"
        or options.framework is not None
        or options.max_segment_bytes is not None
        or problem.slowdown != 1
        or not 0 < len(sent) <= MOST_GRADIENTS
    ):
        return plans, ""
    note = "; no plan of whole groups is faster"
    window = min(_window(problem, plan) for plan in plans)
    if window <= problem.compute_s:
        return plans, note
    order = best_whole_groups(
        problem.ready[sent],
        problem.tail[sent],
        problem.sizes[sent],
        problem.dtypes[sent],
        problem.cost,
        faster_than=window,
        max_group_bytes=options.max_group_bytes,
    )
    if order is None:
        return plans, note
    in_turn = tuple(tuple(int(sent[number]) for number in group) for group in order)
    partition = _in_order(problem, in_turn + problem.unsent())
    buffers = problem.buffers(partition)
    numbers = np.array([partition.index(group) for group in in_turn], dtype=np.int64)
    sending = send_in_order(buffers, numbers, buffers.elements[numbers], problem.cost)
    return [*plans, RealizedPlan(partition=partition, buffers=buffers, sending=sending)], note


def _window(problem: FusionProblem, plan: RealizedPlan) -> float:
    return max(plan.sending.objective, problem.compute_s) + stretch_s(problem, plan.sending)


def stretch_s(problem: FusionProblem, sending: Sending) -> float:
    """Return by how many seconds these segments lengthen a window, compared with the compute clock."""
    return problem.stretch_s(float(np.sum(sending.ends - sending.starts)))


def window_when_slower(problem: FusionProblem, plan: RealizedPlan) -> float:
    """Return the window of a plan, in its order, on a network on which every transfer takes 10 % longer."""
    sending, buffers = plan.sending, plan.buffers
    durations = (sending.ends - sending.starts) * SLOWER_NETWORK
    ends = np.cumsum(durations)
    # A segment's end follows from the start of the run of segments without a pause that it is in.
    ends += np.maximum.accumulate(buffers.ready[sending.groups] - (ends - durations))
    sent = float(np.max(ends + buffers.tail[sending.groups], initial=0.0))
    # A group without bytes is done when it is ready.
    window = max(problem.compute_s, sent, float(np.max(buffers.ready + buffers.tail, initial=0.0)))
    return window + problem.stretch_s(float(np.sum(durations)))


def _in_order(problem: FusionProblem, partition: Partition) -> Partition:
    """Sort the groups by ready time, tail and size, so that their numbers do not depend on the search."""
    buffers = problem.buffers(partition)
    sizes = zip(buffers.sizes.tolist(), buffers.element_bytes.tolist(), strict=True)
    keys = zip(buffers.ready.tolist(), buffers.tail.tolist(), sizes, partition, strict=True)
    return tuple(group for *_, group in sorted(keys))


def _sendings(buffers: Buffers, cost: CostCurve, options: Options) -> Iterator[Sending]:
    limit = float(options.max_segment_bytes or np.inf)
    _refuse_tiny_segments(buffers, limit)
    latency = cost.durations_s[0]
    for factor in PATIENCE_FACTORS if options.framework is None else (np.inf,):
        patience = factor * latency if latency > 0 or factor == 0 else np.inf
        sending = cut_while_sending(buffers, cost, patience_s=patience, max_segment_bytes=limit)
        if sending is not None:
            yield sending
    # With these groups, no policy that sends in order of ready time is faster than this plan.
    unhurried = replace(buffers, tail=np.zeros_like(buffers.tail))
    if (
        sending := cut_while_sending(unhurried, cost, patience_s=np.inf, max_segment_bytes=limit)
    ) is not None:
        yield send_in_order(buffers, sending.groups, sending.elements, cost)


def _refuse_tiny_segments(buffers: Buffers, max_segment_bytes: float) -> None:
    segments = necessary_segments(buffers.elements, buffers.element_bytes, max_segment_bytes)
    if segments > MAX_SEGMENTS:
        element = int(np.max(buffers.element_bytes))
        fitting = math.ceil(np.sum(buffers.sizes) / (MAX_SEGMENTS - len(buffers.sizes)) / element) * element
        raise InvalidOptions(
            f"max_segment_bytes of {max_segment_bytes:.0f} cuts the gradients into {segments:,} segments; "
            f"at most {MAX_SEGMENTS:,} are allowed: use {fitting}, or leave max_segment_bytes out"
        )


def _slotted_plan(
    problem: FusionProblem, partition: Partition, options: Options, oracle: PricingOracle
) -> RealizedPlan:
    partition = _in_order(problem, partition)
    buffers = problem.buffers(partition)
    instance = oracle_instance(buffers, problem.cost, options.slot_s)
    _refuse_tiny_slots(instance, options)
    solution = oracle.solve(instance)
    kept, elements = cut_as_solved(buffers, solution)
    # A group that costs nothing takes no slot: it is sent whole, in the slot in which it is ready.
    free = np.flatnonzero((instance.processing == 0) & (buffers.elements > 0))
    groups = np.concatenate([free, solution.jobs[kept]])
    elements = np.concatenate([buffers.elements[free], elements])
    starts = np.concatenate([instance.ready[free], solution.starts[kept]])
    lengths = np.concatenate([np.zeros(len(free)), (solution.ends - solution.starts)[kept]])
    order = np.argsort(starts, kind="stable")
    return RealizedPlan(
        partition=partition,
        buffers=buffers,
        sending=send_in_order(buffers, groups[order], elements[order], problem.cost),
        start_slots=starts[order].astype(np.int64),
        num_slots=lengths[order].astype(np.int64),
    )


def _refuse_tiny_slots(instance: Instance, options: Options) -> None:
    slots = float(np.max(instance.ready, initial=0.0) + np.sum(instance.processing))
    if slots > MAX_SLOTS:
        assert options.slot_s is not None
        fitting = options.slot_s * slots / MAX_SLOTS * 1.1
        raise InvalidOptions(
            f"slot_s of {options.slot_s:g} cuts the window into {slots:.2g} slots, but at most {MAX_SLOTS:g} "
            f"are allowed: use slot_s of {fitting:.2g}, or leave slot_s out"
        )
