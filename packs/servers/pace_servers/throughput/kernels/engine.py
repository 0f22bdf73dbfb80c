"""The loop over events: one op or chunk ends at a time, simultaneous ones in a fixed order.

Ops that end at one moment are handled by worker, then downlink before worker before uplink before parameter
server, then by server and by op. Two moments closer than 10 ps are one: rounding alone must not decide.
"""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.max_min import share
from pace_servers.throughput.kernels.arrays import (
    CONTROL,
    JOIN,
    LEAVE,
    ClientArrays,
    OpArrays,
    RuleNumbers,
    RunRecord,
    StepArrays,
)
from pace_servers.throughput.kernels.service import (
    complete,
    end_chunk,
    key_of,
    step_number,
    submit,
    try_start,
)
from pace_servers.throughput.kernels.state import (
    ALIVE,
    DUE,
    ROUND,
    ROUND_ENDED,
    TIMERS,
    VERSION,
    WARM,
    RunState,
    add_timer,
    drop_first_timer,
    new_state,
    remove_flow,
)


@compiled
def may_start(state: RunState, rules: RuleNumbers, worker: int) -> bool:
    """Return whether a worker between two steps need not wait."""
    if not rules.in_total and state.started[worker] >= rules.steps:
        return False
    if rules.quorum > 0 and state.contributed[worker] >= state.counter[ROUND]:
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
    ended = state.counter[ROUND_ENDED]
    if rules.quorum > 0 and ended > 0 and ended >= min(rules.quorum, state.counter[ALIVE]):
        state.counter[ROUND] += 1
        state.counter[ROUND_ENDED] = 0
    for worker in range(len(state.waiting)):
        if not state.waiting[worker] or not may_start(state, rules, worker):
            continue
        state.waiting[worker] = False
        if (state.started[worker]) % rules.pull_every == 0:
            # A step without a transfer down still works on the version that it starts from.
            state.pulled[worker] = state.counter[VERSION]
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
    kept = not (rules.drop_late and rules.quorum > 0 and state.contributed[worker] + 1 < state.counter[ROUND])
    at = record.num_ended[0]
    record.time[at] = now
    record.worker[at] = worker
    record.kept[at] = kept
    record.staleness[at] = state.counter[VERSION] - state.pulled[worker] if pushed and kept else -1
    record.num_ended[0] = at + 1
    if pushed and kept:
        state.counter[VERSION] += 1
    state.ended[worker] += 1
    state.clock[worker] += 1
    if kept:
        state.counter[ROUND_ENDED] += 1
        state.contributed[worker] = state.counter[ROUND]
    else:
        state.contributed[worker] = state.counter[ROUND] - 1
    state.waiting[worker] = True
    warm = at + 1 == rules.skip * len(state.left)
    if not rules.in_total:
        warm = False
        if state.ended[worker] == rules.skip:
            state.counter[WARM] += 1
            warm = state.counter[WARM] == len(state.left)
    if warm:
        record.span[0] = now
        record.carried_lo[:] = record.carried
    last = at + 1 == len(record.time) if rules.in_total else state.ended[worker] == rules.steps
    if last and np.isnan(record.span[1]):
        record.span[1] = now
        record.carried_hi[:] = record.carried


@compiled
def leave(state: RunState, ops: OpArrays, worker: int) -> None:
    """Stop a worker in the middle of whatever it does; its timers are ignored when they run out."""
    if not state.alive[worker]:
        return
    state.alive[worker] = False
    state.waiting[worker] = False
    state.counter[ALIVE] -= 1
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
    state.clock[worker] = slowest if slowest > 0 else 0
    state.contributed[worker] = state.counter[ROUND] - 1
    state.alive[worker] = True
    state.waiting[worker] = True
    state.counter[ALIVE] += 1


SAME_S = 1e-11
ROUNDING = 1e-15  # of a moment: what adding times leaves


