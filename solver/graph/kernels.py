"""List scheduling on the compute stream and the wires at once; see ``pace.solver.graph.list_schedule``."""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.graph.program import beside_traffic_s

OP, COLLECTIVE, WAIT = 0, 1, 2

_beside_traffic_s = compiled(beside_traffic_s)

STEP = 1e-7


@compiled
def list_schedule(
    kind: IntArray,
    seconds: FloatArray,
    transfer: FloatArray,
    wire: IntArray,
    num_wires: int,
    dep_starts: IntArray,
    deps: IntArray,
    next_starts: IntArray,
    nexts: IntArray,
    position: IntArray,
    rank: FloatArray,
    feeder_starts: IntArray,
    feeders: IntArray,
    fed: IntArray,
    ahead_bytes: IntArray,
    gather_starts: IntArray,
    gathers: IntArray,
    use_starts: IntArray,
    uses: IntArray,
    fresh_starts: IntArray,
    fresh: IntArray,
    storage_bytes: IntArray,
    num_uses: IntArray,
    kept: BoolArray,
    base_memory: IntArray,
    resident_bytes: int,
    budget: int,
    most_ahead: int,
    window: int,
    queued: int,
    slowdown: float,
    order: IntArray,
) -> tuple[float, float, int, int, int]:
    """Write the order of all nodes to `order`.

    Parameters
    ----------
    kind, seconds, transfer, wire : arrays of shape (num_nodes,)
        As in ``FusedProgram``. `seconds` of a bucket's COLLECTIVE and WAIT are the copies into and out of it.
    position
        Each node's place in the original program. An op may run at most `window` places ahead of the first op
        that has not run.
    rank
        Of the ready ops, and of the collectives ready for a wire, the one with the highest rank goes first.
    feeders, fed
        The ops that serve one collective only, and run when it is issued; for each of these ops, that
        collective, for others -1.
    gathers, ahead_bytes
        For each wire, the collectives that may be issued at any time, in the order of their issue, and what
        each allocates (-1 for other nodes). One is issued if memory has room for it until its position and at
        most `most_ahead` bytes are ahead of their positions.
    queued
        How many collectives a wire has in its queue behind the one that it carries: 0, 1 or 2.
    slowdown
        As ``Program.compute_slowdown``.
    base_memory
        For each position, the bytes in use there in the original program.

    Returns
    -------
    float, float, int, int, int
        The end of the last node and the time of wires without a queue (seconds), the peak memory (bytes), the
        place of the peak in `order`, and the number of nodes written to `order`.
    """
    n = len(kind)
    missing = np.zeros(n, dtype=np.int64)
    for node in range(n):
        for at in range(dep_starts[node], dep_starts[node + 1]):
            if not (kind[node] == COLLECTIVE and fed[deps[at]] == node):
                missing[node] += 1
    left = num_uses.copy()
    fresh_bytes = np.zeros(n, dtype=np.int64)
    for node in range(n):
        for at in range(fresh_starts[node], fresh_starts[node + 1]):
            fresh_bytes[node] += storage_bytes[fresh[at]]
    next_gather = gather_starts[:-1].copy()
    by_position = np.argsort(position)
    ready = np.empty(n, dtype=np.int64)
    num_ready = 0
    pending = np.empty(n, dtype=np.int64)
    num_pending = 0
    flying = np.empty(n, dtype=np.int64)
    flying_end = np.empty(n)
    num_flying = 0
    done = np.zeros(n, dtype=np.bool_)
    freed = np.zeros(n, dtype=np.bool_)  # whether a wait frees memory when it runs
    for node in range(n):
        if kind[node] == WAIT:
            for at in range(use_starts[node], use_starts[node + 1]):
                freed[node] = freed[node] or storage_bytes[uses[at]] > 0
    for node in range(n):
        if missing[node] == 0 and fed[node] < 0:
            if kind[node] != COLLECTIVE:
                ready[num_ready] = node
                num_ready += 1
            elif ahead_bytes[node] < 0:
                pending[num_pending] = node
                num_pending += 1
    free_at = np.zeros(num_wires)
    # When the last collective that was issued starts, and when the one before it does.
    started = np.zeros(num_wires)
    started_before = np.zeros(num_wires)
    busy_until = 0.0
    unqueued = 0.0
    places = len(base_memory)
    extra = np.zeros(places + 1, dtype=np.int64)
    now = 0.0
    memory = resident_bytes
    peak = memory
    peak_at = 0
    count = 0
    first = 0
    ahead = 0
    ahead_at = np.empty(n, dtype=np.int64)
    num_ahead = 0
    # Nodes to run one after another: a collective comes after its feeders.
    batch = np.empty(n, dtype=np.int64)
    while count < n:
        while first < n and (
            done[by_position[first]] or fed[by_position[first]] >= 0 or kind[by_position[first]] != OP
        ):
            first += 1
        here = position[by_position[first]] if first < n else places
        kept_ahead = 0
        for at in range(num_ahead):
            if position[ahead_at[at]] > here:
                ahead_at[kept_ahead] = ahead_at[at]
                kept_ahead += 1
            else:
                ahead -= ahead_bytes[ahead_at[at]]
        num_ahead = kept_ahead
        # Waits whose collectives have ended cost nothing, and free memory.
        size = 0
        at = 0
        while at < num_flying:
            if flying_end[at] <= now:
                node = flying[at]
                if seconds[node] > 0:
                    ready[num_ready] = node
                    num_ready += 1
                else:
                    batch[size] = node
                    size += 1
                num_flying -= 1
                flying[at] = flying[num_flying]
                flying_end[at] = flying_end[num_flying]
            else:
                at += 1
        if size == 0:
            frees = False
            for at in range(num_flying):
                frees = frees or freed[flying[at]]
            chosen = -1
            for at in range(num_ready):
                node = ready[at]
                if kind[node] == OP and position[node] > here + window:
                    continue
                # Where memory is short, only what the program does next may run, and not if waiting helps.
                short = fresh_bytes[node] > 0 and memory + fresh_bytes[node] > budget
                if kind[node] == OP and short and (position[node] > here or frees):
                    continue
                if (
                    chosen < 0
                    or rank[node] > rank[ready[chosen]]
                    or (rank[node] == rank[ready[chosen]] and position[node] < position[ready[chosen]])
                ):
                    chosen = at
            until = now
            if chosen >= 0:
                until += _beside_traffic_s(seconds[ready[chosen]], busy_until - now, slowdown)
            elif num_flying > 0:
                until = max(now, flying_end[:num_flying].min())
            # A wire must not idle, or have too short a queue, while the op runs or compute waits.
            issued = -1
            for each in range(num_wires):
                start = free_at[each]
                if queued > 0:
                    start = started[each] if queued == 1 else started_before[each]
                if start >= until and not (start <= now and chosen < 0):
                    continue
                best = -1
                for at in range(num_pending):
                    node = pending[at]
                    if wire[node] == each and (
                        best < 0
                        or rank[node] > rank[pending[best]]
                        or (rank[node] == rank[pending[best]] and position[node] < position[pending[best]])
                    ):
                        best = at
                gather = -1
                if next_gather[each] < gather_starts[each + 1]:
                    gather = gathers[next_gather[each]]
                    if position[gather] > here:
                        if ahead + ahead_bytes[gather] > most_ahead and ahead > 0:
                            gather = -1
                        else:
                            place = min(here, places - 1)
                            room = (
                                budget
                                - ahead_bytes[gather]
                                - max(0, memory - base_memory[place] - extra[place])
                            )
                            for place in range(here, position[gather]):
                                if base_memory[place] + extra[place] > room:
                                    gather = -1
                                    break
                if gather >= 0 and best >= 0 and rank[pending[best]] > rank[gather]:
                    gather = -1
                if gather >= 0:
                    issued = gather
                    next_gather[each] += 1
                elif best >= 0:
                    issued = pending[best]
                    num_pending -= 1
                    pending[best] = pending[num_pending]
                if issued >= 0:
                    break
            if issued < 0 and chosen < 0 and num_flying == 0:
                # Nothing can run: the gather that is used next is issued although memory is short.
                for each in range(num_wires):
                    if next_gather[each] < gather_starts[each + 1]:
                        gather = gathers[next_gather[each]]
                        if issued < 0 or position[gather] < position[issued]:
                            issued = gather
                if issued >= 0:
                    next_gather[wire[issued]] += 1
                else:
                    # All that is left are ops beyond the window or without memory.
                    for at in range(num_ready):
                        if chosen < 0 or position[ready[at]] < position[ready[chosen]]:
                            chosen = at
                    if chosen < 0:
                        return now, unqueued, peak, peak_at, count
            if issued >= 0:
                node = issued
                for at in range(feeder_starts[node], feeder_starts[node + 1]):
                    batch[size] = feeders[at]
                    size += 1
                batch[size] = node
                size += 1
                if ahead_bytes[node] >= 0 and position[node] > here:
                    ahead += ahead_bytes[node]
                    ahead_at[num_ahead] = node
                    num_ahead += 1
                    for place in range(here, position[node]):
                        extra[place] += ahead_bytes[node]
            elif chosen >= 0:
                batch[0] = ready[chosen]
                size = 1
                num_ready -= 1
                ready[chosen] = ready[num_ready]
            else:
                now = until
                continue
        for item in range(size):
            node = batch[item]
            order[count] = node
            count += 1
            done[node] = True
            now += _beside_traffic_s(seconds[node], busy_until - now, slowdown)
            memory += fresh_bytes[node]
            if memory > peak:
                peak = memory
                peak_at = count - 1
            for at in range(fresh_starts[node], fresh_starts[node + 1]):
                if left[fresh[at]] == 0 and not kept[fresh[at]]:
                    memory -= storage_bytes[fresh[at]]
            for at in range(use_starts[node], use_starts[node + 1]):
                left[uses[at]] -= 1
                if left[uses[at]] == 0 and not kept[uses[at]]:
                    memory -= storage_bytes[uses[at]]
            if kind[node] == COLLECTIVE:
                unqueued += max(0.0, min(now, free_at[wire[node]]) - started[wire[node]])
                started_before[wire[node]] = started[wire[node]]
                started[wire[node]] = max(now, free_at[wire[node]])
                free_at[wire[node]] = started[wire[node]] + transfer[node]
                busy_until = max(busy_until, free_at[wire[node]])
            for at in range(next_starts[node], next_starts[node + 1]):
                below = nexts[at]
                if kind[node] == COLLECTIVE and kind[below] == WAIT:
                    flying[num_flying] = below
                    flying_end[num_flying] = free_at[wire[node]]
                    num_flying += 1
                    continue
                if kind[below] == COLLECTIVE and fed[node] == below:
                    continue
                missing[below] -= 1
                if missing[below] == 0 and fed[below] < 0:
                    if kind[below] == COLLECTIVE:
                        pending[num_pending] = below
                        num_pending += 1
                    else:
                        ready[num_ready] = below
                        num_ready += 1
    return max(now, busy_until), unqueued, peak, peak_at, count


