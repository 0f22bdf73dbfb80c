"""From the groups of both halves to plans (shards, padded buffers, segments), and the fastest of these."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from pace.documents.options import Options
from pace.errors import InvalidOptions
from pace.planning.fusion.choice import TIE, curve_of, fewest_calls, told_if_longer
from pace.planning.fusion.problem import Partition
from pace.planning.fusion.search import fuse
from pace.planning.sharded.problem import NORM_BYTES, ShardingProblem
from pace.planning.under_load import UnderLoad
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.loaded import Calls, LoadedWindows
from pace.solver.partition import Chain, runs
from pace.solver.sending import necessary_segments
from pace.solver.two_halves.behind_norm import (
    best_all_gathers,
    best_reduce_scatters,
    chain_of_half,
    fewest_calls_under,
)
from pace.solver.two_halves.calls import Half, columns_of, common_shards
from pace.solver.two_halves.sending import HalvesSending, send_behind_norm, send_chained

# A call is cut only if a longer tail would wait longer than so many latencies. Each number is tried.
PATIENCE_FACTORS = (np.inf, 0.0, 2.0, 8.0)
MAX_SEGMENTS = 1_000_000
# How many of the groupings of one half are combined with those of the other half.
MOST_PAIRED = 5
# Behind a norm: the reduce-scatters' share of what a plan with fewer calls may take longer; and the most
# calls of a half that are tried if its cost is not affine.
TIE_SHARES = (1.0, 0.5)
MOST_CALLS = 32
# Plans are also sought as if each call took longer by these multiples of what it does while compute runs.
SLOWER_FACTORS = (1.0, 1 / 4, 2.5)
# With more gradients fewer pairs are tried, and one of these factors, so that the search takes only seconds.
MANY_GRADIENTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedPlan:
    """A plan of reduce-scatters and all-gathers.

    Attributes
    ----------
    shards
        The gradients of each shard (``pace.solver.two_halves.calls``).
    columns, column_bytes : integer arrays of shape (num_shards,)
        The number of columns of each shard's matrix, and the bytes of a column.
    scattered, gathered
        The calls; their sizes include padding.
    scattered_shards, gathered_shards
        The numbers of the shards that each call carries.
    sending
        The segments and their times.
    expected_s
        Mean or 95th percentile of the window under load, in seconds; None if it was not computed.
    curve
        Number of segments and expected window of the plans that were tried (``curve_of``).
    """

    shards: tuple[tuple[int, ...], ...]
    columns: IntArray
    column_bytes: IntArray
    scattered: Half
    gathered: Half
    scattered_shards: tuple[tuple[int, ...], ...]
    gathered_shards: tuple[tuple[int, ...], ...]
    sending: HalvesSending
    expected_s: float | None = None
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def num_scattered_segments(self) -> int:
        """The number of segments of reduce-scatters."""
        return int(np.count_nonzero(self.sending.calls < len(self.scattered)))

    def segment_bytes(self) -> IntArray:
        """Return the bytes of each segment, over all rows of its columns."""
        every = (*self.scattered_shards, *self.gathered_shards)
        of_call = np.array([self.column_bytes[call[0]] for call in every], dtype=np.int64)
        return self.sending.columns * of_call[self.sending.calls]


@dataclass(frozen=True, kw_only=True)
class ShardsUnderLoad(UnderLoad):
    """The load of a profile whose gradients are summed by reduce-scatters."""

    sharding: ShardingProblem

    def calls(self, plan: ShardedPlan, extra: CostCurve) -> Calls:
        """Return a plan's segments and its norm, which take so much longer while compute runs.

        Groups are its reduce-scatters, which nothing waits for, its all-gathers, which wait for nothing but
        what is sent before them, the norm, and gradients that are not sent.
        """
        problem, first, second = self.sharding, plan.scattered, plan.gathered
        gradients, groups = problem.gradients, plan.sending.calls
        scatters, nothing = len(first), np.zeros(len(second) + 1)
        unsent = np.flatnonzero(gradients.sizes == 0)
        sizes, durations = plan.segment_bytes().astype(np.float64), _durations(problem, plan)
        if problem.norm_s is not None and len(groups):
            at = plan.num_scattered_segments
            groups = np.insert(groups, at, scatters + len(second))
            durations = np.insert(durations, at, problem.norm_s)
            sizes = np.insert(sizes, at, NORM_BYTES)
        return Calls(
            ready=np.concatenate([first.times, nothing, gradients.ready[unsent]]),
            spread=np.concatenate([self.spread_of(first.members), nothing, self.spread[unsent]]),
            tail=np.concatenate([np.zeros(scatters), second.times, [0.0], gradients.tail[unsent]]),
            groups=groups,
            durations=durations,
            extra=extra(sizes),
        )

    def replayed(self, plan: ShardedPlan) -> ShardedPlan:
        """Return the plan with the times that it takes in the mean window, with the stated extra time."""
        extra, sending = self.problem.extra, plan.sending
        if extra is None or not len(sending.calls):
            return plan
        found = LoadedWindows.mean().replay(self.compute, self.calls(plan, extra))
        norm = None if sending.norm_start_s is None else plan.num_scattered_segments
        timed = sending.at(found.starts, found.ends, norm)
        return replace(plan, sending=replace(timed, objective=float(found.windows[0])))

    def expected_s(self, plan: ShardedPlan) -> float:
        """Return the mean of the windows in seconds, or their 95th percentile, in wall time."""
        return self.expected_window_s(self.calls(plan, self.extra))


def best_plan(problem: ShardingProblem, options: Options, load: ShardsUnderLoad) -> tuple[ShardedPlan, str]:
    """Return the plan with the fewest segments among those with the least expected window, up to ``TIE``.

    Also returns the algorithm in words.

    Raises
    ------
    InvalidOptions
        If there would be too many segments.
    """
    plans, method = _plans(problem, options)
    fastest = plans[0]
    extra_s = max(load.extra.durations_s)
    if extra_s and options.fusion == "optimal":
        many = len(problem.gradients.sizes) > MANY_GRADIENTS
        for factor in SLOWER_FACTORS[:1] if many else SLOWER_FACTORS:
            found, _ = _plans(problem.slower(factor * extra_s), options)
            plans += [_timed(problem, plan) for plan in found]
    expected_s = [load.expected_s(plan) for plan in plans]
    segments = [len(plan.sending.calls) for plan in plans]
    chosen = fewest_calls(expected_s, segments)
    best = load.replayed(plans[chosen])
    least_s = min(_window(problem, load.replayed(plan)) for plan in plans)
    told = told_if_longer(_window(problem, best), least_s)
    if not told and problem.norm_s is not None and len(best.sending.calls) < len(fastest.sending.calls):
        told = f"; then fewer calls, at most {TIE:.1%} slower"
    curve = curve_of(zip(segments, expected_s, strict=True))
    return replace(best, expected_s=expected_s[chosen], curve=curve), method + told


def _plans(problem: ShardingProblem, options: Options) -> tuple[list[ShardedPlan], str]:
    """Return plans, and the algorithm in words; with a norm, the fastest plan comes first."""
    if options.fusion == "none":
        return _single_plans(problem, options, PATIENCE_FACTORS), "one call of each half per gradient"
    if problem.norm_s is not None:
        return _behind_norm(problem, options)
    return _chained(problem, options)


def _timed(problem: ShardingProblem, plan: ShardedPlan) -> ShardedPlan:
    """Return the plan with the times that its segments take at this problem's costs."""
    durations = _durations(problem, plan)
    sending = plan.sending.in_order(plan.scattered, plan.gathered, durations, problem.norm_s)
    return replace(plan, sending=sending)