@compiled
def share_anew(
    state: RunState,
    clients: ClientArrays,
    servers: int,
    direction: int,
    first: IntArray,
    second: IntArray,
    weight: FloatArray,
    fair: FloatArray,
) -> None:
    """Give the connections of one direction that carry something their max-min fair rates."""
    workers = len(clients.speed)
    state.stale_rates[direction] = False
    count = state.num_flows[direction]
    for at in range(count):
        first[at] = state.flow[direction, at] // servers
        second[at] = workers + state.flow[direction, at] % servers
        weight[at] = state.weight[first[at], direction * servers + second[at] - workers]
    limit = clients.down if direction == 0 else clients.up
    left, users, load = np.empty(len(limit)), np.empty(len(limit), dtype=np.int64), np.empty(len(limit))
    share(first, second, count, limit, weight, left, users, load, fair)
    for at in range(count):
        state.rate[first[at], direction * servers + second[at] - workers] = fair[at]


@compiled
def next_end(state: RunState, servers: int, now: float) -> float:
    """Return when the next timer or transfer ends; infinity if there is none."""
    following = now if state.counter[DUE] > 0 else np.inf
    if state.counter[TIMERS] > 0:
        following = min(following, float(state.timer_s[0]))
    for direction in range(2):
        for at in range(state.num_flows[direction]):
            worker, server = divmod(state.flow[direction, at], servers)
            queue = direction * servers + server
            following = min(following, now + state.chunk[worker, queue] / state.rate[worker, queue])
    return following


@compiled
def move_on(state: RunState, ops: OpArrays, record: RunRecord, dt: float, same: float) -> int:
    """Carry bytes for `dt` seconds; return the first key of a chunk that has ended, or a huge number."""
    servers = ops.num_servers
    best = 2**62
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
    return best


@compiled
def run(
    ops: OpArrays, steps: StepArrays, clients: ClientArrays, rules: RuleNumbers, record: RunRecord
) -> None:
    """Simulate until every worker has done its steps, or all of them together, or nothing is left to do."""
    servers, workers = ops.num_servers, len(clients.speed)
    state = new_state(ops, clients, rules)
    first = np.zeros(workers * servers, dtype=np.int64)
    second = np.zeros(workers * servers, dtype=np.int64)
    weight = np.zeros(workers * servers)
    fair = np.zeros(workers * servers)
    for worker in range(workers):
        add_timer(state, clients.join[worker], key_of(ops, worker, CONTROL, 0, JOIN))
        if np.isfinite(clients.leave[worker]):
            add_timer(state, clients.leave[worker], key_of(ops, worker, CONTROL, 0, LEAVE))
    if rules.skip == 0:
        record.span[0] = 0.0
    now = 0.0
    while record.num_ended[0] < len(record.time):
        for direction in range(2):
            if state.stale_rates[direction]:
                share_anew(state, clients, servers, direction, first, second, weight, fair)
        following = next_end(state, servers, now)
        if following == np.inf:
            break
        dt = max(following - now, 0.0)
        now += dt
        same = SAME_S + ROUNDING * now
        best = move_on(state, ops, record, dt, same)
        while state.counter[TIMERS] > 0 and state.timer_s[0] <= now + same:
            state.due[state.counter[DUE]] = state.timer_key[0]
            state.counter[DUE] += 1
            drop_first_timer(state)
        chosen = -1
        for at in range(state.counter[DUE]):
            if state.due[at] < best:
                best = int(state.due[at])
                chosen = at
        op = best % (len(ops.kind) + 2)
        rank = best // (len(ops.kind) + 2) // servers % 5
        worker = best // (len(ops.kind) + 2) // servers // 5
        if chosen >= 0:
            state.counter[DUE] -= 1
            state.due[chosen] = state.due[state.counter[DUE]]
        if rank == CONTROL:
            if op == JOIN:
                join(state, worker)
            else:
                leave(state, ops, worker)
            start_steps(state, ops, steps, clients, rules, now)
            continue
        if not state.alive[worker]:
            continue
        queue = int(ops.queue[op])
        ended = True
        if chosen < 0:
            ended = end_chunk(state, ops, clients, rules, record, now, worker, op)
        elif queue >= 2 * servers and state.running[worker, queue] == op:
            state.running[worker, queue] = -1
        if ended and complete(state, ops, steps, clients, rules, record, now, worker, op):
            end_step(state, rules, record, now, worker)
            start_steps(state, ops, steps, clients, rules, now)
        elif queue >= 0:
            try_start(state, ops, steps, clients, rules, now, worker, queue)
