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
from pace_servers.throughput.kernels.rounds import end_step, join, leave, start_steps
from pace_servers.throughput.kernels.service import complete, end_chunk, key_of, try_start
from pace_servers.throughput.kernels.state import (
    DUE,
    TIMERS,
    RunState,
    add_timer,
    drop_first_timer,
    new_state,
)

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
