"""Sharded schedules, judged: groups, segments, the norm, predictions, and the proofs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pace.checker.collective_times import allreduce_s, half_s
from pace.checker.derived_times import (
    TOLERANCE,
    ComputeProgress,
    DerivedTimes,
    check_predicted,
    derive,
    same,
)
from pace.checker.plan import beside_compute, check_execution, check_identity
from pace.checker.proofs import (
    check_chain,
    check_line,
    check_set,
    least_durations,
    least_stretch_s,
    sizes_of_calls,
)
from pace.checker.under_load import check_under_load
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.documents.proofs import SetBound
from pace.documents.push_pull import PushPull
from pace.documents.schedule import Group, Schedule, ShardedOp

HALVES: tuple[ShardedOp, ShardedOp] = ("reduce-scatter", "all-gather")
NORM_BYTES = 8


def check_sharded(profile: Profile, schedule: Schedule) -> list[str]:
    """Return every way in which a sharded schedule is not a right answer for `profile`."""
    violations = [*check_identity(profile, schedule)]
    if isinstance(profile.allreduce, PushPull):
        return [*violations, "the profile exchanges gradients over parameter servers, which have no halves"]
    sharding = schedule.shard_layout
    if sharding.workers != profile.workers:
        violations.append(f"workers is {sharding.workers}, the profile's {profile.workers}")
    if sharding.update != profile.update:
        violations.append(f'update is "{sharding.update}", the profile\'s is "{profile.update}"')
    times = derive(profile, schedule)
    wrong = [*_check_shards(profile, schedule)]
    if wrong or violations:
        return violations + wrong
    parts = (
        _check_groups(profile, schedule, times),
        _check_segments(profile, schedule, times),
        _check_order(schedule, times),
        _check_norm(profile, schedule, times),
        _check_predictions(profile, schedule, times),
        _check_proof(profile, schedule, times),
        _check_bounds(profile, schedule, times),
        check_under_load(profile, schedule, times),
    )
    return [violation for part in parts for violation in part]


def _check_shards(profile: Profile, schedule: Schedule) -> Iterator[str]:
    gradients = {gradient.name: gradient for gradient in profile.gradients}
    placed: set[str] = set()
    for number, shard in enumerate(schedule.shard_layout.shards):
        unknown = [name for name in shard.tensors if name not in gradients]
        for name in unknown:
            yield f'shard {number}: "{name}" is no gradient of the profile'
        placed.update(shard.tensors)
        if unknown:
            continue
        members = [gradients[name] for name in shard.tensors]
        for gradient in members:
            if gradient.dtype != shard.dtype:
                yield f'shard {number}: gradient "{gradient.name}" is {gradient.dtype}, not {shard.dtype}'
        elements = sum(gradient.size_bytes // ELEMENT_BYTES[gradient.dtype] for gradient in members)
        columns = (elements + profile.workers - 1) // profile.workers
        if shard.num_columns != columns:
            yield f"shard {number}: num_columns is {shard.num_columns}, its gradients need {columns}"
    for name in gradients:
        if name not in placed:
            yield f'gradient "{name}" is in no shard'


def _check_groups(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    for number, group in enumerate(schedule.groups):
        assert group.op is not None
        scatters = group.op == "reduce-scatter"
        expected = (
            ("ready_s", group.ready_s, max(times.ready[name] for name in group.tensors) if scatters else 0.0),
            ("tail_s", group.tail_s, 0.0 if scatters else max(times.tail[name] for name in group.tensors)),
            ("transfer_s", group.duration_s, half_s(profile, group.op, group.size_bytes)),
        )
        for field, stated, derived in expected:
            if not same(stated, derived, times):
                yield f"group {number}: {field} is {stated!r}, derived {derived!r}"


def _check_segments(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    progress = ComputeProgress(_carried(schedule), times)
    beside = beside_compute(schedule, times, progress)
    for number, segment in enumerate(schedule.transfers):
        group = schedule.groups[segment.group]
        assert group.op is not None
        duration = half_s(profile, group.op, segment.size_bytes)
        stated = segment.end_s - segment.start_s
        if not any(same(stated, duration + extra, times) for extra in beside[number]):
            duration += beside[number][0]
            yield f"transfers[{number}]: takes {stated!r} s, derived {duration!r}"
        early = progress.until(segment.start_s) < group.ready_s - times.slack_s
        if group.op == "reduce-scatter" and early:
            yield f"transfers[{number}]: starts at {segment.start_s!r}, before its group is ready"
    yield from check_execution(schedule)
    by_time = sorted(
        range(len(schedule.transfers)),
        key=lambda n: (
            schedule.transfers[n].start_s,
            schedule.transfers[n].end_s,
            schedule.transfers[n].priority,
        ),
    )
    for first, second in pairwise(by_time):
        if schedule.transfers[second].start_s < schedule.transfers[first].end_s - times.slack_s:
            yield f"transfers[{first}] and transfers[{second}] are on the network at the same time"
        if schedule.transfers[second].priority < schedule.transfers[first].priority:
            yield f"transfers[{first}] and transfers[{second}]: priorities do not follow the order of sending"


def _carried(schedule: Schedule) -> list[tuple[float, float]]:
    """Return when the network carries something; a norm of nothing holds up nothing."""
    norm = schedule.shard_layout.norm
    exchanged = [(norm.start_s, norm.end_s)] if norm and schedule.transfers else []
    return [(segment.start_s, segment.end_s) for segment in schedule.transfers] + exchanged


def _norm_s(profile: Profile) -> float:
    """Return how long ranks exchange norms, if no compute runs then."""
    waits = profile.update == "global-norm"
    return allreduce_s(profile.allreduce, profile.workers, NORM_BYTES) if waits else 0.0


def _all_groups_s(profile: Profile, schedule: Schedule) -> float:
    """Return how long the network carries something if no group is cut without need."""
    return sum(least_durations(schedule), _norm_s(profile) if schedule.transfers else 0.0)


def _ends(schedule: Schedule) -> list[float]:
    ends = [0.0] * len(schedule.groups)
    for segment in schedule.transfers:
        ends[segment.group] = max(ends[segment.group], segment.end_s)
    return ends


def _needs(schedule: Schedule) -> dict[int, set[int]]:
    """Return, for every gather, the reduce-scatters of its shards."""
    scatters, gathers = (schedule.groups_of(op) for op in HALVES)
    carrier = {shard: number for number, group in scatters.items() for shard in group.shards}
    return {number: {carrier[shard] for shard in group.shards} for number, group in gathers.items()}


def _check_order(schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield the gathers that begin before their shards are summed and updated."""
    ends, needs, norm = _ends(schedule), _needs(schedule), schedule.shard_layout.norm
    for number, segment in enumerate(schedule.transfers):
        if segment.op != "all-gather":
            continue
        summed = max(ends[group] for group in needs[segment.group])
        if segment.start_s < summed - times.slack_s:
            yield f"transfers[{number}]: gathers at {segment.start_s!r} what is summed at {summed!r}"
        if norm is not None and segment.start_s < norm.end_s - times.slack_s:
            yield f"transfers[{number}]: gathers at {segment.start_s!r}, before the norm is known"


