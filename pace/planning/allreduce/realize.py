"""Cuts groups into segments that a network can carry, and chooses the fastest such plan (docs/solver.md)."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from pace.documents.options import Options
from pace.errors import InvalidOptions
from pace.planning.allreduce.fewer_calls import Call, calls_of, fewer_calls, merged
from pace.planning.allreduce.under_load import AllReducesUnderLoad
from pace.planning.fusion.choice import ROUNDING, TIE, curve_of, fewest_calls, told_if_longer
from pace.planning.fusion.oracle import PricingOracle
from pace.planning.fusion.problem import FusionProblem, Partition, oracle_instance
from pace.planning.fusion.search import FusionResult, fuse, layered_partitions
from pace.solver.arrays import IntArray
from pace.solver.cost_curve import CostCurve
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
# The same, if each call is taken to last longer.
FEW_CALLS_FACTORS = (0.0, 2.0, np.inf)
# With these, groups are searched under load.
REGROUPED_FACTORS = (4.0, np.inf)
# Each partition is cut as if each call took longer by these multiples of what it does while compute runs. And
# groups are sought that hold at most these shares of all bytes. Both unless there are more gradients.
CUT_FACTORS = (1 / 4, 1.0, 2.0)
GROUP_SHARES = (0.1, 0.3)
MOST_CROSSED = 2000
# Of at most so many gradients, all groups of neighbors are tried.
MOST_DIVIDED = 5
# Up to this number of slots, a double still distinguishes fractions of a slot.
MAX_SLOTS = 1e9
# By what share of the window rounding to slots may lengthen it without a warning.
MOST_ROUNDING = 0.01
# Of at most so many calls, any two of a kind that follow one another are tried to be merged.
MOST_MERGED = 40
# Plans with more calls are not merged: options have cut them into small segments.
MOST_CALLS = 20_000
# Cuts are optimized in the fastest plans of so many partitions; for few gradients, in all.
MOST_RECUT = 4
# Of a measured cost, so many sizes of segments are tried that cost less per byte than whole groups. No size
# cuts all bytes into more segments than this.
MOST_SIZES = 3
MOST_CHEAP_SEGMENTS = 1000
# Merged plans are kept if their windows exceed the shortest by at most this share.
MOST_MERGED_SHARE = 0.01
# Each segment is an entry of the document and a call of the network library.
MAX_SEGMENTS = 1_000_000


class SlotWarning(UserWarning):
    """Slots are so long that rounding to them makes the schedule worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealizedPlan:
    """Groups, their buffers, and the segments in sending order.

    Times are on the compute clock (``pace.solver.compute_clock``), except expected windows.

    Attributes
    ----------
    start_slots, num_slots : arrays of shape (num_segments,)
        First slot and number of slots of each segment; None without slots.
    expected_s
        Mean or 95th percentile of the window under load, in seconds; None with slots.
    curve
        Number of calls and expected window of the plans that were tried: the best for each number of calls,
        if no plan with fewer calls is as fast.
    note
        What is known of the plan, in words, in addition to how its groups were found.
    """

    partition: Partition
    buffers: Buffers
    sending: Sending
    start_slots: IntArray | None = None
    num_slots: IntArray | None = None
    expected_s: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    note: str = ""