@compiled
def raised_heads(
    dep_starts: IntArray, deps: IntArray, weight: FloatArray, compute: FloatArray, raised: BoolArray
) -> FloatArray:
    """Return the head of each node; nodes come after their deps.

    Parameters
    ----------
    weight
        Least seconds from a node's start to its end.
    compute
        Of it, those on the compute stream.
    raised
        The nodes whose needed ops are added up.
    """
    n = len(weight)
    head = np.zeros(n)
    by_head = np.empty(n, dtype=np.int64)
    count = 0
    needed = np.zeros(n, dtype=np.bool_)
    for node in range(n):
        start = 0.0
        for at in range(dep_starts[node], dep_starts[node + 1]):
            start = max(start, head[deps[at]] + weight[deps[at]])
        if raised[node]:
            needed[:node] = False
            needed[node] = True
            for below in range(node, -1, -1):
                if needed[below]:
                    for at in range(dep_starts[below], dep_starts[below + 1]):
                        needed[deps[at]] = True
            total = 0.0
            for at in range(count - 1, -1, -1):
                if needed[by_head[at]]:
                    total += compute[by_head[at]]
                    start = max(start, head[by_head[at]] + total)
        head[node] = start
        if compute[node] > 0:
            at = count
            while at > 0 and head[by_head[at - 1]] > start:
                by_head[at] = by_head[at - 1]
                at -= 1
            by_head[at] = node
            count += 1
    return head


