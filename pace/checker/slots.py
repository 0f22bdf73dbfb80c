"""Slots of fixed length: whether each serves one group, and each group as many as it needs."""

import math
from collections.abc import Iterator
from itertools import pairwise

from pace.checker.derived_times import TOLERANCE, DerivedTimes
from pace.documents.profile import ELEMENT_BYTES
from pace.documents.schedule import Schedule

# More than any schedule has: what is stated may be anything.
MOST_SLOTS = 1e300


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
