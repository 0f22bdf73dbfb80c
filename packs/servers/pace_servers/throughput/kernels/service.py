"""Ops that begin and end: queues served by a discipline, and what waits for what."""

import numpy as np

from pace.solver.compiled import compiled
from pace_servers.throughput.kernels.arrays import (
    DOWNLINK,
    PS,
    UPLINK,
    WORKER,
    ClientArrays,
    OpArrays,
    RuleNumbers,
    RunRecord,
    StepArrays,
)
from pace_servers.throughput.kernels.state import (
    VERSION,
    RunState,
    add_timer,
    dequeue,
    enqueue,
    remove_flow,
)


@compiled
def key_of(ops: OpArrays, worker: int, rank: int, server: int, op: int) -> int:
    """Return a number that orders simultaneous events."""
    return ((worker * 5 + rank) * ops.num_servers + server) * (len(ops.kind) + 2) + op


@compiled
def step_number(state: RunState, steps: StepArrays, worker: int) -> int:
    """Return the column of `drawn` for the step that a worker is in."""
    return int((state.started[worker] - 1) % steps.drawn.shape[1])


@compiled
def try_start(
    state: RunState,
    ops: OpArrays,
    steps: StepArrays,
    clients: ClientArrays,
    rules: RuleNumbers,
    now: float,
    worker: int,
    queue: int,
) -> None:
    """Serve a queue's next op if nothing of it is in service."""
    waiting = state.num_queued[worker, queue]
    if state.running[worker, queue] >= 0 or waiting == 0:
        return
    start = ops.queue_offset[queue]
    room = ops.queue_offset[queue + 1] - start
    place = 0
    number = step_number(state, steps, worker)
    if queue >= 2 * ops.num_servers:
        op = dequeue(state, ops, worker, queue, 0)
        state.running[worker, queue] = op
        speed = clients.speed[worker] if ops.kind[op] == WORKER else 1.0
        seconds = steps.duration[steps.drawn[worker, number], op] / speed
        add_timer(state, now + seconds, key_of(ops, worker, ops.kind[op], ops.server[op], op))
        return
    if rules.ordered:
        order = steps.order[worker, number]
        least = np.inf
        for at in range(waiting):
            candidate = state.ring[worker, start + (state.head[worker, queue] + at) % room]
            if steps.priority[order, candidate] < least:
                least = steps.priority[order, candidate]
                place = at
    elif rules.fresh_first:
        for at in range(waiting):
            candidate = state.ring[worker, start + (state.head[worker, queue] + at) % room]
            if state.services[worker, candidate] == 0:
                place = at
                break
    op = dequeue(state, ops, worker, queue, place)
    state.running[worker, queue] = op
    chunk = state.remaining[worker, op]
    state.services[worker, op] += 1
    if state.services[worker, op] < rules.max_services:
        window = state.window[worker, queue]
        if chunk > window:
            chunk = window
            state.window[worker, queue] = min(window * rules.growth, rules.window)
    state.remaining[worker, op] -= chunk
    state.is_last[worker, queue] = state.remaining[worker, op] <= 0.0
    state.chunk[worker, queue] = chunk
    place = (state.started[worker] - 1) * len(ops.kind) + op
    deviate = steps.deviate[worker, place % steps.deviate.shape[1]]
    state.weight[worker, queue] = np.exp(steps.spread[op] * deviate)
    direction = 0 if queue < ops.num_servers else 1
    state.flow[direction, state.num_flows[direction]] = worker * ops.num_servers + ops.server[op]
    state.num_flows[direction] += 1
    state.stale_rates[direction] = True


@compiled
def submit(
    state: RunState,
    ops: OpArrays,
    steps: StepArrays,
    clients: ClientArrays,
    rules: RuleNumbers,
    now: float,
    worker: int,
    op: int,
) -> None:
    """Begin an op whose predecessors have ended, or let it wait in its queue."""
    kind = ops.kind[op]
    step = state.started[worker] - 1
    pulls = step % rules.pull_every == 0
    pushes = (step + 1) % rules.push_every == 0
    key = key_of(ops, worker, kind, ops.server[op], op)
    if (kind == DOWNLINK and not pulls) or (kind in (UPLINK, PS) and not pushes):
        # Left out of this step: it ends where it would have begun. Its key says so, being no transfer's.
        rank = PS if kind == PS else WORKER
        add_timer(state, now, key_of(ops, worker, rank, ops.server[op], op))
        return
    if kind == DOWNLINK and not state.has_pulled[worker]:
        state.has_pulled[worker] = True
        state.pulled[worker] = state.counter[VERSION]
    queue = ops.queue[op]
    if queue >= 0:
        state.remaining[worker, op] = ops.size[op]
        state.services[worker, op] = 0
        enqueue(state, ops, worker, queue, op)
        try_start(state, ops, steps, clients, rules, now, worker, queue)
        return
    speed = clients.speed[worker] if kind == WORKER else 1.0
    number = step_number(state, steps, worker)
    add_timer(state, now + steps.duration[steps.drawn[worker, number], op] / speed, key)


@compiled
def complete(
    state: RunState,
    ops: OpArrays,
    steps: StepArrays,
    clients: ClientArrays,
    rules: RuleNumbers,
    record: RunRecord,
    now: float,
    worker: int,
    op: int,
) -> bool:
    """End an op and submit what waited for it; return whether the step is over."""
    if state.started[worker] <= record.op_end.shape[1]:
        record.op_end[worker, state.started[worker] - 1, op] = now
    state.left[worker] -= 1
    for place in range(ops.first_successor[op], ops.first_successor[op + 1]):
        after = ops.successors[place]
        state.missing[worker, after] -= 1
        if state.missing[worker, after] == 0:
            submit(state, ops, steps, clients, rules, now, worker, after)
    return bool(state.left[worker] == 0)


@compiled
def end_chunk(
    state: RunState,
    ops: OpArrays,
    clients: ClientArrays,
    rules: RuleNumbers,
    record: RunRecord,
    now: float,
    worker: int,
    op: int,
) -> bool:
    """Take a chunk off its link; return whether its transfer has thereby ended, and was parsed at once."""
    servers, queue = ops.num_servers, int(ops.queue[op])
    direction = 0 if ops.kind[op] == DOWNLINK else 1
    remove_flow(state, direction, worker * servers + int(ops.server[op]))
    record.carried[worker, queue] += state.chunk[worker, queue]
    state.chunk[worker, queue] = 0.0
    state.running[worker, queue] = -1
    if not state.is_last[worker, queue]:
        enqueue(state, ops, worker, queue, op)
        return False
    if rules.seconds_per_byte > 0.0 or rules.seconds > 0.0:
        seconds = rules.seconds_per_byte * ops.size[op] + rules.seconds
        receiver = WORKER if direction == 0 else PS
        if receiver == WORKER:
            seconds /= clients.speed[worker]
        add_timer(state, now + seconds, key_of(ops, worker, receiver, int(ops.server[op]), op))
        return False
    return True
