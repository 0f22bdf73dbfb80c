"""The loops of the decision, compiled: what each operation waits for, and an execution that never tarries."""

import numpy as np

from pace.solver.arrays import BoolArray, IntArray
from pace.solver.collective_order.operations import NO_WAIT, THREAD_WAITS
from pace.solver.compiled import compiled

_AGREES, _KIND, _DTYPE, _SIZE = 0, 1, 2, 3


@compiled
def number_meetings(seat: IntArray, seat_communicator: IntArray, num_communicators: int) -> tuple:  # type: ignore[type-arg]  # compiled
    """Return each operation's meeting (-1 for none), where each communicator's begin, and seats' counts."""
    counts = np.zeros(len(seat_communicator), np.int64)
    for op in range(len(seat)):
        if seat[op] >= 0:
            counts[seat[op]] += 1
    starts = np.zeros(num_communicators + 1, np.int64)
    for place in range(len(seat_communicator)):
        communicator = seat_communicator[place]
        starts[communicator + 1] = max(starts[communicator + 1], counts[place])
    for communicator in range(num_communicators):
        starts[communicator + 1] += starts[communicator]
    meeting = np.full(len(seat), -1, np.int64)
    reached = np.zeros(len(seat_communicator), np.int64)
    for op in range(len(seat)):
        place = seat[op]
        if place >= 0:
            meeting[op] = starts[seat_communicator[place]] + reached[place]
            reached[place] += 1
    return meeting, starts, counts


@compiled
def find_disagreements(
    meeting: IntArray, kind: IntArray, dtype: IntArray, size_bytes: IntArray, num_meetings: int
) -> tuple:  # type: ignore[type-arg]  # compiled
    """Return in what the operations of each meeting differ (0: nothing), and two that do."""
    first = np.full((3, num_meetings), -1, np.int64)
    differs = np.zeros(num_meetings, np.int8)
    pair = np.full((num_meetings, 2), -1, np.int64)
    for op in range(len(meeting)):
        met = meeting[op]
        if met < 0 or differs[met]:
            continue
        for field in range(3):
            value = kind[op] if field == 0 else dtype[op] if field == 1 else size_bytes[op]
            if value < 0:
                continue
            other = first[field, met]
            if other < 0:
                first[field, met] = op
                continue
            known = kind[other] if field == 0 else dtype[other] if field == 1 else size_bytes[other]
            if known != value:
                differs[met] = field + 1
                pair[met, 0], pair[met, 1] = other, op
                break
    return differs, pair


@compiled
def find_shared_queues(thread: IntArray, place: IntArray, num_places: int) -> IntArray:
    """Return pairs of operations by two threads in one place, the first pair of each place."""
    owner = np.full(num_places, -1, np.int64)
    told = np.zeros(num_places, np.bool_)
    pairs = []
    for op in range(len(thread)):
        where = place[op]
        if where < 0:
            continue
        if owner[where] < 0:
            owner[where] = op
        elif thread[owner[where]] != thread[op] and not told[where]:
            told[where] = True
            pairs.append((owner[where], op))
    found = np.zeros((len(pairs), 2), np.int64)
    for row in range(len(pairs)):
        found[row, 0], found[row, 1] = pairs[row]
    return found


@compiled
def link(
    thread: IntArray,
    stream: IntArray,
    queue: IntArray,
    seat: IntArray,
    waits: IntArray,
    is_batched: BoolArray,
    seat_is_ordered: BoolArray,
    edge_starts: IntArray,
    edge_targets: IntArray,
    num_threads: int,
    num_queues: int,
) -> tuple:  # type: ignore[type-arg]  # compiled
    """Return what each operation waits for: where its list begins, and the lists."""
    num_ops = len(thread)
    starts = np.zeros(num_ops + 1, np.int64)
    targets = np.empty(4 * num_ops + len(edge_targets), np.int32)
    blocked_by = np.full(num_threads, -1, np.int64)
    last = np.full(num_queues, -1, np.int64)
    last_at = np.full(len(seat_is_ordered), -1, np.int64)
    end = 0
    for op in range(num_ops):
        start = end
        for source in range(4):
            if source == 0:
                before = blocked_by[thread[op]]
            elif source == 1:
                before = last[queue[op]] if queue[op] >= 0 else -1
            elif source == 2:
                before = last_at[seat[op]] if seat[op] >= 0 and seat_is_ordered[seat[op]] else -1
            else:
                before = last[stream[op]] if stream[op] >= 0 else -1
            is_new = before >= 0
            for known in range(start, end):
                is_new = is_new and targets[known] != before
            if is_new:
                targets[end] = before
                end += 1
        for edge in range(edge_starts[op], edge_starts[op + 1]):
            targets[end] = edge_targets[edge]
            end += 1
        starts[op + 1] = end
        if queue[op] >= 0 and not is_batched[op]:
            last[queue[op]] = op
        if seat[op] >= 0:
            last_at[seat[op]] = op
        if waits[op] != NO_WAIT and stream[op] >= 0:
            last[stream[op]] = op
        if waits[op] == THREAD_WAITS:
            blocked_by[thread[op]] = op
    return starts, targets[:end].copy()


