"""Schedules in two halves, judged: calls, segments, the norm, predictions, and the proofs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pace.checker.allreduce import allreduce_s
from pace.checker.derived_times import ComputeProgress, DerivedTimes, derive, same
from pace.checker.halves import HalfOfExchange, half_s
from pace.checker.plan import check_identity
from pace.checker.proofs import check_chain, check_line, check_set, least_stretch_s
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.documents.push_pull import PushPull
from pace.documents.sharded_schedule import HalfCall, ShardedSchedule

HALVES: tuple[HalfOfExchange, HalfOfExchange] = ("reduce-scatter", "all-gather")
NORM_BYTES = 8


def check_sharded(profile: Profile, schedule: ShardedSchedule) -> list[str]:
    """Return every way in which a schedule in two halves is not a right answer for `profile`."""
    violations = [*check_identity(profile, schedule)]
    if isinstance(profile.allreduce, PushPull):
        return [*violations, "the profile exchanges gradients over parameter servers, which have no halves"]
    if schedule.workers != profile.workers:
        violations.append(f"workers is {schedule.workers}, the profile's {profile.workers}")
    if schedule.update != profile.update:
        violations.append(f'update is "{schedule.update}", the profile\'s is "{profile.update}"')
    times = derive(profile, schedule)
    wrong = [*_check_shards(profile, schedule)]
    if wrong or violations:
        return violations + wrong
    parts = (
        _check_calls(profile, schedule, times),
        _check_segments(profile, schedule, times),
        _check_order(schedule, times),
        _check_norm(profile, schedule, times),
        _check_predictions(profile, schedule, times),
        _check_certificate(schedule, times, _floor(profile, times)),
        _check_bounds(profile, schedule, times),
    )
    return [violation for part in parts for violation in part]


def _check_shards(profile: Profile, schedule: ShardedSchedule) -> Iterator[str]:
    gradients = {gradient.name: gradient for gradient in profile.gradients}
    placed: set[str] = set()
    for number, shard in enumerate(schedule.shards):
        unknown = [name for name in shard.gradients if name not in gradients]
        for name in unknown:
            yield f'shard {number}: "{name}" is no gradient of the profile'
        placed.update(shard.gradients)
        if unknown:
            continue
        members = [gradients[name] for name in shard.gradients]
        for gradient in members:
            if gradient.dtype != shard.dtype:
                yield f'shard {number}: gradient "{gradient.name}" is {gradient.dtype}, not {shard.dtype}'
        elements = sum(gradient.size_bytes // ELEMENT_BYTES[gradient.dtype] for gradient in members)
        columns = (elements + schedule.workers - 1) // schedule.workers
        if shard.num_columns != columns:
            yield f"shard {number}: num_columns is {shard.num_columns}, its gradients need {columns}"
    for name in gradients:
        if name not in placed:
            yield f'gradient "{name}" is in no shard'


def _names(schedule: ShardedSchedule, call: HalfCall) -> list[str]:
    return [name for shard in call.shards for name in schedule.shards[shard].gradients]


def _check_calls(profile: Profile, schedule: ShardedSchedule, times: DerivedTimes) -> Iterator[str]:
    for half in HALVES:
        own = times.ready if half == "reduce-scatter" else times.tail
        for number, call in enumerate(schedule.calls[half]):
            expected = (
                ("time_s", call.time_s, max(own[name] for name in _names(schedule, call))),
                ("duration_s", call.duration_s, half_s(profile, half, call.size_bytes)),
            )
            for field, stated, derived in expected:
                if not same(stated, derived, times):
                    yield f"{half} {number}: {field} is {stated!r}, derived {derived!r}"


def _check_segments(profile: Profile, schedule: ShardedSchedule, times: DerivedTimes) -> Iterator[str]:
    progress = ComputeProgress(_carried(schedule), times)
    for number, segment in enumerate(schedule.segments):
        call = schedule.calls[segment.half][segment.call]
        size = segment.num_columns * schedule.column_bytes_of(call)
        duration = half_s(profile, segment.half, size)
        stated = segment.end_s - segment.start_s
        if not same(stated, duration, times):
            yield f"segment {number}: takes {stated!r} s, derived {duration!r}"
        if size > schedule.execution.max_segment_bytes:
            yield f"segment {number}: {size} bytes exceed execution.max_segment_bytes"
        early = progress.until(segment.start_s) < call.time_s - times.slack_s
        if segment.half == "reduce-scatter" and early:
            yield f"segment {number}: starts at {segment.start_s!r}, before its call is ready"
    if schedule.segments and schedule.execution.credit_bytes == 0:
        yield "execution.credit_bytes is 0: no segment may be sent"
    by_time = sorted(
        range(len(schedule.segments)),
        key=lambda n: (
            schedule.segments[n].start_s,
            schedule.segments[n].end_s,
            schedule.segments[n].priority,
        ),
    )
    for first, second in pairwise(by_time):
        if schedule.segments[second].start_s < schedule.segments[first].end_s - times.slack_s:
            yield f"segments {first} and {second} are on the network at the same time"
        if schedule.segments[second].priority < schedule.segments[first].priority:
            yield f"segments {first} and {second}: priorities do not follow the order of sending"


def _carried(schedule: ShardedSchedule) -> list[tuple[float, float]]:
    """Return when the network carries something; a norm of nothing holds up nothing."""
    norm = [(schedule.norm.start_s, schedule.norm.end_s)] if schedule.norm and schedule.segments else []
    return [(segment.start_s, segment.end_s) for segment in schedule.segments] + norm


def _all_calls_s(schedule: ShardedSchedule) -> float:
    """Return how long the network carries something if every call is sent in one piece."""
    norm = schedule.norm if schedule.segments else None
    norm_s = 0.0 if norm is None else norm.end_s - norm.start_s
    return sum((call.duration_s for half in HALVES for call in schedule.calls[half]), norm_s)


def _ends(schedule: ShardedSchedule) -> dict[HalfOfExchange, list[float]]:
    ends: dict[HalfOfExchange, list[float]] = {half: [0.0] * len(schedule.calls[half]) for half in HALVES}
    for segment in schedule.segments:
        ends[segment.half][segment.call] = max(ends[segment.half][segment.call], segment.end_s)
    return ends


def _needs(schedule: ShardedSchedule) -> list[set[int]]:
    """Return, for every gather, the reduce-scatters of its shards."""
    carrier = {shard: number for number, call in enumerate(schedule.reduce_scatters) for shard in call.shards}
    return [{carrier[shard] for shard in call.shards} for call in schedule.all_gathers]


def _check_order(schedule: ShardedSchedule, times: DerivedTimes) -> Iterator[str]:
    """Yield the gathers that begin before their shards are summed and updated."""
    ends, needs = _ends(schedule)["reduce-scatter"], _needs(schedule)
    for number, segment in enumerate(schedule.segments):
        if segment.half != "all-gather":
            continue
        summed = max(ends[call] for call in needs[segment.call])
        if segment.start_s < summed - times.slack_s:
            yield f"segment {number}: gathers at {segment.start_s!r} what is summed at {summed!r}"
        if schedule.norm is not None and segment.start_s < schedule.norm.end_s - times.slack_s:
            yield f"segment {number}: gathers at {segment.start_s!r}, before the norm is known"


def _check_norm(profile: Profile, schedule: ShardedSchedule, times: DerivedTimes) -> Iterator[str]:
    norm = schedule.norm
    if (norm is not None) != (profile.update == "global-norm"):
        yield f'norm is {"there" if norm else "null"}, updates are "{profile.update}"'
        return
    if norm is None:
        return
    takes = allreduce_s(profile.allreduce, profile.workers, NORM_BYTES)
    if not same(norm.end_s - norm.start_s, takes, times):
        yield f"norm: takes {norm.end_s - norm.start_s!r} s, derived {takes!r}"
    summed = max(_ends(schedule)["reduce-scatter"], default=0.0)
    if norm.start_s < summed - times.slack_s:
        yield f"norm: exchanged at {norm.start_s!r}, the last reduce-scatter ends at {summed!r}"


def _floor(profile: Profile, times: DerivedTimes) -> float:
    unsent = [
        times.ready[gradient.name] + times.tail[gradient.name]
        for gradient in profile.gradients
        if not gradient.size_bytes
    ]
    return max([times.compute_s, *unsent])


def _check_predictions(profile: Profile, schedule: ShardedSchedule, times: DerivedTimes) -> Iterator[str]:
    predicted, floor = schedule.predicted, _floor(profile, times)
    ends = _ends(schedule)["all-gather"]
    progress = ComputeProgress(_carried(schedule), times)
    realized = [
        progress.until(end) + call.time_s for end, call in zip(ends, schedule.all_gathers, strict=True)
    ]
    stretch = times.lost * sum(end - start for start, end in _carried(schedule))
    proofs = [bound.bound_s for bound in (schedule.norm_bound, schedule.set_bound) if bound is not None]
    lower = max([floor + _least_stretch_s(schedule, times), *proofs])
    ideal = max(floor, _optimum(schedule, times)) + times.lost * _all_calls_s(schedule)
    expected = (
        ("compute_s", predicted.compute_s, times.compute_s),
        ("iteration_s", predicted.iteration_s, max([floor, *realized]) + stretch),
        ("ideal_iteration_s", predicted.ideal_iteration_s, ideal),
        ("lower_bound_s", predicted.lower_bound_s, lower),
    )
    for field, stated, derived in expected:
        if not same(stated, derived, times):
            yield f"predicted.{field} is {stated!r}, derived {derived!r}"
    gap = predicted.iteration_s / lower - 1 if lower else 0.0
    if abs(predicted.gap - gap) > 1e-6:
        yield f"predicted.gap is {predicted.gap!r}, derived {gap!r}"


def _least_stretch_s(schedule: ShardedSchedule, times: DerivedTimes) -> float:
    """Return what all bytes in one call of each half stretch compute by, priced on the bound's lines."""
    if schedule.set_bound is not None:
        return least_stretch_s(times, schedule.set_bound)
    norm = schedule.norm_bound
    if norm is None:
        return 0.0
    lines = (norm.reduce_scatter, norm.all_gather)
    return sum((least_stretch_s(times, line) for line in lines), times.lost * norm.norm_s)


