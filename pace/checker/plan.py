"""The judge of schedules of all-reduces: groups and segments are the profile's, complete, and possible.

Times, proofs and slots are checked by the modules beside it.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import inf

from pace.checker.collective_times import allreduce_s
from pace.checker.derived_times import ComputeProgress, DerivedTimes, derive, same
from pace.checker.proofs import check_bound, check_chain_bound, check_predictions, check_proof, check_slots
from pace.checker.under_load import check_under_load
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule


def check_identity(profile: Profile, schedule: Schedule) -> Iterator[str]:
    """Yield what shows that the schedule was made for another profile."""
    if schedule.profile_sha256 != profile.sha256:
        yield f"profile_sha256 is {schedule.profile_sha256}, the profile's is {profile.sha256}"
    if schedule.fingerprint != profile.fingerprint:
        yield f"fingerprint is {schedule.fingerprint}, the profile's is {profile.fingerprint}"


def check_execution(schedule: Schedule) -> Iterator[str]:
    """Yield what a runtime would do otherwise than the transfers say."""
    if not schedule.transfers:
        return
    count, most = schedule.execution.max_in_flight, schedule.execution.max_segment_bytes
    if count != 1:
        yield f"execution.max_in_flight is {count}: times are those of one transfer at a time"
    largest = max(transfer.size_bytes for transfer in schedule.transfers)
    if most != largest:
        yield f"execution.max_segment_bytes is {most}, the largest transfer has {largest}"
    if schedule.solver.slot_s is not None:
        return
    each = 2 if schedule.exchange == "servers" else 1
    for number, transfer in enumerate(schedule.transfers):
        place = number // each
        if transfer.priority != place:
            yield f"transfers[{number}]: priority is {transfer.priority}, its place in the list is {place}"


def check_groups(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield what is wrong with the groups: every gradient in one, times and sizes as derived."""
    gradients = {gradient.name: gradient for gradient in profile.gradients}
    placed: set[str] = set()
    for number, group in enumerate(schedule.groups):
        unknown = [name for name in group.tensors if name not in gradients]
        for name in unknown:
            yield f'group {number}: "{name}" is no gradient of the profile'
        for name in group.tensors:
            if name in placed:
                yield f'group {number}: gradient "{name}" is in two places'
            placed.add(name)
        if unknown:
            continue
        members = [gradients[name] for name in group.tensors]
        for gradient in members:
            if gradient.dtype != group.dtype:
                yield f'group {number}: gradient "{gradient.name}" is {gradient.dtype}, not {group.dtype}'
        size = sum(gradient.size_bytes for gradient in members)
        if size != group.size_bytes:
            yield f"group {number}: size_bytes is {group.size_bytes}, its gradients have {size}"
        expected = [
            ("ready_s", group.ready_s, max(times.ready[name] for name in group.tensors)),
            ("tail_s", group.tail_s, max(times.tail[name] for name in group.tensors)),
        ]
        if group.transfer_s is not None:
            duration = allreduce_s(profile.allreduce, profile.workers, size)
            expected.append(("transfer_s", group.transfer_s, duration))
        for field, stated, derived in expected:
            if not same(stated, derived, times):
                yield f"group {number}: {field} is {stated!r}, derived {derived!r}"
    for name in gradients:
        if name not in placed:
            yield f'gradient "{name}" is in no group'


def beside_compute(
    schedule: Schedule, times: DerivedTimes, progress: ComputeProgress
) -> list[tuple[float, ...]]:
    """Return for each segment what it takes longer because compute runs when it starts.

    Both 0 and the extra time are possible if compute ends just then. Compute is one stream: the ops that wait
    for no gradient, then those that wait for groups, in order of their tails. For reduce-scatters none waits.
    """
    transfers = schedule.transfers
    if not times.extra_s:
        return [(0.0,)] * len(transfers)
    ends = dict.fromkeys(range(len(schedule.groups)), -inf)
    for segment in transfers:
        ends[segment.group] = max(ends[segment.group], progress.until(segment.end_s))
    needed = sorted((-schedule.groups[number].tail_s, number) for number, end in ends.items() if end > -inf)
    found: list[tuple[float, ...]] = []
    at, idle_at = 0, times.backward_s
    left = Counter(segment.group for segment in transfers)
    for segment in transfers:
        start = progress.until(segment.start_s)
        while at < len(needed) and not left[needed[at][1]]:
            negative_tail, number = needed[at]
            at += 1
            following = -needed[at][0] if at < len(needed) else -inf
            idle_at = max(idle_at, ends[number]) - negative_tail - following
        left[segment.group] -= 1
        extra = times.extra_of(segment.size_bytes)
        if abs(start - idle_at) <= times.slack_s:
            found.append((0.0, extra))
        else:
            found.append((extra if start < idle_at else 0.0,))
    return found


def check_segments(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield what is wrong with the segments: each byte sent once, when it is ready, one at a time."""
    covered: list[list[tuple[int, int]]] = [[] for _ in schedule.groups]
    progress = ComputeProgress(((each.start_s, each.end_s) for each in schedule.transfers), times)
    beside = beside_compute(schedule, times, progress)
    for number, segment in enumerate(schedule.transfers):
        group = schedule.groups[segment.group]
        covered[segment.group].append((segment.offset_bytes, segment.offset_bytes + segment.size_bytes))
        if progress.until(segment.start_s) < group.ready_s - times.slack_s:
            start_s, ready_s = segment.start_s, group.ready_s
            yield f"transfers[{number}]: starts at {start_s!r}, its group is ready at {ready_s!r}"
        duration = allreduce_s(profile.allreduce, profile.workers, segment.size_bytes)
        stated = segment.end_s - segment.start_s
        if not any(same(stated, duration + extra, times) for extra in beside[number]):
            duration += beside[number][0]
            yield f"transfers[{number}]: takes {stated!r} s, derived {duration!r}"
    yield from check_execution(schedule)
    for number, ranges in enumerate(covered):
        at = 0
        for start, stop in sorted(ranges):
            if start != at:
                yield f"group {number}: byte {min(start, at)} is sent twice or never"
            at = stop
        if at != schedule.groups[number].size_bytes:
            yield f"group {number}: {at} of {schedule.groups[number].size_bytes} bytes are sent"
    by_time = sorted(
        range(len(schedule.transfers)),
        key=lambda n: (schedule.transfers[n].start_s, schedule.transfers[n].end_s),
    )
    for first, second in pairwise(by_time):
        if schedule.transfers[second].start_s < schedule.transfers[first].end_s - times.slack_s:
            yield f"transfers[{first}] and transfers[{second}] are on the network at the same time"
        # Only what takes no slot may share the priority of what follows.
        step = 0 if schedule.transfers[first].num_slots == 0 else 1
        if schedule.transfers[second].priority < schedule.transfers[first].priority + step:
            yield f"transfers[{first}] and transfers[{second}]: priorities do not follow the order of sending"


def check_allreduce(profile: Profile, schedule: Schedule) -> list[str]:
    """Return every way in which a schedule of all-reduces is wrong for its profile."""
    times = derive(profile, schedule)
    parts = (
        check_identity(profile, schedule),
        check_groups(profile, schedule, times),
        check_segments(profile, schedule, times),
        check_slots(schedule, times),
        check_predictions(schedule, times),
        check_proof(schedule, times),
        check_bound(profile, schedule, times),
        check_chain_bound(profile, schedule, times),
    )
    violations = [violation for part in parts for violation in part]
    # Calls of gradients that are not the profile's have no times.
    return violations or list(check_under_load(profile, schedule, times))