def _durations(problem: ShardingProblem, plan: ShardedPlan) -> FloatArray:
    """Return the seconds of each segment."""
    sizes, scattered = plan.segment_bytes(), plan.sending.calls < len(plan.scattered)
    return np.where(scattered, problem.reduce_scatter(sizes), problem.all_gather(sizes))


def _single_plans(
    problem: ShardingProblem, options: Options, patience_factors: tuple[float, ...]
) -> list[ShardedPlan]:
    single = tuple((int(number),) for number in problem.gradients.sent_by_ready())
    tried = (
        _plan(problem, single, single, options, _patience_s(problem, factor)) for factor in patience_factors
    )
    return [plan for plan in tried if plan is not None]


def _behind_norm(problem: ShardingProblem, options: Options) -> tuple[list[ShardedPlan], str]:
    assert problem.norm_s is not None
    gradients, cap = problem.gradients, options.max_group_bytes
    scattered: list[_Runs] = []
    gathered: list[_Runs] = []
    chains = problem.chains()
    exact = len(chains) <= 1
    for by_ready, _ in chains:
        of_half = chain_of_half(gradients.sizes[by_ready], ready=gradients.ready[by_ready])
        cuts, end = best_reduce_scatters(of_half, problem.reduce_scatter, max_group_bytes=cap)
        scattered.append(_Runs(by_ready, of_half, cuts, end))
    end = max((runs_.end_s for runs_ in scattered), default=0.0)
    enough = max(problem.floor_s - end - problem.norm_s, 0.0) if exact else 0.0
    for _, by_tail in chains:
        of_half = chain_of_half(gradients.sizes[by_tail], tail=gradients.tail[by_tail])
        cuts, end = best_all_gathers(of_half, problem.all_gather, enough=enough, max_group_bytes=cap)
        gathered.append(_Runs(by_tail, of_half, cuts, end))
    plan = _plan(problem, _groups_of(scattered), _groups_of(gathered), options, np.inf)
    assert plan is not None
    plans = [plan, *_with_fewer_calls(problem, options, plan, scattered, gathered)]
    if not exact:
        plans += _single_plans(problem, options, (np.inf,))
    among = "" if problem.reduce_scatter.line and problem.all_gather.line and cap is None else " among runs"
    how = f"exact{among}" if exact else "each dtype by itself, heuristic"
    if options.max_segment_bytes is not None:
        how += ", before calls are cut"
    if gradients.slowdown != 1:
        how += "; on the compute clock"
    return plans, f"dynamic programs over prefixes before the norm and over suffixes behind it, {how}"


