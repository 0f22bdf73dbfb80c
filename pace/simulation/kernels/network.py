"""The network's events, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import drop_first, push
from pace.solver.loaded import ROUNDING


@compiled
def carry(
    release: FloatArray,
    duration: FloatArray,
    size: FloatArray,
    by_priority: IntArray,
    after: IntArray,
    credit: float,
    overshoots: bool,
    in_order: bool,
    extra: FloatArray,
    carried: IntArray,
    first_carried: IntArray,
    missing: IntArray,
    tail: FloatArray,
    by_tail: IntArray,
    backward: float,
    starts: FloatArray,
    ends: FloatArray,
) -> None:
    """Hand over transfers as the credit admits, and serve them first come, first served.

    A transfer takes `extra` longer if it starts while compute runs. That is until `backward`, and then as
    long as the consumers of gradients have all that they wait for, the longest of the tails `by_tail` first.
    Transfer i carries the gradients ``carried[first_carried[i]:first_carried[i + 1]]``, and gradients are
    `missing` so many transfers. Without `by_tail` no transfer takes longer.

    Writes the times of each transfer, in seconds, to `starts` and `ends`. Arrays have the shape
    (num_transfers,). See ``pace.simulation.network``.
    """
    n = len(release)
    rank = np.empty(n, dtype=np.int64)
    for place in range(n):
        rank[by_priority[place]] = place
    blocked = np.zeros(n, dtype=np.bool_)
    released = np.zeros(n, dtype=np.bool_)
    followers = np.full(n, -1, dtype=np.int64)
    next_follower = np.full(n, -1, dtype=np.int64)
    for transfer in range(n):
        if after[transfer] >= 0:
            blocked[transfer] = True
            next_follower[transfer] = followers[after[transfer]]
            followers[after[transfer]] = transfer
    by_release = np.argsort(release, kind="mergesort")
    waiting = np.empty(n + 1, dtype=np.int64)
    num_waiting = 0
    flying = np.empty(n, dtype=np.int64)
    first_flying = 0
    num_handed = 0
    upcoming = 0
    in_flight = 0.0
    free = 0.0
    now = 0.0
    arrival = np.zeros(len(missing))
    place = 0 * n
    until = backward
    while num_handed < n or first_flying < num_handed:
        while first_flying < num_handed and ends[flying[first_flying]] <= now:
            ended = flying[first_flying]
            first_flying += 1
            in_flight -= size[ended]
            follower = followers[ended]
            while follower >= 0:
                blocked[follower] = False
                if released[follower]:
                    push(waiting, num_waiting, rank[follower])
                    num_waiting += 1
                follower = next_follower[follower]
        while upcoming < n and release[by_release[upcoming]] <= now:
            transfer = by_release[upcoming]
            upcoming += 1
            released[transfer] = True
            if not blocked[transfer]:
                push(waiting, num_waiting, rank[transfer])
                num_waiting += 1
        if first_flying == num_handed:
            in_flight = 0.0
        chosen = -1
        if num_waiting > 0 and (not in_order or waiting[0] == num_handed):
            candidate = by_priority[waiting[0]]
            fits = in_flight < credit if overshoots else in_flight + size[candidate] <= credit
            if first_flying == num_handed or fits:
                chosen = candidate
        if chosen >= 0:
            drop_first(waiting, num_waiting)
            num_waiting -= 1
            starts[chosen] = max(now, free)
            while place < len(by_tail) and missing[by_tail[place]] == 0:
                gradient = by_tail[place]
                place += 1
                following = tail[by_tail[place]] if place < len(by_tail) else 0.0
                until = max(until, arrival[gradient]) + tail[gradient] - following
            lasting = duration[chosen]
            if len(by_tail) > 0 and starts[chosen] < until * (1 - ROUNDING):
                lasting += extra[chosen]
            ends[chosen] = free = starts[chosen] + lasting
            for at in range(first_carried[chosen], first_carried[chosen + 1]):
                missing[carried[at]] -= 1
                arrival[carried[at]] = free
            flying[num_handed] = chosen
            num_handed += 1
            in_flight += size[chosen]
            continue
        following = np.inf
        if upcoming < n:
            following = release[by_release[upcoming]]
        if first_flying < num_handed:
            following = min(following, ends[flying[first_flying]])
        if following == np.inf:
            break
        now = following
