"""The events of the network and of one worker, compiled."""

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
    (num_transfers,). See ``pace.simulation.run``.
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


@compiled
def run_worker(
    duration: FloatArray,
    resource: IntArray,
    by_rank: IntArray,
    successors: IntArray,
    first_successor: IntArray,
    num_predecessors: IntArray,
    num_resources: int,
    starts: FloatArray,
    ends: FloatArray,
) -> int:
    """Run each op on its resource, the released op of lowest rank first; return the number of ops that ran.

    The successors of op i are ``successors[first_successor[i]:first_successor[i + 1]]``.
    """
    n = len(duration)
    rank = np.empty(n, dtype=np.int64)
    for place in range(n):
        rank[by_rank[place]] = place
    missing = num_predecessors.copy()
    waiting = np.empty((num_resources, n + 1), dtype=np.int64)
    num_waiting = np.zeros(num_resources, dtype=np.int64)
    running = np.full(num_resources, -1, dtype=np.int64)
    for op in range(n):
        if missing[op] == 0:
            push(waiting[resource[op]], num_waiting[resource[op]], rank[op])
            num_waiting[resource[op]] += 1
    now = 0.0
    num_ended = 0
    while num_ended < n:
        following = np.inf
        for at in range(num_resources):
            if running[at] < 0 and num_waiting[at] > 0:
                op = by_rank[waiting[at, 0]]
                drop_first(waiting[at], num_waiting[at])
                num_waiting[at] -= 1
                running[at] = op
                starts[op] = now
                ends[op] = now + duration[op]
            if running[at] >= 0:
                following = min(following, ends[running[at]])
        if following == np.inf:
            break
        now = following
        for at in range(num_resources):
            op = running[at]
            if op < 0 or ends[op] > now:
                continue
            running[at] = -1
            num_ended += 1
            for place in range(first_successor[op], first_successor[op + 1]):
                after = successors[place]
                missing[after] -= 1
                if missing[after] == 0:
                    push(waiting[resource[after]], num_waiting[resource[after]], rank[after])
                    num_waiting[resource[after]] += 1
    return num_ended


@compiled
def precede(
    transfer: FloatArray,
    op: FloatArray,
    waits: IntArray,
    first_wait: IntArray,
    channels: IntArray,
    rank: IntArray,
    place_of: IntArray,
) -> None:
    """Write the place of each transfer in TicTac's timing-aware order (Algorithm 2) to `place_of`.

    Op i waits for ``waits[first_wait[i]:first_wait[i + 1]]``. Its communication time is that of its busiest
    channel. Of transfers that equation 5, M+, M and P do not tell apart, the one of least `rank` is first.
    Takes O(transfers * (transfers + waits + ops * channels)).

    By equation 5, A precedes B if P_B < P_A and P_B < M_B, or if M_A < P_A and M_A < M_B. So the greatest P,
    and the least M of the transfers with M < P, say which transfers no other precedes.
    """
    n, num_ops = len(transfer), len(op)
    outstanding = np.ones(n, dtype=np.bool_)
    busy = np.zeros(channels.max() + 1 if n else 0)
    for place in range(n):
        unlocked = np.zeros(n)
        impending = np.full(n, np.inf)
        for number in range(num_ops):
            count = 0
            busy[:] = 0.0
            only = -1
            for at in range(first_wait[number], first_wait[number + 1]):
                if outstanding[waits[at]]:
                    count += 1
                    busy[channels[waits[at]]] += transfer[waits[at]]
                    only = waits[at]
            if count == 1:
                unlocked[only] += op[number]
            elif count > 1:
                total = busy.max()
                for at in range(first_wait[number], first_wait[number + 1]):
                    if outstanding[waits[at]] and total < impending[waits[at]]:
                        impending[waits[at]] = total
        most_unlocked, shortest = 0.0, np.inf
        for each in range(n):
            if outstanding[each]:
                most_unlocked = max(most_unlocked, unlocked[each])
                if transfer[each] < unlocked[each]:
                    shortest = min(shortest, transfer[each])
        best, best_key = -1, (0.0, 0.0, 0.0, 0)
        for each in range(n):
            if not outstanding[each] or transfer[each] > shortest:
                continue
            if unlocked[each] < transfer[each] and unlocked[each] < most_unlocked:
                continue
            key = (impending[each], transfer[each], -unlocked[each], rank[each])
            if best < 0 or key < best_key:
                best, best_key = each, key
        outstanding[best] = False
        place_of[best] = place