class _Runs(NamedTuple):
    """Gradients of one dtype in runs, each one call of a half, and when the half ends if no other is sent."""

    members: IntArray
    chain: Chain
    cuts: list[int]
    end_s: float

    def fewer(self, cost: CostCurve, slack_s: float, max_group_bytes: int | None) -> "_Runs":
        """Return the fewest runs that end at most so much later."""
        most = len(self.cuts) if cost.line is not None else min(len(self.cuts), MOST_CALLS)
        limit = self.end_s + slack_s
        cuts = fewest_calls_under(self.chain, cost, limit, most=most, max_group_bytes=max_group_bytes)
        return self if cuts is None else self._replace(cuts=cuts)


def _groups_of(runs_of_dtypes: list[_Runs]) -> Partition:
    return tuple(chain(*(_cut(each.members, each.cuts) for each in runs_of_dtypes)))


def _with_fewer_calls(
    problem: ShardingProblem,
    options: Options,
    plan: ShardedPlan,
    scattered: list[_Runs],
    gathered: list[_Runs],
) -> Iterator[ShardedPlan]:
    """Yield plans of fewer calls that are as fast up to a share ``TIE``; halves divide it in several ways."""
    cap = options.max_group_bytes
    slack_s = max(plan.sending.objective, problem.floor_s) * (1 + TIE) - plan.sending.objective
    for share in TIE_SHARES:
        first = _groups_of([each.fewer(problem.reduce_scatter, share * slack_s, cap) for each in scattered])
        between = _plan(problem, first, plan.gathered.members, options, np.inf)
        assert between is not None
        left_s = slack_s - max(0.0, between.sending.objective - plan.sending.objective)
        second = _groups_of([each.fewer(problem.all_gather, left_s, cap) for each in gathered])
        fewer = _plan(problem, first, second, options, np.inf)
        assert fewer is not None
        yield fewer


def _chained(problem: ShardingProblem, options: Options) -> tuple[list[ShardedPlan], str]:
    """Combine groups for the reduce-scatters with groups for the gathers, and evaluate every pair."""
    whole = problem.with_whole_cost()
    asked = Options(max_group_bytes=options.max_group_bytes, search_calls=options.search_calls)
    both = [_sent(problem, found) for found in fuse(whole, asked).partitions]
    gradients, cap = problem.gradients, options.max_group_bytes
    early: list[Partition] = []
    late: list[Partition] = []
    for by_ready, by_tail in problem.chains():
        of_half = chain_of_half(gradients.sizes[by_ready], ready=gradients.ready[by_ready])
        cuts, _ = best_reduce_scatters(of_half, problem.reduce_scatter, max_group_bytes=cap)
        early.append(_cut(by_ready, cuts))
        of_half = chain_of_half(gradients.sizes[by_tail], tail=gradients.tail[by_tail])
        cuts, _ = best_all_gathers(of_half, problem.all_gather, max_group_bytes=cap)
        late.append(_cut(by_tail, cuts))
    scattered = list(dict.fromkeys([tuple(chain(*early)), *both]))[:MOST_PAIRED]
    gathered = list(dict.fromkeys([tuple(chain(*late)), *both]))[:MOST_PAIRED]
    factors: tuple[float, ...] = PATIENCE_FACTORS
    if len(gradients.sizes) > MANY_GRADIENTS:
        scattered, gathered, factors = scattered[:2], gathered[:2], factors[:2]
    pairs = [(first, second) for first in scattered for second in gathered]
    plans = [plan for pair in pairs for plan in (_plan(problem, *pair, options, 0.0),) if plan is not None]
    pair = scattered[0], gathered[0]
    if plans:
        windows_s = [_window(problem, plan) for plan in plans]
        chosen = plans[fewest_calls(windows_s, [len(plan.sending.calls) for plan in plans])]
        pair = chosen.scattered.members, chosen.gathered.members
    plans += [
        plan
        for factor in factors
        for plan in (_plan(problem, *pair, options, _patience_s(problem, factor)),)
        if plan is not None
    ]
    return plans, f"{len(pairs)} pairs of groups for the two halves priced, heuristic"


