"""Choice of the next partition on each connection, compiled: workers' pushes, and servers' answers.

A key is a partition's place in its queue: its rank times the number of partitions, plus the partition.
"""

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled_in_place
from pace_servers.simulation.heaps import (
    ARRIVES,
    CREDIT,
    dequeue,
    enqueue,
    led_choice,
    put_event,
    without,
)
from pace_servers.simulation.inputs import ServerLinks, ServerParts
from pace_servers.simulation.state import EventHeap, FlowState, KeyHeaps, PullState, PushState
from pace_servers.simulation.traffic import ServersRules


@compiled_in_place
def queue_push(
    pushes: PushState, parts: ServerParts, rules: ServersRules, window: int, worker: int, part: int
) -> None:
    """Put a partition that is ready among those that its worker wants to push."""
    num_parts, servers = len(parts.server), len(parts.gated_pushes)
    if rules.arrival_pushes:
        rank = pushes.sequence[0]
        pushes.sequence[0] += 1
    else:
        order = window % parts.push_rank.shape[0]
        rank = parts.push_rank[order, worker % parts.push_rank.shape[1], part]
    enqueue(pushes.wanting, worker * servers + parts.server[part], rank * num_parts + part)
    pushes.stirred[worker] = True


@compiled_in_place
def queue_pull(
    pulls: PullState,
    sequence: IntArray,
    parts: ServerParts,
    rules: ServersRules,
    window: int,
    worker: int,
    part: int,
) -> None:
    """Put a partition among those that its server may answer a worker."""
    num_parts, servers = len(parts.server), len(parts.gated_pulls)
    if rules.arrival_pulls:
        rank = sequence[0]
        sequence[0] += 1
    else:
        order = window % parts.pull_rank.shape[0]
        rank = parts.pull_rank[order, worker % parts.pull_rank.shape[1], part]
    pulls.asked[worker, part] = False
    enqueue(pulls.answering, worker * servers + parts.server[part], rank * num_parts + part)


@compiled_in_place
def receive(
    pulls: PullState,
    sequence: IntArray,
    parts: ServerParts,
    rules: ServersRules,
    staleness: int,
    windows: IntArray,
    worker: int,
    part: int,
) -> None:
    """Book a push that has arrived, and queue the pulls that waited for it."""
    pushed, asked = pulls.pushed, pulls.asked
    workers, num_parts = pushed.shape
    clock = pushed[worker, part]
    pushed[worker, part] += 1
    asked[worker, part] = True
    pulls.arrived_in[clock] += 1
    if rules.step_barrier:
        if pulls.arrived_in[clock] == workers * num_parts:
            for other in range(workers):
                for released in range(num_parts):
                    queue_pull(pulls, sequence, parts, rules, windows[other], other, released)
        return
    slowest = clock + 1
    for other in range(workers):
        slowest = min(slowest, pushed[other, part])
    for other in range(workers):
        if asked[other, part] and slowest >= pushed[other, part] - staleness:
            queue_pull(pulls, sequence, parts, rules, windows[other], other, part)


@compiled_in_place
def admits(flying: float, num_flying: int, size: int, rules: ServersRules) -> bool:
    """Return whether a credit admits one more partition; one may always be in flight."""
    if num_flying == 0:
        return True
    return bool(flying < rules.credit_bytes if rules.overshoots else flying + size <= rules.credit_bytes)


@compiled_in_place
def next_key(pushes: PushState, parts: ServerParts, rules: ServersRules, window: int, worker: int) -> int:
    """Return the key of the partition that a worker hands over next, or -1."""
    num_parts, servers = len(parts.server), len(parts.gated_pushes)
    flying, num_flying = pushes.flying, pushes.num_flying
    led = rules.led and worker > 0
    chosen = -1
    for server in range(servers):
        connection = worker * servers + server
        if pushes.wanting.size[connection] == 0:
            continue
        key = pushes.wanting.keys[connection, 0]
        part = key % num_parts
        if rules.push_in_order and parts.push_gate[part] >= 0:
            gate = parts.push_gate[part] + window * parts.gated_pushes[server]
            if pushes.passed[connection] < gate:
                continue
        if led:
            # What worker 0 has not handed over yet, nobody else may.
            best = led_choice(pushes.wanting, connection, pushes.leads[window], num_parts)
            if best < 0:
                continue
            key = pushes.leads[window, best] * num_parts + best
        elif rules.per_connection and not admits(
            flying[connection], num_flying[connection], parts.size[part], rules
        ):
            continue
        if chosen < 0 or key < chosen:
            chosen = key
    if chosen < 0 or led or rules.per_connection:
        return int(chosen)
    size = parts.size[chosen % num_parts]
    return int(chosen) if admits(flying[worker], num_flying[worker], size, rules) else -1


