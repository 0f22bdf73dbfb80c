"""The loop over events: one op or chunk ends at a time, simultaneous ones in a fixed order.

Ops that end at one moment are handled by worker, then downlink before worker before uplink before parameter
server, then by server and by op. Two moments closer than 10 ps are one: rounding alone must not decide.
"""

import numpy as np

from pace.solver.compiled import compiled
from pace.solver.kernels.max_min import share
from pace.throughput.kernels.arrays import (
    CONTROL,
    DOWNLINK,
    JOIN,
    LEAVE,
    PS,
    UPLINK,
    WORKER,
    ClientArrays,
    OpArrays,
    RuleNumbers,
    RunRecord,
    StepArrays,
)
from pace.throughput.kernels.state import (
    ALIVE,
    DUE,
    ROUND,
    ROUND_ENDED,
    TIMERS,
    VERSION,
    WARM,
    RunState,
    add_timer,
    dequeue,
    drop_first_timer,
    enqueue,
    new_state,
    remove_flow,
)

SAME_S = 1e-11
ROUNDING = 1e-15  # of a moment: what adding times leaves


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
    if rules.max_services == 0 or state.services[worker, op] < rules.max_services:
        window = state.window[worker, queue]
        if chunk > window:
            chunk = window
            state.window[worker, queue] = min(window * rules.growth, rules.window)
    state.remaining[worker, op] -= chunk
    state.is_last[worker, queue] = state.remaining[worker, op] <= 0.0
    state.chunk[worker, queue] = chunk
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
        state.pulled[worker] = state.count[VERSION]
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
def may_start(state: RunState, rules: RuleNumbers, worker: int) -> bool:
    """Say whether a worker between two steps need not wait."""
    if not rules.in_total and state.started[worker] >= rules.steps:
        return False
    if rules.quorum > 0 and state.contributed[worker] >= state.count[ROUND]:
        return False
    if rules.max_ahead >= 0:
        slowest = state.clock[worker]
        for other in range(len(state.clock)):
            if state.alive[other]:
                slowest = min(slowest, state.clock[other])
        return bool(state.clock[worker] - slowest <= rules.max_ahead)
    return True


@compiled
def start_steps(
    state: RunState,
    ops: OpArrays,
    steps: StepArrays,
    clients: ClientArrays,
    rules: RuleNumbers,
    now: float,
) -> None:
    """End the round if its quorum is there, and start the next step of every worker that need not wait."""
    if rules.quorum > 0 and state.count[ROUND_ENDED] > 0:
        if state.count[ROUND_ENDED] >= min(rules.quorum, state.count[ALIVE]):
            state.count[ROUND] += 1
            state.count[ROUND_ENDED] = 0
    for worker in range(len(state.waiting)):
        if not state.waiting[worker] or not may_start(state, rules, worker):
            continue
        state.waiting[worker] = False
        if (state.started[worker]) % rules.pull_every == 0:
            # A step without a transfer down still works on the version that it starts from.
            state.pulled[worker] = state.count[VERSION]
        state.started[worker] += 1
        state.has_pulled[worker] = False
        state.left[worker] = len(ops.kind)
        for op in range(len(ops.kind)):
            state.missing[worker, op] = ops.num_predecessors[op]
        recorded = steps.drawn[worker, step_number(state, steps, worker)]
        for place in range(steps.roots.shape[1]):
            submit(state, ops, steps, clients, rules, now, worker, steps.roots[recorded, place])


@compiled
def end_step(state: RunState, rules: RuleNumbers, record: RunRecord, now: float, worker: int) -> None:
    """Record an ended step, and count it for the barrier."""
    pushed = state.started[worker] % rules.push_every == 0
    kept = not (
        rules.drop_late and rules.quorum > 0 and state.contributed[worker] + 1 < state.count[ROUND]
    )
    at = record.num_ended[0]
    record.time[at] = now
    record.worker[at] = worker
    record.kept[at] = kept
    record.staleness[at] = state.count[VERSION] - state.pulled[worker] if pushed and kept else -1
    record.num_ended[0] = at + 1
    if pushed and kept:
        state.count[VERSION] += 1
    state.ended[worker] += 1
    state.clock[worker] += 1
    if kept:
        state.count[ROUND_ENDED] += 1
        state.contributed[worker] = state.count[ROUND]
    else:
        state.contributed[worker] = state.count[ROUND] - 1
    state.waiting[worker] = True
    warm = at + 1 == rules.skip * len(state.left)
    if not rules.in_total:
        warm = False
        if state.ended[worker] == rules.skip:
            state.count[WARM] += 1
            warm = state.count[WARM] == len(state.left)
    if warm:
        record.span[0] = now
        record.carried_lo[:] = record.carried
    last = at + 1 == len(record.time) if rules.in_total else state.ended[worker] == rules.steps
    if last and np.isnan(record.span[1]):
        record.span[1] = now
        record.carried_hi[:] = record.carried


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
    """End an op and submit what waited for it; say whether the step is over."""
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
def leave(state: RunState, ops: OpArrays, worker: int) -> None:
    """Stop a worker in the middle of whatever it does; its timers are ignored when they run out."""
    if not state.alive[worker]:
        return
    state.alive[worker] = False
    state.waiting[worker] = False
    state.count[ALIVE] -= 1
    for queue in range(state.running.shape[1]):
        if queue < 2 * ops.num_servers and state.running[worker, queue] >= 0:
            direction = 0 if queue < ops.num_servers else 1
            server = queue - direction * ops.num_servers
            remove_flow(state, direction, worker * ops.num_servers + server)
        state.running[worker, queue] = -1
        state.num_queued[worker, queue] = 0