def _jobs(schedule: ShardedSchedule, rate: float) -> tuple[list[float], list[float], list[float]]:
    """Return ready time, duration and tail of every call, reduce-scatters first; without a norm.

    In seconds of compute, of which each second of traffic is `rate`.
    """
    first, second, needs = schedule.reduce_scatters, schedule.all_gathers, _needs(schedule)
    heads = [
        max(first[call].time_s + first[call].duration_s * rate for call in of_gather) for of_gather in needs
    ]
    tails = [0.0] * len(first)
    for gather, of_gather in zip(second, needs, strict=True):
        for call in of_gather:
            tails[call] = max(tails[call], gather.duration_s * rate + gather.time_s)
    return (
        [call.time_s for call in first] + heads,
        [call.duration_s * rate for call in (*first, *second)],
        tails + [call.time_s for call in second],
    )


def _optimum(schedule: ShardedSchedule, times: DerivedTimes) -> float:
    """Return, in seconds of compute, the window below which no preemptive plan of these calls comes."""
    rate = 1 - times.lost
    if not schedule.reduce_scatters:
        return 0.0
    if schedule.norm is None:
        ready, duration, tail = (np.array(values) for values in _jobs(schedule, rate))
        strongest = 0.0
        by_tail = np.argsort(-tail, kind="stable")
        ready, duration, tail = ready[by_tail], duration[by_tail], tail[by_tail]
        for rho in np.unique(ready):
            inside = ready >= rho
            strongest = max(strongest, float(np.max(rho + np.cumsum(duration[inside]) + tail[inside])))
        return strongest
    norm_s = schedule.norm.end_s - schedule.norm.start_s
    longest = _longest(schedule.reduce_scatters, rate) + _longest(schedule.all_gathers, rate)
    return longest + norm_s * rate