def fastest_plan(
    problem: FusionProblem,
    fusion: FusionResult,
    options: Options,
    oracle: PricingOracle,
    load: AllReducesUnderLoad,
) -> RealizedPlan:
    """Return the plan with the fewest calls among those with the least expected window, up to a share `TIE`.

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
    found = load.shortlist(list(_candidates(problem, fusion, options, load)))
    plans, note = _with_whole_groups(problem, [_timed(problem, plan) for plan in found], options)
    tried = _Tried(load)
    for plan in plans:
        tried.add(plan)
    for plan in plans:
        tried.add_merged(problem, plan, options)
    if options.fusion == "optimal" and options.framework is None and problem.sizes.any():
        if not problem.is_layered:
            for plan in _regrouped(problem, tried.fastest(1)[0].partition, options, load):
                tried.add(plan)
                tried.add_merged(problem, plan, options)
        few = len(problem.sent_by_ready()) <= MOST_GRADIENTS
        for plan in tried.plans[:] if few else tried.fastest(MOST_RECUT):
            groups, elements = load.recut(plan, options)
            tried.add(replace(plan, sending=send_in_order(plan.buffers, groups, elements, problem.cost)))
    plans, expected_s = tried.plans, tried.expected_s
    chosen = fewest_calls(expected_s, [len(plan.sending.groups) for plan in plans])
    best = load.replayed(plans[chosen])
    window_s = _window(problem, best)
    least_s = min(_window(problem, load.replayed(plan)) for plan in plans)
    if told := told_if_longer(window_s, least_s):
        note = told
    elif window_s > least_s * (1 + ROUNDING) and note:
        note = f"; no plan of whole groups is over {100 * TIE:g} % faster"
    return replace(best, note=note, expected_s=expected_s[chosen], curve=curve_of(tried.points))


def _timed(problem: FusionProblem, plan: RealizedPlan) -> RealizedPlan:
    """Return the plan with the times that segments take without load."""
    sending = plan.sending
    sending = send_in_order(plan.buffers, sending.groups, sending.elements, problem.cost)
    return replace(plan, sending=sending)


@dataclass(frozen=True, slots=True)
class _Tried:
    """Plans with their expected windows in seconds, also of merged plans that are not worth keeping."""

    load: AllReducesUnderLoad
    plans: list[RealizedPlan] = field(default_factory=list)
    expected_s: list[float] = field(default_factory=list)
    points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, plan: RealizedPlan, expected_s: float | None = None) -> None:
        seconds = self.load.expected_s(plan) if expected_s is None else expected_s
        self.plans.append(plan)
        self.expected_s.append(seconds)
        self.points.append((len(plan.sending.groups), seconds))

    def add_merged(self, problem: FusionProblem, plan: RealizedPlan, options: Options) -> None:
        for leaner, num_calls, seconds in _merged(problem, plan, options, self.load):
            if leaner is None:
                self.points.append((num_calls, seconds))
            else:
                self.add(leaner, seconds)

    def fastest(self, most: int) -> list[RealizedPlan]:
        """Return the fastest plans of so many partitions."""
        found: dict[Partition, RealizedPlan] = {}
        for number in sorted(range(len(self.plans)), key=self.expected_s.__getitem__):
            found.setdefault(self.plans[number].partition, self.plans[number])
        return list(found.values())[:most]


def _candidates(
    problem: FusionProblem, fusion: FusionResult, options: Options, load: AllReducesUnderLoad
) -> Iterator[RealizedPlan]:
    """Yield different plans: each partition is cut as if each call took longer by several times.

    The times of segments are those of the calls that take longer.
    """
    latency = problem.cost.durations_s[0]
    extra_s = max(load.extra.durations_s)
    crossed = () if len(problem.ready) > MOST_CROSSED else tuple(factor * extra_s for factor in CUT_FACTORS)
    partitions = [(0.0, partition) for partition in fusion.partitions] + list(fusion.of_few_calls)
    if options.fusion == "optimal" and options.framework is None and options.max_group_bytes is None:
        partitions += [(0.0, partition) for partition in _all_runs(problem)]
    if options.fusion == "optimal" and options.framework is None:
        partitions += [(0.0, partition) for partition in _groups_to_cut(problem, options)]
        if len(problem.ready) <= MOST_CROSSED:
            partitions += [(extra_s, partition) for partition in _small_groups(problem, options, extra_s)]
    seen, done = set(), set()
    for own_s, groups in partitions:
        partition = _in_order(problem, groups)
        buffers = problem.buffers(partition)
        costs_s = dict.fromkeys((own_s, *crossed))
        for longer_s in [each for each in costs_s if (partition, each) not in done]:
            done.add((partition, longer_s))
            factors: tuple[float, ...] = PATIENCE_FACTORS if longer_s == 0 else FEW_CALLS_FACTORS
            if (call_s := latency + longer_s) == 0:
                factors = (0.0, np.inf)
            cost = problem.cost.slower(longer_s) if extra_s else problem.cost
            patience_s = [factor * call_s for factor in factors]
            for sending in _sendings(buffers, cost, options, patience_s, hurried_only=longer_s != own_s):
                key = (partition, sending.groups.tobytes(), sending.elements.tobytes())
                if key in seen:
                    continue
                seen.add(key)
                yield RealizedPlan(partition=partition, buffers=buffers, sending=sending)


def _small_groups(problem: FusionProblem, options: Options, extra_s: float) -> Iterator[Partition]:
    """Yield groups that are good among those of at most a share of all bytes, if calls take longer."""
    cost = problem.cost.slower(extra_s)
    for share in GROUP_SHARES:
        most = math.ceil(share * float(problem.sizes.sum()))
        for partition in layered_partitions(problem, cost, min(most, options.max_group_bytes or most)):
            yield partition + problem.unsent()


def _groups_to_cut(problem: FusionProblem, options: Options) -> Iterator[Partition]:
    """Yield groups that are good if they are cut at sizes whose calls cost less per byte than larger ones."""
    total, limit = float(problem.sizes.sum()), float(options.max_segment_bytes or np.inf)
    for size in _cheapest_sizes(problem.cost, total, total, limit)[:1]:
        sizes = [*(knot for knot in problem.cost.sizes_bytes if 0 < knot < size), size]
        durations = problem.cost(sizes).tolist()
        cut = CostCurve(
            sizes_bytes=tuple(sizes), durations_s=tuple(durations), slope_beyond=durations[-1] / size
        )
        yield from fuse(replace(problem, cost=cut), options).partitions


def _all_runs(problem: FusionProblem) -> Iterator[Partition]:
    """Yield all ways to put few gradients of one type into groups of neighbors in order of ready time."""
    sent = problem.sent_by_ready().tolist()
    if len(problem.classes()) != 1 or len(sent) > MOST_DIVIDED:
        return
    for cuts in product((False, True), repeat=len(sent) - 1):
        groups = [[sent[0]]]
        for number, begins in zip(sent[1:], cuts, strict=True):
            if begins:
                groups.append([number])
            else:
                groups[-1].append(number)
        yield tuple(tuple(group) for group in groups) + problem.unsent()


def _merged(
    problem: FusionProblem, plan: RealizedPlan, options: Options, load: AllReducesUnderLoad
) -> Iterator[tuple[RealizedPlan | None, int, float]]:
    """Yield the plan after each merge of two calls, its number of calls and its expected window.

    A plan that is much slower than the fastest of them is None. A plan of many calls is first merged as far
    as its window without load lasts no longer by a share `TIE`.
    """
    if len(plan.sending.groups) > MOST_CALLS:
        return
    calls = list(calls_of(problem, plan.partition, plan.sending, options))
    if len(calls) > MOST_MERGED:
        window_s = max(plan.sending.objective, problem.compute_s)
        until_s = window_s * (1 + TIE)
        calls = fewer_calls(problem, plan.partition, plan.sending, options, until_s=until_s) or []
        if not calls:
            return
        leaner = _of_calls(problem, plan, calls)
        yield leaner, len(calls), load.expected_s(leaner)
        if len(calls) > MOST_MERGED:
            return
    steps = load.merges(calls, options)
    least = min((seconds for *_, seconds in steps), default=0.0)
    for first, second, seconds in steps:
        calls[second] = merged(problem, [calls[first], calls[second]])
        del calls[first]
        if seconds <= least * (1 + MOST_MERGED_SHARE):
            leaner = _of_calls(problem, plan, calls)
            # What waits for gradients without bytes is not in the windows of merges.
            yield leaner, len(calls), load.expected_s(leaner)
        elif not problem.unsent():
            yield None, len(calls), seconds


def _regrouped(
    problem: FusionProblem, partition: Partition, options: Options, load: AllReducesUnderLoad
) -> Iterator[RealizedPlan]:
    """Yield plans of better groups than these, found by local search under load."""
    extra_s = max(load.extra.durations_s)
    call_s = problem.cost.durations_s[0] + extra_s
    for factor in REGROUPED_FACTORS:
        better = _in_order(problem, load.regrouped(partition, factor * call_s if call_s else 0.0, options))
        buffers = problem.buffers(better)
        sending = cut_while_sending(
            buffers,
            problem.cost.slower(extra_s),
            patience_s=factor * call_s if call_s else 0.0,
            max_segment_bytes=float(options.max_segment_bytes or np.inf),
        )
        if sending is not None:
            yield _timed(problem, RealizedPlan(partition=better, buffers=buffers, sending=sending))


def _of_calls(problem: FusionProblem, plan: RealizedPlan, calls: list[Call]) -> RealizedPlan:
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
    buffers: Buffers, cost: CostCurve, options: Options, patience_s: list[float], *, hurried_only: bool
) -> Iterator[Sending]:
    limit = float(options.max_segment_bytes or np.inf)
    _refuse_tiny_segments(buffers, limit)
    for patience in patience_s if options.framework is None else (np.inf,):
        sending = cut_while_sending(buffers, cost, patience_s=patience, max_segment_bytes=limit)
        if sending is not None:
            yield sending
    if hurried_only:
        return
    largest, total = float(np.max(buffers.sizes, initial=0)), float(np.sum(buffers.sizes))
    for size in _cheapest_sizes(cost, largest, total, limit) if options.framework is None else ():
        for patience in (0.0, np.inf):
            sending = cut_while_sending(buffers, cost, patience_s=patience, max_segment_bytes=size)
            if sending is not None:
                yield sending
    # With these groups, no policy that sends in order of ready time is faster than this plan.
    unhurried = replace(buffers, tail=np.zeros_like(buffers.tail))
    if (
        sending := cut_while_sending(unhurried, cost, patience_s=np.inf, max_segment_bytes=limit)
    ) is not None:
        yield send_in_order(buffers, sending.groups, sending.elements, cost)


def _cheapest_sizes(cost: CostCurve, largest: float, total: float, limit: float) -> list[float]:
    """Return the sizes at which a measured cost has the fewest seconds per byte, if large calls have more."""
    sizes = [max(size, total / MOST_CHEAP_SEGMENTS) for size in cost.sizes_bytes]
    per_byte = {size: float(cost(size)) / size for size in sizes if 0 < size < min(limit, largest)}
    whole = float(cost(largest)) / largest if largest else 0.0
    cheap = [size for size in per_byte if per_byte[size] < whole * (1 - ROUNDING)]
    return sorted(cheap, key=per_byte.__getitem__)[:MOST_SIZES]


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
    """Warn if the window of `num_slots` slots is much longer than without slots; return a note with numbers.

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
    slots = f"slots of {slot_s:g} s"
    longer = f"{slots} make the iteration {100 * (rounded_s / window_s - 1):.1f} % longer: use shorter slots"
    warnings.warn(longer, SlotWarning, stacklevel=2)
    return (
        f"; with {slots}, the iteration takes {rounded_s:.4g} s, and {window_s:.4g} s without slots; with a "
        f"slot_s of {MOST_ROUNDING * window_s / (groups + 1):.2g} s or less, slots add at most "
        f"{100 * MOST_ROUNDING:g} %"
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