@compiled
def lean_places(
    place: FloatArray,
    order: IntArray,
    later: bool,
    movable: BoolArray,
    starts: IntArray,
    neighbors: IntArray,
    use_starts: IntArray,
    uses: IntArray,
    user_starts: IntArray,
    users: IntArray,
    fresh_starts: IntArray,
    fresh: IntArray,
    storage_bytes: IntArray,
    kept: BoolArray,
) -> None:
    """Change `place`: move ops that add memory to right before their first users, or back those that free it.

    Parameters
    ----------
    order
        The nodes by their places.
    later
        Whether ops that add memory move to later places, or ops that free memory to earlier ones.
    starts, neighbors
        The users of each node if `later`, else what it reads.
    """
    n = len(place)
    for step in range(n):
        node = order[n - 1 - step] if later else order[step]
        if not movable[node] or starts[node] == starts[node + 1]:
            continue
        change = 0
        for at in range(fresh_starts[node], fresh_starts[node + 1]):
            change += storage_bytes[fresh[at]]
        for at in range(use_starts[node], use_starts[node + 1]):
            storage = uses[at]
            if kept[storage]:
                continue
            is_last = True
            for other in range(user_starts[storage], user_starts[storage + 1]):
                if users[other] != node and place[users[other]] >= place[node]:
                    is_last = False
                    break
            if is_last:
                change -= storage_bytes[storage]
        limit = place[neighbors[starts[node]]]
        for at in range(starts[node], starts[node + 1]):
            limit = min(limit, place[neighbors[at]]) if later else max(limit, place[neighbors[at]])
        is_view = fresh_starts[node] == fresh_starts[node + 1] and change == 0
        if later and (change > 0 or is_view):
            place[node] = max(place[node], limit - STEP)
        elif not later and change < 0:
            place[node] = min(place[node], limit + STEP)