@compiled
def join(state: RunState, worker: int) -> None:
    """Let a worker take part, from the round and the clock that the others have come to."""
    slowest = np.int64(-1)
    for other in range(len(state.clock)):
        if state.alive[other] and (slowest < 0 or state.clock[other] < slowest):
            slowest = state.clock[other]
    state.clock[worker] = max(slowest, 0)
    state.contributed[worker] = state.count[ROUND] - 1
    state.alive[worker] = True
    state.waiting[worker] = True
    state.count[ALIVE] += 1


@compiled
def run(
    ops: OpArrays, steps: StepArrays, clients: ClientArrays, rules: RuleNumbers, record: RunRecord
) -> None:
    """Simulate until every worker has done its steps, or all of them together, or nothing is left to do."""
    servers, workers = ops.num_servers, len(clients.speed)
    state = new_state(ops, clients, rules)
    first = np.zeros(workers * servers, dtype=np.int64)
    second = np.zeros(workers * servers, dtype=np.int64)
    fair = np.zeros(workers * servers)
    left = np.zeros(workers + servers)
    users = np.zeros(workers + servers, dtype=np.int64)
    for worker in range(workers):
        add_timer(state, clients.join[worker], key_of(ops, worker, CONTROL, 0, JOIN))
        if np.isfinite(clients.leave[worker]):
            add_timer(state, clients.leave[worker], key_of(ops, worker, CONTROL, 0, LEAVE))
    if rules.skip == 0:
        record.span[0] = 0.0
    now = 0.0
    while record.num_ended[0] < len(record.time):
        for direction in range(2):
            if not state.stale_rates[direction]:
                continue
            state.stale_rates[direction] = False
            count = state.num_flows[direction]
            for at in range(count):
                first[at] = state.flow[direction, at] // servers
                second[at] = workers + state.flow[direction, at] % servers
            limit = clients.down if direction == 0 else clients.up
            share(first, second, count, limit, left, users, fair)
            for at in range(count):
                state.rate[first[at], direction * servers + second[at] - workers] = fair[at]
        following = now if state.count[DUE] > 0 else np.inf
        if state.count[TIMERS] > 0:
            following = min(following, state.timer_s[0])
        for direction in range(2):
            for at in range(state.num_flows[direction]):
                worker, server = divmod(state.flow[direction, at], servers)
                queue = direction * servers + server
                following = min(following, now + state.chunk[worker, queue] / state.rate[worker, queue])
        if following == np.inf:
            break
        dt = max(following - now, 0.0)
        now += dt
        same = SAME_S + ROUNDING * now
        best = np.int64(2**62)
        for direction in range(2):
            for at in range(state.num_flows[direction]):
                worker, server = divmod(state.flow[direction, at], servers)
                queue = direction * servers + server
                moved = min(state.rate[worker, queue] * dt, state.chunk[worker, queue])
                state.chunk[worker, queue] -= moved
                record.carried[worker, queue] += moved
                if state.chunk[worker, queue] <= state.rate[worker, queue] * same:
                    op = state.running[worker, queue]
                    best = min(best, key_of(ops, worker, ops.kind[op], server, op))
        while state.count[TIMERS] > 0 and state.timer_s[0] <= now + same:
            state.due[state.count[DUE]] = state.timer_key[0]
            state.count[DUE] += 1
            drop_first_timer(state)
        chosen = -1
        for at in range(state.count[DUE]):
            if state.due[at] < best:
                best = state.due[at]
                chosen = at
        op = best % (len(ops.kind) + 2)
        server = best // (len(ops.kind) + 2) % servers
        rank = best // (len(ops.kind) + 2) // servers % 5
        worker = best // (len(ops.kind) + 2) // servers // 5
        if chosen >= 0:
            state.count[DUE] -= 1
            state.due[chosen] = state.due[state.count[DUE]]
        if rank == CONTROL:
            if op == JOIN:
                join(state, worker)
            else:
                leave(state, ops, worker)
            start_steps(state, ops, steps, clients, rules, now)
            continue
        if not state.alive[worker]:
            continue
        queue = ops.queue[op]
        parsing = False
        if chosen < 0:
            remove_flow(state, 0 if rank == DOWNLINK else 1, worker * servers + server)
            record.carried[worker, queue] += state.chunk[worker, queue]
            state.chunk[worker, queue] = 0.0
            state.running[worker, queue] = -1
            parsing = not state.is_last[worker, queue]
            if parsing:
                enqueue(state, ops, worker, queue, op)
            elif rules.seconds_per_byte > 0.0 or rules.seconds > 0.0:
                parsing = True
                seconds = rules.seconds_per_byte * ops.size[op] + rules.seconds
                receiver = WORKER if rank == DOWNLINK else PS
                if receiver == WORKER:
                    seconds /= clients.speed[worker]
                add_timer(state, now + seconds, key_of(ops, worker, receiver, server, op))
        elif queue >= 2 * servers and state.running[worker, queue] == op:
            state.running[worker, queue] = -1
        over = False
        if not parsing:
            over = complete(state, ops, steps, clients, rules, record, now, worker, op)
        if queue >= 0 and not over:
            try_start(state, ops, steps, clients, rules, now, worker, queue)
        if over:
            end_step(state, rules, record, now, worker)
            start_steps(state, ops, steps, clients, rules, now)