@compiled_in_place
def hand_over(pushes: PushState, parts: ServerParts, rules: ServersRules, window: int, worker: int) -> None:
    """Hand over all that a worker's credit admits."""
    num_parts, servers = len(parts.server), len(parts.gated_pushes)
    pushes.stirred[worker] = False
    while True:
        key = next_key(pushes, parts, rules, window, worker)
        if key < 0:
            return
        part = key % num_parts
        connection = worker * servers + parts.server[part]
        number = pushes.sequence[0]
        pushes.sequence[0] += 1
        if rules.led and worker > 0:
            # It need not be first in the worker's own order.
            without(pushes.wanting, connection, part, num_parts)
        else:
            dequeue(pushes.wanting, connection)
            if rules.led:
                pushes.leads[window, part] = number
                pushes.stirred[1:] = True
        purse = connection if rules.per_connection else worker
        pushes.flying[purse] += parts.size[part]
        pushes.num_flying[purse] += 1
        pushes.passed[connection] += parts.push_gate[part] >= 0
        enqueue(pushes.handed, connection, number * num_parts + part)


@compiled_in_place
def return_credit(pushes: PushState, parts: ServerParts, rules: ServersRules, worker: int, part: int) -> None:
    """Give a worker back what a partition took of its credit."""
    purse = worker * len(parts.gated_pushes) + parts.server[part] if rules.per_connection else worker
    pushes.stirred[worker] = True
    pushes.flying[purse] -= parts.size[part]
    pushes.num_flying[purse] -= 1
    if pushes.num_flying[purse] == 0:
        pushes.flying[purse] = 0.0


@compiled_in_place
def start_flow(flows: FlowState, flow: int, part: int, work: float) -> None:
    """Put a partition on the links of a flow."""
    flows.carried[flow] = part
    flows.left[flow] = work
    flows.active[flows.num_active[0]] = flow
    flows.num_active[0] += 1
    flows.stale[0] = True


@compiled_in_place
def start_pushes(
    handed: KeyHeaps,
    flows: FlowState,
    parts: ServerParts,
    links: ServerLinks,
    rules: ServersRules,
    events: EventHeap,
    windows: IntArray,
    times: FloatArray,
    now: float,
) -> None:
    """Start what has been handed over on connections that are free; what needs no link is there at once."""
    size, keys, carried, streams = handed.size, handed.keys, flows.carried, rules.streams
    for connection in range(len(size)):
        if size[connection] == 0:
            continue
        worker = connection // links.num_servers
        for flow in range(connection * streams, (connection + 1) * streams):
            while size[connection] > 0 and carried[flow] < 0:
                part = keys[connection, 0] % len(parts.server)
                dequeue(handed, connection)
                times[windows[worker], worker, part, 0] = now
                if links.local[flow] or parts.push_work[part] == 0.0:
                    times[windows[worker], worker, part, 1] = now
                    put_event(events, now, ARRIVES, worker, part)
                    if not rules.until_pulled:
                        put_event(events, now, CREDIT, worker, part)
                else:
                    start_flow(flows, flow, part, parts.push_work[part])


@compiled_in_place
def start_pulls(
    pulls: PullState,
    flows: FlowState,
    parts: ServerParts,
    links: ServerLinks,
    rules: ServersRules,
    windows: IntArray,
    times: FloatArray,
    now: float,
) -> None:
    """Start servers' answers on connections that are free; what needs no link has ended at once."""
    size, keys, carried, streams = pulls.answering.size, pulls.answering.keys, flows.carried, rules.streams
    for connection in range(len(size)):
        if size[connection] == 0:
            continue
        worker, server = connection // links.num_servers, connection % links.num_servers
        first = (len(size) + connection) * streams
        for flow in range(first, first + streams):
            if size[connection] == 0 or carried[flow] >= 0:
                continue
            part = keys[connection, 0] % len(parts.server)
            if rules.pull_in_order and parts.pull_gate[part] >= 0:
                gate = parts.pull_gate[part] + (pulls.pushed[worker, part] - 1) * parts.gated_pulls[server]
                if pulls.passed[connection] < gate:
                    break
            dequeue(pulls.answering, connection)
            pulls.passed[connection] += parts.pull_gate[part] >= 0
            times[windows[worker], worker, part, 2] = now
            if links.local[flow] or parts.pull_work[part] == 0.0:
                carried[flow] = part
                flows.ended[flows.num_ended[0]] = flow
                flows.num_ended[0] += 1
            else:
                start_flow(flows, flow, part, parts.pull_work[part])
