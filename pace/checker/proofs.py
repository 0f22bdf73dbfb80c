"""What is claimed: predictions, the certificate, bounds against every other fusion, and fixed slots."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from pace.checker.collective_times import allreduce_s
from pace.checker.derived_times import TOLERANCE, ComputeProgress, DerivedTimes, check_predicted, same
from pace.documents.collective_costs import SampledAllReduce, SampledHalf
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.documents.proofs import ChainBound, SetBound
from pace.documents.schedule import Schedule

# More than any schedule has: what is stated may be anything.
MOST_SLOTS = 1e300


def check_predictions(schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield the predictions that do not follow from the segments and the profile."""
    carried = [(segment.start_s, segment.end_s) for segment in schedule.transfers]
    progress = ComputeProgress(carried, times)
    # In seconds of compute; all traffic ends within the window, which it lengthens by the same in any order.
    ends = [group.ready_s for group in schedule.groups]
    for segment in schedule.transfers:
        ends[segment.group] = max(ends[segment.group], progress.until(segment.end_s))
    realized = max(
        (end + group.tail_s for end, group in zip(ends, schedule.groups, strict=True)), default=0.0
    )
    realized = max(times.compute_s, realized) + times.lost * sum(end - start for start, end in carried)
    stretch = times.lost * sum(_jobs(schedule, times)[1])
    bounds = [bound for bound in (schedule.bound, schedule.chain_bound) if bound is not None]
    hidden = times.compute_s + max(least_stretch_s(times, bound) for bound in bounds)
    lower = max(hidden, *(bound.bound_s for bound in bounds))
    ideal = max(times.compute_s, _strongest_set(schedule, times)) + stretch
    derived = {"iteration_s": realized, "ideal_iteration_s": ideal, "lower_bound_s": lower}
    yield from check_predicted(schedule, times, derived)


