"""The events of workers, servers and links, compiled. What each argument means is in ``run`` and ``traffic``.

At every moment, in this order: what ends now is booked (ops, sums, returned credit), workers hand over what
their credit admits, free connections start what is handed over, and links are shared anew.
"""

import numpy as np

from pace.simulation.servers.heaps import dequeue, enqueue, led_choice, pop, put, without
from pace.simulation.servers.sharing import lay_links, share
from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled

OP_ENDS, ARRIVES, CREDIT = 0, 1, 2
TOGETHER = 1.0 + 1e-12


@compiled
def run(
    duration: FloatArray,
    successors: IntArray,
    first_successor: IntArray,
    num_predecessors: IntArray,
    op_groups: IntArray,
    first_op_group: IntArray,
    group_producers: IntArray,
    waiters: IntArray,
    first_waiter: IntArray,
    first_part: IntArray,
    server: IntArray,
    size: IntArray,
    push_work: FloatArray,
    pull_work: FloatArray,
    push_rank: IntArray,
    pull_rank: IntArray,
    push_gate: IntArray,
    pull_gate: IntArray,
    capacity: FloatArray,
    num_servers: int,
    colocated: bool,
    credit: float,
    overshoots: bool,
    per_connection: bool,
    credit_latency: float,
    until_pulled: bool,
    led: bool,
    push_in_order: bool,
    pull_in_order: bool,
    arrival_pushes: bool,
    arrival_pulls: bool,
    streams: int,
    step_barrier: bool,
    staleness: int,
    latency: float,
    pace: float,
    window_ends: FloatArray,
    times: FloatArray,
) -> int:
    """Run all windows; write window ends and every partition's times; return how many windows all have run.

    `times` has shape (windows, workers, parts, 4): push start, push end, pull start, pull end.
    """
    windows, workers, num_ops = duration.shape
    parts = len(server)
    num_groups = len(group_producers)
    group_of = np.empty(parts, dtype=np.int64)
    for group in range(num_groups):
        for part in range(first_part[group], first_part[group + 1]):
            group_of[part] = group
    # Connections: pushes of worker w to server s, then pulls. Each has `streams` slots, every slot a flow.
    directions = 2
    flows = directions * workers * num_servers * streams
    active: BoolArray = np.zeros(flows, dtype=np.bool_)
    first_link, second_link = np.empty(flows, dtype=np.int64), np.empty(flows, dtype=np.int64)
    local: BoolArray = np.zeros(flows, dtype=np.bool_)
    lay_links(workers, num_servers, streams, colocated, first_link, second_link, local)
    carried = np.full(flows, -1, dtype=np.int64)
    left = np.zeros(flows)
    rates = np.zeros(flows)
    # Queues: of a worker by connection, then what it has handed over, and of a server by connection.
    on_server = np.zeros(num_servers, dtype=np.int64)
    gated_pushes, gated_pulls = np.zeros_like(on_server), np.zeros_like(on_server)
    for part in range(parts):
        on_server[server[part]] += 1
        gated_pushes[server[part]] += push_gate[part] >= 0
        gated_pulls[server[part]] += pull_gate[part] >= 0
    room = 1
    for at in range(num_servers):
        room = max(room, on_server[at])
    connections = workers * num_servers
    wanting = np.empty((connections, room + 1), dtype=np.int64)
    handed = np.empty((connections, room + 1), dtype=np.int64)
    answering = np.empty((connections, room + 1), dtype=np.int64)
    num_wanting = np.zeros(connections, dtype=np.int64)
    num_handed = np.zeros(connections, dtype=np.int64)
    num_answering = np.zeros(connections, dtype=np.int64)
    pushed_over = np.zeros(connections, dtype=np.int64)
    pulled_over = np.zeros(connections, dtype=np.int64)
    flying = np.zeros(connections if per_connection else workers)
    num_flying = np.zeros(connections if per_connection else workers, dtype=np.int64)
    sequence = 0
    leads = np.full((windows, parts), -1, dtype=np.int64)
    event_times = np.empty(workers * (num_ops + 2 * parts) + 1)
    events = np.empty(len(event_times), dtype=np.int64)
    # An event is its kind, its worker and its op or partition: (kind * workers + worker) * span + number,
    # which for the end of an op, of kind 0, is worker * span + op.
    span = max(num_ops, parts, 1)
    num_events = 0
    missing = np.empty((workers, num_ops), dtype=np.int64)
    groups_missing = np.empty((workers, num_groups), dtype=np.int64)
    parts_missing = np.empty((workers, num_groups), dtype=np.int64)
    to_do = np.empty(workers, dtype=np.int64)
    window = np.zeros(workers, dtype=np.int64)
    pushed = np.zeros((workers, parts), dtype=np.int64)
    asked: BoolArray = np.zeros((workers, parts), dtype=np.bool_)
    arrived_in = np.zeros(windows, dtype=np.int64)
    released = np.empty(workers * parts, dtype=np.int64)
    ready_ops = np.empty(workers * num_ops + 1, dtype=np.int64)
    starting = np.ones(workers, dtype=np.bool_)
    finished = 0
    now = 0.0
    changed = False
    while finished < workers:
        # Windows that begin, and ops that may start at this moment.
        num_ready = 0
        for worker in range(workers):
            if starting[worker] and window[worker] < windows:
                starting[worker] = False
                to_do[worker] = num_ops + parts
                for group in range(num_groups):
                    groups_missing[worker, group] = group_producers[group]
                    parts_missing[worker, group] = first_part[group + 1] - first_part[group]
                for op in range(num_ops):
                    missing[worker, op] = num_predecessors[op]
                    if num_predecessors[op] == 0:
                        ready_ops[num_ready] = worker * num_ops + op
                        num_ready += 1
        for at in range(num_ready):
            worker, op = ready_ops[at] // num_ops, ready_ops[at] % num_ops
            ends = now + duration[window[worker], worker, op]
            num_events = put(event_times, events, num_events, ends, worker * span + op)
        # Everything that happens at this moment.
        again = True
        while again:
            again = False
            while num_events > 0 and event_times[0] <= now:
                what = events[0] % span
                worker = events[0] // span % workers
                kind = events[0] // span // workers
                num_events = pop(event_times, events, num_events)
                if kind == OP_ENDS:
                    to_do[worker] -= 1
                    for at in range(first_successor[what], first_successor[what + 1]):
                        op = successors[at]
                        missing[worker, op] -= 1
                        if missing[worker, op] == 0:
                            ends = now + duration[window[worker], worker, op]
                            num_events = put(event_times, events, num_events, ends, worker * span + op)
                    for at in range(first_op_group[what], first_op_group[what + 1]):
                        group = op_groups[at]
                        groups_missing[worker, group] -= 1
                        if groups_missing[worker, group] > 0:
                            continue
                        for part in range(first_part[group], first_part[group + 1]):
                            connection = worker * num_servers + server[part]
                            order = window[worker] % push_rank.shape[0]
                            rank = push_rank[order, worker % push_rank.shape[1], part]
                            if arrival_pushes:
                                rank = sequence
                                sequence += 1
                            num_wanting[connection] = enqueue(
                                wanting[connection], num_wanting[connection], rank * parts + part
                            )
                elif kind == CREDIT:
                    purse = worker * num_servers + server[what] if per_connection else worker
                    flying[purse] -= size[what]
                    num_flying[purse] -= 1
                    if num_flying[purse] == 0:
                        flying[purse] = 0.0
                else:
                    pushed[worker, what] += 1
                    asked[worker, what] = True
                    clock = pushed[worker, what] - 1
                    arrived_in[clock] += 1
                    num_released = 0
                    if step_barrier:
                        if arrived_in[clock] == workers * parts:
                            num_released = workers * parts
                            released[:] = np.arange(num_released)
                    else:
                        slowest = pushed[:, what].min()
                        for other in range(workers):
                            if asked[other, what] and slowest >= pushed[other, what] - staleness:
                                released[num_released] = other * parts + what
                                num_released += 1
                    for at in range(num_released):
                        other, part = released[at] // parts, released[at] % parts
                        asked[other, part] = False
                        connection = other * num_servers + server[part]
                        order = window[other] % pull_rank.shape[0]
                        rank = pull_rank[order, other % pull_rank.shape[1], part]
                        if arrival_pulls:
                            rank = sequence
                            sequence += 1
                        num_answering[connection] = enqueue(
                            answering[connection], num_answering[connection], rank * parts + part
                        )
            # Workers hand over what their credit admits.
            for worker in range(workers):
                while True:
                    chosen = -1
                    for at in range(num_servers):
                        connection = worker * num_servers + at
                        if num_wanting[connection] == 0:
                            continue
                        key = wanting[connection, 0]
                        part = key % parts
                        if push_in_order and push_gate[part] >= 0:
                            gate = push_gate[part] + window[worker] * gated_pushes[at]
                            if pushed_over[connection] < gate:
                                continue
                        if led and worker > 0:
                            # What worker 0 has not handed over yet, nobody else may.
                            queued = wanting[connection, : num_wanting[connection]]
                            best = led_choice(queued, leads[window[worker]], parts)
                            if best < 0:
                                continue
                            key = leads[window[worker], best] * parts + best
                        elif per_connection or credit < np.inf:
                            purse = connection if per_connection else worker
                            fits = (
                                flying[purse] < credit if overshoots else flying[purse] + size[part] <= credit
                            )
                            if per_connection and num_flying[purse] > 0 and not fits:
                                continue
                        if chosen < 0 or key < chosen:
                            chosen = key
                    if chosen < 0:
                        break
                    part = chosen % parts
                    connection = worker * num_servers + server[part]
                    purse = connection if per_connection else worker
                    if not per_connection and not (led and worker > 0) and num_flying[purse] > 0:
                        fits = flying[purse] < credit if overshoots else flying[purse] + size[part] <= credit
                        if not fits:
                            break
                    if led and worker > 0:
                        # The chosen one need not be first in the worker's own order.
                        num_wanting[connection] = without(
                            wanting[connection], num_wanting[connection], part, parts
                        )
                    else:
                        num_wanting[connection] = dequeue(wanting[connection], num_wanting[connection])
                        if led:
                            leads[window[worker], part] = sequence
                    flying[purse] += size[part]
                    num_flying[purse] += 1
                    pushed_over[connection] += push_gate[part] >= 0
                    num_handed[connection] = enqueue(
                        handed[connection], num_handed[connection], sequence * parts + part
                    )
                    sequence += 1
            # Free connections start what has been handed over; what needs no link is there at once.
            for worker in range(workers):
                for at in range(num_servers):
                    connection = worker * num_servers + at
                    for stream in range(streams):
                        flow = connection * streams + stream
                        while carried[flow] < 0 and num_handed[connection] > 0:
                            part = handed[connection, 0] % parts
                            num_handed[connection] = dequeue(handed[connection], num_handed[connection])
                            times[window[worker], worker, part, 0] = now
                            if local[flow] or push_work[part] == 0.0:
                                times[window[worker], worker, part, 1] = now
                                num_events = put(
                                    event_times,
                                    events,
                                    num_events,
                                    now,
                                    (ARRIVES * workers + worker) * span + part,
                                )
                                if not until_pulled:
                                    num_events = put(
                                        event_times,
                                        events,
                                        num_events,
                                        now,
                                        (CREDIT * workers + worker) * span + part,
                                    )
                                again = True
                            else:
                                carried[flow] = part
                                left[flow] = push_work[part]
                                active[flow] = True
                                changed = True
                        flow += workers * num_servers * streams
                        while carried[flow] < 0 and num_answering[connection] > 0:
                            part = answering[connection, 0] % parts
                            if pull_in_order and pull_gate[part] >= 0:
                                gate = pull_gate[part] + (pushed[worker, part] - 1) * gated_pulls[at]
                                if pulled_over[connection] < gate:
                                    break
                            num_answering[connection] = dequeue(
                                answering[connection], num_answering[connection]
                            )
                            pulled_over[connection] += pull_gate[part] >= 0
                            times[window[worker], worker, part, 2] = now
                            if local[flow] or pull_work[part] == 0.0:
                                left[flow] = 0.0
                                carried[flow] = part
                                again = True
                            else:
                                carried[flow] = part
                                left[flow] = pull_work[part]
                                active[flow] = True
                                changed = True
            # Pulls that have ended: by the links, or at once.
            for flow in range(connections * streams, flows):
                part = carried[flow]
                if part >= 0 and not active[flow]:
                    worker = (flow - connections * streams) // (num_servers * streams)
                    carried[flow] = -1
                    again = True
                    times[window[worker], worker, part, 3] = now
                    to_do[worker] -= 1
                    if until_pulled:
                        num_events = put(
                            event_times, events, num_events, now, (CREDIT * workers + worker) * span + part
                        )
                    group = group_of[part]
                    parts_missing[worker, group] -= 1
                    if parts_missing[worker, group] == 0:
                        for at in range(first_waiter[group], first_waiter[group + 1]):
                            op = waiters[at]
                            missing[worker, op] -= 1
                            if missing[worker, op] == 0:
                                ends = now + duration[window[worker], worker, op]
                                num_events = put(event_times, events, num_events, ends, worker * span + op)
            if num_events > 0 and event_times[0] <= now:
                again = True
        begins = False
        for worker in range(workers):
            if to_do[worker] == 0:
                to_do[worker] = -1
                window_ends[window[worker], worker] = now
                window[worker] += 1
                starting[worker] = window[worker] < windows
                begins = begins or starting[worker]
                finished += window[worker] == windows
        if begins:
            continue
        if changed:
            share(active, first_link, second_link, capacity, pace, rates)
            changed = False
        step = np.inf
        for flow in range(flows):
            if active[flow]:
                step = min(step, left[flow] / rates[flow])
        ends_flow = True
        following = now + step
        if num_events > 0 and event_times[0] < following:
            following = event_times[0]
            ends_flow = False
        if following == np.inf:
            break
        for flow in range(flows):
            if not active[flow]:
                continue
            if ends_flow and left[flow] / rates[flow] <= step * TOGETHER:
                active[flow] = False
                changed = True
                if flow < connections * streams:
                    worker = flow // (num_servers * streams)
                    part = carried[flow]
                    carried[flow] = -1
                    times[window[worker], worker, part, 1] = following
                    num_events = put(
                        event_times,
                        events,
                        num_events,
                        following + latency,
                        (ARRIVES * workers + worker) * span + part,
                    )
                    if not until_pulled:
                        num_events = put(
                            event_times,
                            events,
                            num_events,
                            following + credit_latency,
                            (CREDIT * workers + worker) * span + part,
                        )
            else:
                left[flow] = max(left[flow] - (following - now) * rates[flow], 0.0)
        now = following
    return int(window.min()) if workers else 0