@compiled
def execute(
    starts: IntArray,
    targets: IntArray,
    meeting: IntArray,
    needed: IntArray,
    device: IntArray,
    num_devices: int,
) -> tuple:  # type: ignore[type-arg]  # compiled
    """Start all that can start, until nothing can; return which operations started and which ended.

    Parameters
    ----------
    needed
        How many operations each meeting needs; -1 for one that cannot end.
    """
    num_ops = len(meeting)
    num_meetings = len(needed)
    waiting = np.zeros(num_ops, np.int32)
    heads = np.zeros(num_ops + 1, np.int64)
    for op in range(num_ops):
        waiting[op] = starts[op + 1] - starts[op]
        for edge in range(starts[op], starts[op + 1]):
            heads[targets[edge] + 1] += 1
    for op in range(num_ops):
        heads[op + 1] += heads[op]
    filled = heads[:-1].copy()
    later = np.empty(len(targets), np.int32)
    for op in range(num_ops):
        for edge in range(starts[op], starts[op + 1]):
            later[filled[targets[edge]]] = op
            filled[targets[edge]] += 1
    member = np.full(num_meetings, -1, np.int64)
    next_member = np.full(num_ops, -1, np.int64)
    next_launch = np.full(num_ops, -1, np.int64)
    last_launch = np.full(num_devices, -1, np.int64)
    for op in range(num_ops):
        if meeting[op] >= 0:
            next_member[op] = member[meeting[op]]
            member[meeting[op]] = op
        if device[op] >= 0:
            before = last_launch[device[op]]
            if before >= 0:
                next_launch[before] = op
                waiting[op] += 1
            last_launch[device[op]] = op
    here = np.zeros(num_meetings, np.int64)
    started = np.zeros(num_ops, np.bool_)
    ended = np.zeros(num_ops, np.bool_)
    ready = np.empty(num_ops, np.int32)
    num_ready = 0
    for op in range(num_ops):
        if waiting[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    while num_ready:
        num_ready -= 1
        op = ready[num_ready]
        started[op] = True
        following = next_launch[op]
        if following >= 0:
            waiting[following] -= 1
            if waiting[following] == 0:
                ready[num_ready] = following
                num_ready += 1
        met = meeting[op]
        ending = np.int64(op)
        if met >= 0:
            here[met] += 1
            ending = member[met] if here[met] == needed[met] else np.int64(-1)
        while ending >= 0:
            ended[ending] = True
            for place in range(heads[ending], heads[ending + 1]):
                after = later[place]
                waiting[after] -= 1
                if waiting[after] == 0:
                    ready[num_ready] = after
                    num_ready += 1
            ending = next_member[ending] if met >= 0 else np.int64(-1)
    return started, ended


@compiled
def find_heads(
    starts: IntArray,
    targets: IntArray,
    started: BoolArray,
    ended: BoolArray,
    device: IntArray,
    num_devices: int,
) -> tuple:  # type: ignore[type-arg]  # compiled
    """Return for each operation the one that holds it up in the end, and the one that does so first.

    The first is one that it waits for and that has not ended; the last of such a chain has started itself.
    -1 for operations that have started, -2 for those that wait in a circle within their rank.
    """
    num_ops = len(started)
    cause = np.full(num_ops, -1, np.int64)
    last_launch = np.full(num_devices, -1, np.int64)
    for op in range(num_ops):
        if not started[op]:
            for edge in range(starts[op], starts[op + 1]):
                if not ended[targets[edge]]:
                    cause[op] = targets[edge]
                    break
            if cause[op] < 0 and device[op] >= 0:
                cause[op] = last_launch[device[op]]
        if device[op] >= 0:
            last_launch[device[op]] = op
    head = np.full(num_ops, -1, np.int64)
    seen = np.full(num_ops, -1, np.int64)
    for op in range(num_ops):
        at = np.int64(op)
        while not started[at] and head[at] == -1 and seen[at] != op:
            seen[at] = op
            at = cause[at]
        found = at if started[at] else head[at] if head[at] != -1 else np.int64(-2)
        at = np.int64(op)
        while not started[at] and head[at] == -1:
            head[at] = found
            at = cause[at]
    return head, cause


@compiled
def shortest_cycle(starts: IntArray, targets: IntArray, num_nodes: int) -> IntArray:
    """Return the nodes of a shortest cycle of a directed graph, empty if it has none; O(nodes edges)."""
    best = np.zeros(0, np.int64)
    came_from = np.full(num_nodes, -1, np.int64)
    distance = np.full(num_nodes, -1, np.int64)
    line = np.empty(num_nodes, np.int64)
    for origin in range(num_nodes):
        distance[:] = -1
        distance[origin] = 0
        line[0] = origin
        taken, put = 0, 1
        closing = -1
        while taken < put and closing < 0:
            node = line[taken]
            taken += 1
            if len(best) and distance[node] + 1 >= len(best):
                break
            for edge in range(starts[node], starts[node + 1]):
                target = targets[edge]
                if target == origin:
                    closing = node
                    break
                if distance[target] < 0:
                    distance[target] = distance[node] + 1
                    came_from[target] = node
                    line[put] = target
                    put += 1
        if closing >= 0:
            best = np.empty(distance[closing] + 1, np.int64)
            for place in range(len(best) - 1, -1, -1):
                best[place] = closing
                closing = came_from[closing]
        if len(best) in (1, 2):
            break
    return best
