"""Steps that begin and end: barriers, rounds, staleness, and workers that join and leave."""

import numpy as np

from pace.solver.compiled import compiled
from pace_servers.throughput.kernels.arrays import (
    ClientArrays,
    OpArrays,
    RuleNumbers,
    RunRecord,
    StepArrays,
)
from pace_servers.throughput.kernels.service import step_number, submit
from pace_servers.throughput.kernels.state import (
    ALIVE,
    ROUND,
    ROUND_ENDED,
    VERSION,
    WARM,
    RunState,
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
