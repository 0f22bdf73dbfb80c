"""One worker's events, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import drop_first, push


@compiled
def run(
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