def check_proof(schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield why the proof does not prove the ideal."""
    (proof,) = schedule.proofs
    unknown = [number for number in proof.set if number >= len(schedule.groups)]
    if unknown or len(set(proof.set)) < len(proof.set):
        yield f"proof: groups {list(proof.set)} are not groups of the schedule, each once"
        return
    ready, duration, tail = _jobs(schedule, times)
    outside = sum(duration) - sum(duration[n] for n in proof.set)
    hidden = times.compute_s + times.lost * sum(duration)
    expected = (
        ("min_ready_s", proof.min_ready_s, min((ready[n] for n in proof.set), default=0.0)),
        ("total_s", proof.total_s, sum(duration[n] for n in proof.set)),
        ("min_tail_s", proof.min_tail_s, min((tail[n] for n in proof.set), default=0.0)),
        ("stretch_s", proof.stretch_s, times.lost * outside),
        (
            "bound_s",
            proof.bound_s,
            proof.min_ready_s + proof.total_s + proof.min_tail_s + proof.stretch_s,
        ),
    )
    for field, stated, derived in expected:
        if not same(stated, derived, times):
            yield f"proof.{field} is {stated!r}, derived {derived!r}"
    if not same(max(hidden, proof.bound_s), schedule.predicted.ideal_iteration_s, times):
        yield f"proof.bound_s {proof.bound_s!r} does not prove predicted.ideal_iteration_s"


def least_stretch_s(times: DerivedTimes, bound: SetBound | ChainBound) -> float:
    """Return what all bytes in one call stretch compute by, at the price of a bound's line."""
    return (
        times.lost * (bound.latency_s + times.total_bytes * bound.seconds_per_byte)
        if times.total_bytes
        else 0.0
    )


def least_durations(schedule: Schedule) -> list[float]:
    """Return the seconds of each group in one piece, or in its segments if these take less."""
    cut = [0.0] * len(schedule.groups)
    for segment in schedule.transfers:
        cut[segment.group] += segment.end_s - segment.start_s
    return [
        parts if parts < group.duration_s * (1 - TOLERANCE) else group.duration_s
        for parts, group in zip(cut, schedule.groups, strict=True)
    ]


def _jobs(schedule: Schedule, times: DerivedTimes) -> tuple[list[float], list[float], list[float]]:
    """Return ready time, duration and tail of every group in seconds, rounded as the oracle rounds them.

    It rounds on the clock of compute, which traffic slows down.
    """
    slot_s = schedule.solver.slot_s
    ready = [group.ready_s for group in schedule.groups]
    duration = least_durations(schedule)
    if slot_s is not None:
        duration = [group.duration_s for group in schedule.groups]
        ready = [slots(value, slot_s) * slot_s for value in ready]
        rate = 1 - times.lost
        duration = [slots_served(value * rate, slot_s) * slot_s / rate for value in duration]
    return ready, duration, [group.tail_s for group in schedule.groups]


def _strongest_set(schedule: Schedule, times: DerivedTimes) -> float:
    """Return the maximum over all sets {r >= rho, q >= theta} of min r + sum p + min q, in O(n^2).

    In seconds of compute, of which a transfer takes fewer where it slows compute down.
    """
    if not schedule.groups:
        return 0.0
    ready, duration, tail = (np.array(values) for values in _jobs(schedule, times))
    duration *= 1 - times.lost
    best = 0.0
    by_tail = np.argsort(-tail, kind="stable")
    ready, duration, tail = ready[by_tail], duration[by_tail], tail[by_tail]
    for rho in np.unique(ready):
        inside = ready >= rho
        best = max(best, float(np.max(rho + np.cumsum(duration[inside]) + tail[inside])))
    return best


def check_bound(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield why the bound against every fusion does not hold."""
    assert schedule.bound is not None
    yield from check_set(profile, schedule.bound, times, "bound")
    yield from check_line(profile, times, "bound", schedule.bound)


def check_set(profile: Profile, bound: SetBound, times: DerivedTimes, field: str) -> Iterator[str]:
    """Yield why a set of gradients does not prove its bound, its line aside."""
    slack = times.slack_s
    inside = [
        gradient.size_bytes
        for gradient in profile.gradients
        if gradient.size_bytes
        and times.ready[gradient.name] >= bound.min_ready_s - slack
        and times.tail[gradient.name] >= bound.min_tail_s - slack
    ]
    most = sum(sorted(inside, reverse=True)[: bound.num_gradients])
    if bound.total_bytes > most or bound.num_gradients > len(inside):
        count = bound.num_gradients
        yield (
            f"{field}: {count} gradients have {bound.total_bytes} bytes, but the largest {count} of the "
            f"{len(inside)} that qualify have {most}"
        )
    per_byte = bound.total_bytes * bound.seconds_per_byte
    stretch = times.lost * (times.total_bytes - bound.total_bytes) * bound.seconds_per_byte
    if not same(bound.stretch_s, stretch, times):
        yield f"{field}.stretch_s is {bound.stretch_s!r}, derived {stretch!r}"
    # Without a byte there is no call that starts after min_ready_s, and nothing is proved.
    if bound.extra_s > times.later(bound.min_ready_s) - bound.min_ready_s + times.slack_s:
        yield f"{field}.extra_s is {bound.extra_s!r}, at most {times.later(bound.min_ready_s)!r} is proved"
    parts = bound.min_ready_s + bound.extra_s + bound.latency_s + per_byte
    parts += bound.min_tail_s + bound.stretch_s
    total = parts if bound.total_bytes else 0.0
    if not same(bound.bound_s, total, times):
        yield f"{field}.bound_s is {bound.bound_s!r}, its parts add up to {total!r}"


def check_chain_bound(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Show that no contiguous partition of the relaxed chain is faster than chain_bound says."""
    bound = schedule.chain_bound
    assert bound is not None
    yield from check_line(profile, times, "chain_bound", bound)
    yield from check_chain(profile, bound, times, behind_s=0.0)


def check_chain(
    profile: Profile,
    bound: ChainBound,
    times: DerivedTimes,
    *,
    behind_s: float,
    field: str = "chain_bound",
) -> Iterator[str]:
    """Show that no contiguous partition is faster than a chain bound; every tail is `behind_s` longer."""
    chain = [
        (times.ready[gradient.name], times.tail[gradient.name] + behind_s, gradient.size_bytes)
        for gradient in profile.gradients
        if gradient.size_bytes
    ]
    if not chain:
        if bound.bound_s:
            yield f"{field}.bound_s is {bound.bound_s!r}, there is nothing to send"
        return
    # Of gradients ready together the one needed last comes first: that relaxes the chain least.
    chain.sort(
        key=lambda gradient: gradient if bound.order == "ready" else (gradient[1], gradient[0], gradient[2])
    )
    ready, tail, size = (np.array(values, dtype=float) for values in zip(*chain, strict=True))
    ready = np.array([times.later(each) for each in ready.tolist()])
    relaxed = tail if bound.order == "ready" else ready
    relaxed[:] = np.minimum.accumulate(relaxed[::-1])[::-1]
    # fewest[i]: the fewest groups that send everything from i on within the limit, or inf. All in seconds of
    # compute, of which a transfer takes fewer where it slows compute down.
    limit = bound.bound_s - least_stretch_s(times, bound) - 2 * times.slack_s
    rate = 1 - times.lost
    latency_s = bound.latency_s * rate
    behind = size[::-1].cumsum()[::-1] * bound.seconds_per_byte * rate
    fewest = np.full(len(size) + 1, np.inf)
    fewest[-1] = 0.0
    for first in range(len(size) - 1, -1, -1):
        possible = np.flatnonzero(np.isfinite(fewest[first + 1 :]))
        groups = 1 + fewest[first + 1 + possible]
        windows = ready[first + possible] + tail[first + possible] + groups * latency_s + behind[first]
        # Strictly: a window of 0 s, in which no two times may differ, is no faster than 0 s.
        fewest[first] = np.min(groups[windows < limit], initial=np.inf)
    if np.isfinite(fewest[0]):
        yield f"{field}.bound_s is {bound.bound_s!r}, {int(fewest[0])} contiguous groups are faster"


def sizes_of_calls(profile: Profile) -> list[int]:
    """Return sizes of calls, in bytes, among which any cost is closest to a line; none if nothing is sent."""
    everything = sum(gradient.size_bytes for gradient in profile.gradients)
    if not everything:
        return []
    sizes = {int(size) for size in np.geomspace(1, everything, 200)}
    for document in (profile.allreduce, profile.reduce_scatter, profile.all_gather):
        if isinstance(document, SampledAllReduce | SampledHalf):
            for size, _ in document.samples:
                sizes |= {around for around in (math.floor(size), math.ceil(size)) if around <= everything}
    return sorted(sizes)


def check_line(
    profile: Profile,
    times: DerivedTimes,
    field: str,
    bound: SetBound | ChainBound,
    duration_s: Callable[[int], float] | None = None,
) -> Iterator[str]:
    """Show that no call costs less than a bound's line says; by default, no all-reduce."""
    slack = times.slack_s
    for size in sizes_of_calls(profile):
        least = bound.latency_s + size * bound.seconds_per_byte
        if duration_s is None:
            real = allreduce_s(profile.allreduce, profile.workers, size)
        else:
            real = duration_s(size)
        if least > real * (1 + TOLERANCE) + slack:
            what = "an all-reduce" if duration_s is None else "a call"
            yield f"{field}: its line says {least!r} s for {size} bytes, {what} takes {real!r}"
            return


def check_slots(schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield what is wrong with the slots, or with slots where there should be none."""
    slot_s = schedule.solver.slot_s
    if slot_s is None:
        for number, segment in enumerate(schedule.transfers):
            for field in ("start_slot", "num_slots"):
                if (value := getattr(segment, field)) is not None:
                    yield f"transfers[{number}].{field} is {value}: expected null, as solver.slot_s is null"
        return
    taken: list[tuple[int, int, int]] = []
    used = [0] * len(schedule.groups)
    for number, segment in enumerate(schedule.transfers):
        if segment.start_slot is None or segment.num_slots is None:
            yield f"transfers[{number}]: expected start_slot and num_slots, as solver.slot_s is {slot_s!r}"
            continue
        if segment.priority != segment.start_slot:
            start = segment.start_slot
            yield f"transfers[{number}].priority is {segment.priority}: expected its start_slot, {start}"
        ready = slots(schedule.groups[segment.group].ready_s, slot_s)
        if segment.start_slot < ready:
            yield (
                f"transfers[{number}].start_slot is {segment.start_slot}: expected at least {ready}, when "
                "its group is ready"
            )
        if not segment.num_slots and schedule.groups[segment.group].duration_s:
            yield f"transfers[{number}].num_slots is 0: expected at least 1, as its group takes time"
        if segment.num_slots:
            taken.append((segment.start_slot, segment.start_slot + segment.num_slots, number))
        used[segment.group] += segment.num_slots
    taken.sort()
    for (_, end, first), (start, _, second) in pairwise(taken):
        if start < end:
            yield f"transfers[{first}] and transfers[{second}] are both in slot {start}: expected only one"
    for number, group in enumerate(schedule.groups):
        needed = slots_served(group.duration_s * (1 - times.lost), slot_s)
        # With fewer elements than slots some slots carry nothing, and have no segment.
        idle = group.size_bytes // ELEMENT_BYTES[group.dtype] < needed
        if used[number] > needed or (used[number] < needed and not idle):
            yield f"group {number}: its transfers have {used[number]} slots: expected {needed}"
    ends = [
        (segment.start_slot + segment.num_slots) * slot_s + schedule.groups[segment.group].tail_s
        for segment in schedule.transfers
        if segment.start_slot is not None and segment.num_slots is not None
    ]
    # Slots are of seconds of compute; what they serve stretches the window.
    served = sum(used) * slot_s / (1 - times.lost)
    latest = max([times.compute_s, *ends]) + times.lost * served
    if latest > schedule.predicted.ideal_iteration_s + times.slack_s:
        ideal = schedule.predicted.ideal_iteration_s
        yield f"predicted.ideal_iteration_s is {ideal!r}: expected at least {latest!r}, as slots end then"


def slots(seconds: float, slot_s: float) -> int:
    """Return the first slot that starts no earlier."""
    return math.ceil(min(seconds / slot_s, MOST_SLOTS) - TOLERANCE)


def slots_served(seconds: float, slot_s: float) -> int:
    """Return how many slots an all-reduce takes: at least one, if it takes any time."""
    return max(slots(seconds, slot_s), 1) if seconds > 0 else 0