def _longest(calls: tuple[HalfCall, ...], rate: float) -> float:
    """Return the maximum over the calls of one's time and the durations of all whose time is no less."""
    time = np.array([call.time_s for call in calls])
    falling = np.argsort(-time, kind="stable")
    behind = np.cumsum(np.array([call.duration_s for call in calls])[falling]) * rate
    return float(np.max(time[falling] + behind))


def _check_certificate(schedule: ShardedSchedule, times: DerivedTimes, floor_s: float) -> Iterator[str]:
    proof = schedule.certificate
    chosen: dict[HalfOfExchange, tuple[int, ...]] = {
        "reduce-scatter": proof.reduce_scatters,
        "all-gather": proof.all_gathers,
    }
    for half, numbers in chosen.items():
        unknown = [number for number in numbers if number >= len(schedule.calls[half])]
        if unknown or len(set(numbers)) < len(numbers):
            yield f"certificate: {half} {list(numbers)} are not calls of the schedule, each once"
            return
    first = [schedule.reduce_scatters[number] for number in proof.reduce_scatters]
    second = [schedule.all_gathers[number] for number in proof.all_gathers]
    norm_s = 0.0
    if schedule.norm is not None:
        ready = [call.time_s for call in first]
        tail = [call.time_s for call in second]
        if (first or second) and not (first and second):
            yield "certificate: with a norm it needs calls of both halves"
        norm_s = schedule.norm.end_s - schedule.norm.start_s if first else 0.0
    else:
        heads, _, tails = _jobs(schedule, 1 - times.lost)
        count = len(schedule.reduce_scatters)
        jobs = [*proof.reduce_scatters, *(count + number for number in proof.all_gathers)]
        ready, tail = [heads[job] for job in jobs], [tails[job] for job in jobs]
    inside = sum(call.duration_s for call in (*first, *second)) + norm_s
    every = _all_calls_s(schedule)
    expected = (
        ("min_ready_s", proof.min_ready_s, min(ready, default=0.0)),
        ("total_reduce_scatter_s", proof.total_reduce_scatter_s, sum(call.duration_s for call in first)),
        ("norm_s", proof.norm_s, norm_s),
        ("total_all_gather_s", proof.total_all_gather_s, sum(call.duration_s for call in second)),
        ("min_tail_s", proof.min_tail_s, min(tail, default=0.0)),
        ("stretch_s", proof.stretch_s, times.lost * (every - inside)),
    )
    for field, stated, derived in expected:
        if not same(stated, derived, times):
            yield f"certificate.{field} is {stated!r}, derived {derived!r}"
    total = sum(stated for _, stated, _ in expected)
    if not same(proof.bound_s, total, times):
        yield f"certificate.bound_s is {proof.bound_s!r}, its parts add up to {total!r}"
    hidden = floor_s + times.lost * every
    if not same(max(hidden, proof.bound_s), schedule.predicted.ideal_iteration_s, times):
        yield f"certificate.bound_s {proof.bound_s!r} does not prove predicted.ideal_iteration_s"


def _check_bounds(profile: Profile, schedule: ShardedSchedule, times: DerivedTimes) -> Iterator[str]:
    norm, sets = schedule.norm_bound, schedule.set_bound
    if (norm is None) == (profile.update == "global-norm") or (sets is None) == (norm is None):
        yield "bounds: with a norm norm_bound is the proof, without one set_bound"
        return
    if sets is not None:
        yield from check_set(profile, sets, times, "set_bound")

        def both(size: int) -> float:
            return sum(half_s(profile, half, size) for half in HALVES)

        yield from check_line(profile, times, "set_bound", sets, both)
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