def _check_norm(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    norm = schedule.shard_layout.norm
    if (norm is not None) != (profile.update == "global-norm"):
        yield f'norm is {"there" if norm else "null"}, updates are "{profile.update}"'
        return
    if norm is None:
        return
    takes, extra_s = _norm_s(profile), times.extra_of(NORM_BYTES)
    start = ComputeProgress(_carried(schedule), times).until(norm.start_s)
    # Behind all reduce-scatters and before all gathers: compute is then at ops that wait for no gradient.
    possible = [takes + extra_s] if start <= times.backward_s + times.slack_s else []
    possible += [takes] if start >= times.backward_s - times.slack_s or not schedule.transfers else []
    # Without anything to send, the window may be shorter than the norm.
    if all(abs(norm.end_s - norm.start_s - each) > times.slack_s + TOLERANCE * each for each in possible):
        yield f"norm: takes {norm.end_s - norm.start_s!r} s, derived {possible[0]!r}"
    ends = _ends(schedule)
    summed = max((ends[number] for number in schedule.groups_of("reduce-scatter")), default=0.0)
    if norm.start_s < summed - times.slack_s:
        yield f"norm: exchanged at {norm.start_s!r}, the last reduce-scatter ends at {summed!r}"


def _floor(profile: Profile, times: DerivedTimes) -> float:
    unsent = [
        times.ready[gradient.name] + times.tail[gradient.name]
        for gradient in profile.gradients
        if not gradient.size_bytes
    ]
    return max([times.compute_s, *unsent])


def _check_predictions(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    floor = _floor(profile, times)
    ends = _ends(schedule)
    progress = ComputeProgress(_carried(schedule), times)
    realized = [
        progress.until(ends[number]) + group.tail_s
        for number, group in schedule.groups_of("all-gather").items()
    ]
    stretch = times.lost * sum(end - start for start, end in _carried(schedule))
    proofs = [bound.bound_s for bound in (schedule.norm_bound, schedule.bound) if bound is not None]
    lower = max([floor + _least_stretch_s(schedule, times), *proofs])
    ideal = max(floor, _optimum(profile, schedule, times)) + times.lost * _all_groups_s(profile, schedule)
    iteration = max([floor, *realized]) + stretch
    derived = {"iteration_s": iteration, "ideal_iteration_s": ideal, "lower_bound_s": lower}
    yield from check_predicted(schedule, times, derived)


def _least_stretch_s(schedule: Schedule, times: DerivedTimes) -> float:
    """Return what all bytes in one call of each half stretch compute by, priced on the bound's lines."""
    if schedule.bound is not None:
        return least_stretch_s(times, schedule.bound)
    norm = schedule.norm_bound
    if norm is None:
        return 0.0
    lines = (norm.reduce_scatter, norm.all_gather)
    return sum((least_stretch_s(times, line) for line in lines), times.lost * norm.norm_s)


def _jobs(schedule: Schedule, rate: float) -> tuple[list[float], list[float], list[float]]:
    """Return ready time, duration and tail of every group; without a norm.

    In seconds of compute, of which each second of traffic is `rate`.
    """
    groups = schedule.groups
    ready = [group.ready_s for group in groups]
    duration = [seconds * rate for seconds in least_durations(schedule)]
    tail = [group.tail_s for group in groups]
    for gather, needed in _needs(schedule).items():
        ready[gather] = max(groups[group].ready_s + duration[group] for group in needed)
        for group in needed:
            tail[group] = max(tail[group], duration[gather] + groups[gather].tail_s)
    return ready, duration, tail


def _optimum(profile: Profile, schedule: Schedule, times: DerivedTimes) -> float:
    """Return, in seconds of compute, the window below which no preemptive plan of these groups comes."""
    rate = 1 - times.lost
    if not schedule.groups:
        return 0.0
    if schedule.shard_layout.norm is None:
        ready, duration, tail = (np.array(values) for values in _jobs(schedule, rate))
        strongest = 0.0
        by_tail = np.argsort(-tail, kind="stable")
        ready, duration, tail = ready[by_tail], duration[by_tail], tail[by_tail]
        for rho in np.unique(ready):
            inside = ready >= rho
            strongest = max(strongest, float(np.max(rho + np.cumsum(duration[inside]) + tail[inside])))
        return strongest
    seconds = least_durations(schedule)
    halves = [[(group, seconds[number]) for number, group in schedule.groups_of(op).items()] for op in HALVES]
    return sum((_longest(half, rate) for half in halves), _norm_s(profile) * rate)


def _longest(groups: list[tuple[Group, float]], rate: float) -> float:
    """Return the maximum over the groups of one's time and the durations of all whose time is no less."""
    time = np.array([group.ready_s + group.tail_s for group, _ in groups])
    falling = np.argsort(-time, kind="stable")
    behind = np.cumsum(np.array([duration for _, duration in groups])[falling]) * rate
    return float(np.max(time[falling] + behind))


def _check_proof(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    (proof,), groups = schedule.proofs, schedule.groups
    unknown = [number for number in proof.set if number >= len(groups)]
    if unknown or len(set(proof.set)) < len(proof.set):
        yield f"proof: {list(proof.set)} are not groups of the schedule, each once"
        return
    ready, tail = [group.ready_s for group in groups], [group.tail_s for group in groups]
    first = [number for number in proof.set if groups[number].op == "reduce-scatter"]
    second = [number for number in proof.set if groups[number].op == "all-gather"]
    norm_s = 0.0
    if schedule.shard_layout.norm is not None:
        if proof.set and not (first and second):
            yield "proof: with a norm it needs groups of both halves"
        norm_s = _norm_s(profile) if first else 0.0
    else:
        ready, _, tail = _jobs(schedule, 1 - times.lost)
        first = second = list(proof.set)
    duration = least_durations(schedule)
    inside = sum(duration[number] for number in proof.set)
    every = _all_groups_s(profile, schedule)
    expected = (
        ("min_ready_s", proof.min_ready_s, min((ready[number] for number in first), default=0.0)),
        ("total_s", proof.total_s, inside),
        ("norm_s", proof.norm_s, norm_s),
        ("min_tail_s", proof.min_tail_s, min((tail[number] for number in second), default=0.0)),
        ("stretch_s", proof.stretch_s, times.lost * (every - inside - norm_s)),
    )
    for field, stated, derived in expected:
        if not same(stated, derived, times):
            yield f"proof.{field} is {stated!r}, derived {derived!r}"
    total = sum(stated for _, stated, _ in expected)
    if not same(proof.bound_s, total, times):
        yield f"proof.bound_s is {proof.bound_s!r}, its parts add up to {total!r}"
    hidden = _floor(profile, times) + times.lost * every
    if not same(max(hidden, proof.bound_s), schedule.predicted.ideal_iteration_s, times):
        yield f"proof.bound_s {proof.bound_s!r} does not prove predicted.ideal_iteration_s"


def _check_both_lines(profile: Profile, times: DerivedTimes, bound: SetBound) -> Iterator[str]:
    """Show that a bound's line is the sum of two, each below the cost of one half.

    A line below the sum of both costs would not do, as the halves may be cut and grouped differently.
    """
    sizes = sizes_of_calls(profile)
    if not sizes:
        return
    size = np.array(sizes, dtype=float)
    first, second = ([half_s(profile, half, each) for each in sizes] for half in HALVES)
    whole = bound.seconds_per_byte
    # What is left for the latencies is greatest where one half's line touches its cost at two sizes.
    rises = [0.0, whole, *_rises(sizes, first), *(whole - rise for rise in _rises(sizes, second))]
    most = 0.0
    for rise in rises:
        if -TOLERANCE * whole <= rise <= whole * (1 + TOLERANCE):
            latencies = float(np.min(first - rise * size)), float(np.min(second - (whole - rise) * size))
            if min(latencies) >= -times.slack_s:
                most = max(most, sum(latencies))
    if bound.latency_s > most * (1 + TOLERANCE) + times.slack_s:
        yield f"bound: latency_s is {bound.latency_s!r}, of lines below both halves at most {most!r}"


def _rises(sizes: list[int], cost: list[float]) -> list[float]:
    """Return the seconds per byte of the edges below a cost, and of the steepest line through the origin."""
    hull: list[tuple[float, float]] = []
    for x, y in zip(sizes, cost, strict=True):
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    edges = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(hull)]
    return [*edges, min(y / x for x, y in zip(sizes, cost, strict=True))]


def _check_bounds(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    norm, sets = schedule.norm_bound, schedule.bound
    if (norm is None) == (profile.update == "global-norm") or (sets is None) == (norm is None):
        waits = profile.update == "global-norm"
        needed, other = ("norm_bound", "bound") if waits else ("bound", "norm_bound")
        yield f'expected {needed} and no {other}, as the update of the profile is "{profile.update}"'
        return
    if sets is not None:
        yield from check_set(profile, sets, times, "bound")
        yield from _check_both_lines(profile, times, sets)
    if norm is None:
        return
    nothing = dict.fromkeys(times.ready, 0.0)
    before = replace(times, tail=nothing)
    after = replace(times, ready=nothing)
    for field, half, chain, flat in (
        ("norm_bound.reduce_scatter", HALVES[0], norm.reduce_scatter, before),
        ("norm_bound.all_gather", HALVES[1], norm.all_gather, after),
    ):
        yield from check_line(
            profile,
            flat,
            field,
            chain,
            lambda size, half=half: half_s(profile, half, size),  # type: ignore[misc]
        )
        yield from check_chain(profile, chain, flat, behind_s=0.0, field=field)
    sent = any(gradient.size_bytes for gradient in profile.gradients)
    exchange = allreduce_s(profile.allreduce, profile.workers, NORM_BYTES) if sent else 0.0
    if not same(norm.norm_s, exchange, times):
        yield f"norm_bound.norm_s is {norm.norm_s!r}, derived {exchange!r}"
    total = norm.reduce_scatter.bound_s + norm.norm_s + norm.all_gather.bound_s
    if not same(norm.bound_s, total, times):
        yield f"norm_bound.bound_s is {norm.bound_s!r}, its parts add up to {total!r}"
