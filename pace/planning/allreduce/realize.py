"""Cuts groups into segments that a network can carry, and chooses the fastest such plan (docs/solver.md)."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.planning.allreduce.fewer_calls import fewer_calls
from pace.planning.fusion.choice import TIE, fewest_calls
from pace.planning.fusion.oracle import PricingOracle
from pace.planning.fusion.problem import FusionProblem, Partition, oracle_instance
from pace.planning.fusion.search import FusionResult, fuse
from pace.solver.arrays import IntArray
from pace.solver.cost import CostCurve
from pace.solver.one_machine import Instance, solve
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
# The same, for groups that were found as if each call took longer.
FEW_CALLS_FACTORS = (1.0, 4.0, np.inf)
ROUNDING = 1e-9
# Up to this number of slots, a double still distinguishes fractions of a slot.
MAX_SLOTS = 1e9
# By what share of the window rounding to slots may lengthen it without a warning.
MOST_ROUNDING = 0.01
# Each segment is an entry of the document and a call of the network library.
MAX_SEGMENTS = 1_000_000


class SlotWarning(UserWarning):
    """Slots are so long that rounding to them makes the schedule worse."""


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
    """Return the plan with the fewest calls among those that are as fast as the fastest, up to a share `TIE`.

    The plans are those of the groups that a search found. With ``options.slot_s`` it is the oracle's plan.

    Raises
    ------
    InvalidOptions
        If slots or segments are too small.
    SolverFailed
        If the oracle finds no solution.
    """
    if options.slot_s is not None:
        return _slotted_plan(problem, fusion, options, oracle)
    plans, note = _with_whole_groups(problem, list(_candidates(problem, fusion, options)), options)
    value_s = _pricing(profile, problem, options)
    values = [value_s(plan) for plan in plans]
    least = min(values)
    place = fewest_calls(values, [len(plan.sending.groups) for plan in plans])
    best, value = plans[place], values[place]
    merged = _merged(problem, best, options, least_window=min(_window(problem, plan) for plan in plans))
    if merged is not None and (merged_value := value_s(merged)) <= least * (1 + TIE + ROUNDING):
        best, value = merged, merged_value
    if value > least * (1 + ROUNDING):
        among = f"over {100 * TIE:g} % faster"
        note = f"; no plan of whole groups is {among}" if note else f"; no plan that was tried is {among}"
    return replace(best, note=note, risk_s=value if options.scenarios else None)


def _candidates(problem: FusionProblem, fusion: FusionResult, options: Options) -> Iterator[RealizedPlan]:
    latency = problem.cost.durations_s[0]
    tried: list[tuple[float, tuple[float, ...], Partition]] = [
        (0.0, PATIENCE_FACTORS, partition) for partition in fusion.partitions
    ]
    tried += [(extra_s, FEW_CALLS_FACTORS, partition) for extra_s, partition in fusion.of_few_calls]
    for extra_s, factors, groups in tried:
        partition = _in_order(problem, groups)
        buffers = problem.buffers(partition)
        patience_s = [
            factor * (latency + extra_s) if latency + extra_s > 0 or factor == 0 else np.inf
            for factor in factors
        ]
        for sending in _sendings(buffers, problem.cost, options, patience_s):
            yield RealizedPlan(partition=partition, buffers=buffers, sending=sending)


def _pricing(profile: Profile, problem: FusionProblem, options: Options) -> Callable[[RealizedPlan], float]:
    """Return the function by which plans are compared, in seconds."""
    if not options.scenarios:
        return partial(_window, problem)
    from pace.planning.allreduce.scenarios import price, sample

    scenarios = sample(profile, options)
    return lambda plan: (
        price(scenarios, plan.partition, plan.buffers, plan.sending, problem.cost, options)
        + stretch_s(problem, plan.sending)
    )


def _merged(
    problem: FusionProblem, plan: RealizedPlan, options: Options, *, least_window: float
) -> RealizedPlan | None:
    """Return the plan with neighboring calls merged; None if none can be."""
    until_s = max(_window(problem, plan), least_window * (1 + TIE)) - stretch_s(problem, plan.sending)
    calls = fewer_calls(problem, plan.partition, plan.sending, options, until_s=until_s)
    if calls is None:
        return None
    sent = {plan.partition[group] for group in plan.sending.groups.tolist()}
    unsent = tuple(group for group in plan.partition if group not in sent)
    partition = _in_order(problem, (*dict.fromkeys(call.members for call in calls), *unsent))
    buffers = problem.buffers(partition)
    number_of = {group: number for number, group in enumerate(partition)}
    groups = np.array([number_of[call.members] for call in calls], dtype=np.int64)
    sizes = np.array([call.size_bytes for call in calls], dtype=np.int64)
    sending = send_in_order(buffers, groups, sizes // buffers.element_bytes[groups], problem.cost)
    return RealizedPlan(partition=partition, buffers=buffers, sending=sending)


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


def _in_order(problem: FusionProblem, partition: Partition) -> Partition:
    """Sort the groups by ready time, tail and size, so that their numbers do not depend on the search."""
    buffers = problem.buffers(partition)
    sizes = zip(buffers.sizes.tolist(), buffers.element_bytes.tolist(), strict=True)
    keys = zip(buffers.ready.tolist(), buffers.tail.tolist(), sizes, partition, strict=True)
    return tuple(group for *_, group in sorted(keys))


def _sendings(
    buffers: Buffers, cost: CostCurve, options: Options, patience_s: list[float]
) -> Iterator[Sending]:
    limit = float(options.max_segment_bytes or np.inf)
    _refuse_tiny_segments(buffers, limit)
    for patience in patience_s if options.framework is None else (np.inf,):
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
    problem: FusionProblem, fusion: FusionResult, options: Options, oracle: PricingOracle
) -> RealizedPlan:
    partition = _in_order(problem, fusion.partitions[0])
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
        note=_tell_rounding(problem, solution.objective, options),
    )


def _tell_rounding(problem: FusionProblem, num_slots: float, options: Options) -> str:
    """Warn if the window of `num_slots` slots is much longer than without slots; return this as a note.

    Rounding adds less than a slot to the ready time and to each group, so the window of k groups grows by
    less than k + 1 slots. This gives the slot that is proposed.
    """
    slot_s = options.slot_s
    assert slot_s is not None
    continuous = options.model_copy(update={"slot_s": None, "oracle": "jackson", "lp_solver": "scipy"})
    window_s, groups = min(
        (max(solve(buffers.instance(problem.cost)).objective, problem.compute_s), len(buffers.ready))
        for partition in fuse(problem, continuous).partitions
        for buffers in (problem.buffers(partition),)
    )
    rounded_s = max(num_slots * slot_s, problem.compute_s)
    if rounded_s <= window_s * (1 + MOST_ROUNDING):
        return ""
    note = (
        f"rounding to slots of {slot_s:g} s lengthens the window from {window_s:.4g} s to {rounded_s:.4g} s "
        f"({rounded_s / window_s - 1:.1%}): slot_s of {MOST_ROUNDING * window_s / (groups + 1):.2g} or less "
        f"costs at most {MOST_ROUNDING:.0%}"
    )
    warnings.warn(note, SlotWarning, stacklevel=2)
    return f"; {note}"


def _refuse_tiny_slots(instance: Instance, options: Options) -> None:
    slots = float(np.max(instance.ready, initial=0.0) + np.sum(instance.processing))
    if slots > MAX_SLOTS:
        assert options.slot_s is not None
        fitting = options.slot_s * slots / MAX_SLOTS * 1.1
        raise InvalidOptions(
            f"slot_s of {options.slot_s:g} cuts the window into {slots:.2g} slots, but at most {MAX_SLOTS:g} "
            f"are allowed: use slot_s of {fitting:.2g}, or leave slot_s out"
        )
