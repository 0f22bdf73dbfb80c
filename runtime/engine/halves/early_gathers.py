"""The order in which a plan in two halves is sent where no update waits for a norm.

A gather goes as soon as the reduce-scatters that it needs are done, before reduce-scatters that are less
urgent. None goes before ``step()``: until then user code may change gradients and hyper-parameters. So the
order of a schedule, in which a gather may go while the backward pass still runs, is made anew from then on.
"""

import heapq
from collections import deque
from typing import NamedTuple

from pace.documents.sharded_schedule import HalfName, HalfSegment, ShardedSchedule


class CallTimes(NamedTuple):
    """When a call may begin and how much follows it.

    Attributes
    ----------
    ready_s
        From the window's start, if nothing else were sent.
    tail_s
        From its end to the window's.
    """

    ready_s: float
    tail_s: float


class EarlyOrder(NamedTuple):
    """Segments in the order in which they are sent.

    Attributes
    ----------
    scattered, gathered
        By call.
    iteration_s
        The window, if segments take as long as in the schedule.
    """

    segments: tuple[HalfSegment, ...]
    scattered: tuple[CallTimes, ...]
    gathered: tuple[CallTimes, ...]
    iteration_s: float


def order_from_step(schedule: ShardedSchedule) -> EarlyOrder:
    """Order the segments of a schedule without a norm for a runtime that gathers nothing before ``step()``.

    Until the last gradient is ready, reduce-scatters go as the schedule has them. From then on everything
    that is left is released, or needs only what is: the longest tail goes first, which is optimal for given
    segments (``pace.solver.two_halves.chains``) as no chain is ever broken.
    """
    step_s = max((call.time_s for call in schedule.reduce_scatters), default=0.0)
    gather_of = {shard: number for number, call in enumerate(schedule.all_gathers) for shard in call.shards}
    gathers_after = [{gather_of[shard] for shard in call.shards} for call in schedule.reduce_scatters]
    needed: list[set[int]] = [set() for _ in schedule.all_gathers]
    for number, gathers in enumerate(gathers_after):
        for gather in gathers:
            needed[gather].add(number)
    gathered = tuple(
        CallTimes(
            max(
                [
                    step_s,
                    *(
                        schedule.reduce_scatters[n].time_s + schedule.reduce_scatters[n].duration_s
                        for n in needs
                    ),
                ]
            ),
            call.time_s,
        )
        for call, needs in zip(schedule.all_gathers, needed, strict=True)
    )
    scattered = tuple(
        CallTimes(
            call.time_s,
            max(schedule.all_gathers[n].duration_s + schedule.all_gathers[n].time_s for n in gathers),
        )
        for call, gathers in zip(schedule.reduce_scatters, gathers_after, strict=True)
    )
    now = 0.0
    order: list[HalfSegment] = []
    pieces: dict[HalfName, list[deque[HalfSegment]]] = {
        half: [deque() for _ in calls] for half, calls in schedule.calls.items()
    }
    planned = sorted(schedule.segments, key=lambda segment: segment.priority)
    for segment in planned:
        pieces[segment.half][segment.call].append(segment)
    missing = [len(needs) for needs in needed]
    heap: list[tuple[float, bool, int]] = []

    def end_call(number: int) -> None:
        for gather in gathers_after[number]:
            missing[gather] -= 1
            if not missing[gather]:
                heapq.heappush(heap, (-gathered[gather].tail_s, True, gather))

    for segment in planned:
        if segment.half == "reduce-scatter" and now < step_s:
            order.append(pieces["reduce-scatter"][segment.call].popleft())
            now = max(now, scattered[segment.call].ready_s) + segment.end_s - segment.start_s
            if not pieces["reduce-scatter"][segment.call]:
                end_call(segment.call)
    # Of equal tails reduce-scatters go first.
    for number, left in enumerate(pieces["reduce-scatter"]):
        if left:
            heapq.heappush(heap, (-scattered[number].tail_s, False, number))
    now, iteration_s = max(now, step_s), schedule.predicted.compute_s
    while heap:
        tail_s, is_gather, number = heapq.heappop(heap)
        for segment in pieces["all-gather" if is_gather else "reduce-scatter"][number]:
            order.append(segment)
            now += segment.end_s - segment.start_s
        if is_gather:
            iteration_s = max(iteration_s, now - tail_s)
        else:
            end_call(number)
    return EarlyOrder(segments=tuple(order), scattered=scattered, gathered=gathered, iteration_s=iteration_s)
