"""What is sent: whether groups and segments are the profile's, complete, and possible on one network."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pace.checker.allreduce import allreduce_s
from pace.checker.derived_times import ComputeProgress, DerivedTimes, same
from pace.documents.any_schedule import AnySchedule
from pace.documents.profile import Profile
from pace.documents.push_pull_schedule import ExchangeGroup, PushPullSchedule
from pace.documents.schedule import Group, Schedule


def check_identity(profile: Profile, schedule: AnySchedule) -> Iterator[str]:
    """Yield what shows that the schedule was made for another profile."""
    if schedule.profile_sha256 != profile.sha256:
        yield f"profile_sha256 is {schedule.profile_sha256}, the profile's is {profile.sha256}"
    if schedule.fingerprint != profile.fingerprint:
        yield f"fingerprint is {schedule.fingerprint}, the profile's is {profile.fingerprint}"


def check_groups(
    profile: Profile, schedule: Schedule | PushPullSchedule, times: DerivedTimes
) -> Iterator[str]:
    """Yield what is wrong with the groups: every gradient in one, times and sizes as derived."""
    gradients = {gradient.name: gradient for gradient in profile.gradients}
    placed: set[str] = set()
    groups: Sequence[Group | ExchangeGroup] = schedule.groups
    for number, group in enumerate(groups):
        unknown = [name for name in group.gradients if name not in gradients]
        for name in unknown:
            yield f'group {number}: "{name}" is no gradient of the profile'
        for name in group.gradients:
            if name in placed:
                yield f'group {number}: gradient "{name}" is in two places'
            placed.add(name)
        if unknown:
            continue
        members = [gradients[name] for name in group.gradients]
        for gradient in members:
            if gradient.dtype != group.dtype:
                yield f'group {number}: gradient "{gradient.name}" is {gradient.dtype}, not {group.dtype}'
        size = sum(gradient.size_bytes for gradient in members)
        if size != group.size_bytes:
            yield f"group {number}: size_bytes is {group.size_bytes}, its gradients have {size}"
        expected = [
            ("ready_s", group.ready_s, max(times.ready[name] for name in group.gradients)),
            ("tail_s", group.tail_s, max(times.tail[name] for name in group.gradients)),
        ]
        if isinstance(group, Group):
            duration = allreduce_s(profile.allreduce, profile.workers, size)
            expected.append(("allreduce_s", group.allreduce_s, duration))
        for field, stated, derived in expected:
            if not same(stated, derived, times):
                yield f"group {number}: {field} is {stated!r}, derived {derived!r}"
    for name in gradients:
        if name not in placed:
            yield f'gradient "{name}" is in no group'


def check_segments(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield what is wrong with the segments: each byte sent once, when it is ready, one at a time."""
    covered: list[list[tuple[int, int]]] = [[] for _ in schedule.groups]
    progress = ComputeProgress(((each.start_s, each.end_s) for each in schedule.segments), times)
    for number, segment in enumerate(schedule.segments):
        group = schedule.groups[segment.group]
        covered[segment.group].append((segment.offset_bytes, segment.offset_bytes + segment.size_bytes))
        if progress.until(segment.start_s) < group.ready_s - times.slack_s:
            yield f"segment {number}: starts at {segment.start_s!r}, its group is ready at {group.ready_s!r}"
        duration = allreduce_s(profile.allreduce, profile.workers, segment.size_bytes)
        if not same(segment.end_s - segment.start_s, duration, times):
            stated = segment.end_s - segment.start_s
            yield f"segment {number}: takes {stated!r} s, derived {duration!r}"
        if segment.size_bytes > schedule.execution.max_segment_bytes:
            yield f"segment {number}: {segment.size_bytes} bytes exceed execution.max_segment_bytes"
    if schedule.segments and not schedule.execution.credit_bytes:
        yield "execution.credit_bytes is 0: no segment may be sent"
    for number, ranges in enumerate(covered):
        at = 0
        for start, stop in sorted(ranges):
            if start != at:
                yield f"group {number}: byte {min(start, at)} is sent twice or never"
            at = stop
        if at != schedule.groups[number].size_bytes:
            yield f"group {number}: {at} of {schedule.groups[number].size_bytes} bytes are sent"
    by_time = sorted(
        range(len(schedule.segments)),
        key=lambda n: (schedule.segments[n].start_s, schedule.segments[n].end_s),
    )
    for first, second in pairwise(by_time):
        if schedule.segments[second].start_s < schedule.segments[first].end_s - times.slack_s:
            yield f"segments {first} and {second} are on the network at the same time"
        # Only what takes no slot may share the priority of what follows.
        step = 0 if schedule.segments[first].num_slots == 0 else 1
        if schedule.segments[second].priority < schedule.segments[first].priority + step:
            yield f"segments {first} and {second}: priorities do not follow the order of sending"
