"""The order in which a sharded plan is sent if no update waits for a norm.

A gather is sent as soon as the reduce-scatters that it needs are done, before less urgent reduce-scatters.
But no gather is sent before ``step()``, as user code may change gradients and hyper-parameters until then. A
schedule may have gathers during the backward pass, so its order is computed again from ``step()`` on.
"""

import heapq
from collections import deque
from typing import NamedTuple

from pace.documents.schedule import Schedule, Segment


class SendTimes(NamedTuple):
    """When a group may be sent, and the time that follows it.

    Attributes
    ----------
    ready_s
        Earliest start from the window's start, if nothing else were sent.
    tail_s
        Time from the group's end to the window's end.
    """

    ready_s: float
    tail_s: float


class EarlyOrder(NamedTuple):
    """Segments in the order in which they are sent.

    Attributes
    ----------
    groups
        The times of the schedule's groups, by number.
    iteration_s
        Length of the window if segments take as long as in the schedule.
    """

    segments: tuple[Segment, ...]
    groups: tuple[SendTimes, ...]
    iteration_s: float


def order_from_step(schedule: Schedule) -> EarlyOrder:
    """Order the segments of a schedule without a norm for a runtime that gathers nothing before ``step()``.

    Until the last gradient is ready, reduce-scatters keep the schedule's order. From then on, every remaining
    segment is released or needs only released ones. So longest tail first is optimal for the given segments
    (``pace.solver.two_halves.chains``).
    """
    groups = schedule.groups
    scatters, gathers = schedule.groups_of("reduce-scatter"), schedule.groups_of("all-gather")
    step_s = max((group.ready_s for group in scatters.values()), default=0.0)
    gather_of = {shard: number for number, group in gathers.items() for shard in group.shards}
    gathers_after = {
        number: {gather_of[shard] for shard in group.shards} for number, group in scatters.items()
    }
    needed: dict[int, set[int]] = {number: set() for number in gathers}
    for number, after in gathers_after.items():
        for gather in after:
            needed[gather].add(number)
    times = {
        number: SendTimes(group.ready_s, max(groups[n].duration_s + groups[n].tail_s for n in after))
        for (number, group), after in zip(scatters.items(), gathers_after.values(), strict=True)
    }
    for number, group in gathers.items():
        summed = [groups[n].ready_s + groups[n].duration_s for n in needed[number]]
        times[number] = SendTimes(max([step_s, *summed]), group.tail_s)
    now = 0.0
    order: list[Segment] = []
    pieces: list[deque[Segment]] = [deque() for _ in groups]
    planned = sorted(schedule.transfers, key=lambda segment: segment.priority)
    for segment in planned:
        pieces[segment.group].append(segment)
    missing = {number: len(needs) for number, needs in needed.items()}
    heap: list[tuple[float, bool, int]] = []

    def end_call(number: int) -> None:
        for gather in gathers_after[number]:
            missing[gather] -= 1
            if not missing[gather]:
                heapq.heappush(heap, (-times[gather].tail_s, True, gather))

    for segment in planned:
        if segment.op == "reduce-scatter" and now < step_s:
            order.append(pieces[segment.group].popleft())
            now = max(now, times[segment.group].ready_s) + segment.end_s - segment.start_s
            if not pieces[segment.group]:
                end_call(segment.group)
    # Of equal tails, reduce-scatters go first.
    for number in scatters:
        if pieces[number]:
            heapq.heappush(heap, (-times[number].tail_s, False, number))
    now, iteration_s = max(now, step_s), schedule.predicted.compute_s
    while heap:
        tail_s, is_gather, number = heapq.heappop(heap)
        for segment in pieces[number]:
            order.append(segment)
            now += segment.end_s - segment.start_s
        if is_gather:
            iteration_s = max(iteration_s, now - tail_s)
        else:
            end_call(number)
    return EarlyOrder(
        segments=tuple(order),
        groups=tuple(times[number] for number in range(len(groups))),
        iteration_s=iteration_s,
    )