def _sent(problem: ShardingProblem, partition: Partition) -> Partition:
    return tuple(group for group in partition if problem.gradients.sizes[group[0]])


def _cut(members: IntArray, cuts: list[int]) -> Partition:
    return tuple(tuple(members[run].tolist()) for run in runs(cuts, len(members)))


def _window(problem: ShardingProblem, plan: ShardedPlan) -> float:
    return max(plan.sending.objective, problem.floor_s) + stretch_s(problem, plan)


def _patience_s(problem: ShardingProblem, factor: float) -> float:
    latency_s = problem.reduce_scatter.durations_s[0]
    return factor * latency_s if latency_s > 0 or factor == 0 else np.inf


def stretch_s(problem: ShardingProblem, plan: ShardedPlan) -> float:
    """Return by how many seconds this plan lengthens a window, compared with the compute clock."""
    sending = plan.sending
    carried_s = float(np.sum(sending.ends - sending.starts))
    if sending.norm_start_s is not None and sending.norm_end_s is not None and len(sending.calls):
        carried_s += sending.norm_end_s - sending.norm_start_s
    return problem.gradients.stretch_s(carried_s)


def _plan(
    problem: ShardingProblem,
    scattered: Partition,
    gathered: Partition,
    options: Options,
    patience_s: float,
) -> ShardedPlan | None:
    """Lay out the shards and send; None if the patience requires too many segments."""
    first = _by_time(scattered, problem.gradients.ready, 1)
    second = _by_time(gathered, problem.gradients.tail, -1)
    shards = common_shards(first, second)
    columns = columns_of(shards, problem.elements, problem.workers)
    heads = np.array([shard[0] for shard in shards], dtype=np.int64)
    element_bytes = problem.gradients.element_bytes[heads]
    column_bytes = element_bytes * problem.workers
    padded = columns * column_bytes
    scattered_shards, gathered_shards = _shards_of(first, shards), _shards_of(second, shards)
    half_first = _half(first, scattered_shards, problem.gradients.ready, padded)
    half_second = _half(second, gathered_shards, problem.gradients.tail, padded)
    every = (*scattered_shards, *gathered_shards)
    call_columns = np.array([columns[list(call)].sum() for call in every], dtype=np.int64)
    call_bytes = np.array([column_bytes[call[0]] for call in every], dtype=np.int64)
    row_bytes = np.array([element_bytes[call[0]] for call in every], dtype=np.int64)
    limit = float(options.max_segment_bytes or np.inf)
    segments = necessary_segments(call_columns, call_bytes, limit, row_bytes=row_bytes)
    if segments > MAX_SEGMENTS:
        raise InvalidOptions(
            f"max_segment_bytes of {limit:.0f} cuts the gradients into {segments:,} segments; at most "
            f"{MAX_SEGMENTS:,} are allowed: use a larger value, or leave max_segment_bytes out"
        )
    sending: HalvesSending | None
    if problem.norm_s is not None:
        sending = send_behind_norm(
            half_first,
            half_second,
            call_columns,
            call_bytes,
            row_bytes,
            reduce_scatter=problem.reduce_scatter,
            all_gather=problem.all_gather,
            norm_s=problem.norm_s,
            max_segment_bytes=limit,
        )
    else:
        sending = send_chained(
            half_first,
            half_second,
            call_columns,
            call_bytes,
            row_bytes,
            reduce_scatter=problem.reduce_scatter,
            all_gather=problem.all_gather,
            patience_s=patience_s,
            max_segment_bytes=limit,
        )
    if sending is None:
        return None
    return ShardedPlan(
        shards=shards,
        columns=columns,
        column_bytes=column_bytes,
        scattered=half_first,
        gathered=half_second,
        scattered_shards=scattered_shards,
        gathered_shards=gathered_shards,
        sending=sending,
    )


def _by_time(groups: Partition, times: FloatArray, sign: int) -> Partition:
    """Sort the groups, so that their numbers do not depend on the search."""
    return tuple(sorted(groups, key=lambda group: (sign * float(times[list(group)].max()), group)))


def _shards_of(groups: Partition, shards: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    shard_of = {gradient: number for number, shard in enumerate(shards) for gradient in shard}
    return tuple(tuple(dict.fromkeys(shard_of[gradient] for gradient in group)) for group in groups)


def _half(
    groups: Partition, carried: tuple[tuple[int, ...], ...], times: FloatArray, padded: IntArray
) -> Half:
    return Half(
        members=groups,
        times=np.array([times[list(group)].max() for group in groups], dtype=np.float64),
        sizes=np.array([padded[list(call)].sum() for call in carried], dtype=np.int64),
    )
