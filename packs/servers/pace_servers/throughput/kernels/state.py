"""The state of a run between two events, and the queues and timers in it."""

from typing import NamedTuple

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled
from pace_servers.throughput.kernels.arrays import ClientArrays, OpArrays, RuleNumbers

# Places in `RunState.counter`.
TIMERS, DUE, VERSION, ROUND, ROUND_ENDED, ALIVE, WARM = range(7)


class RunState(NamedTuple):
    """Arrays that change from event to event; those of the queues are of shape (num_workers, num_queues).

    Attributes
    ----------
    missing, remaining, services : arrays of shape (num_workers, num_ops)
        Predecessors still to end; bytes of a transfer not yet in service; services begun.
    left, started, ended, clock, contributed, pulled : integer arrays of shape (num_workers,)
        Ops of the step still to end; steps started and ended; steps ended as barriers count them; the round
        that the last step counted for; the version of the model that was pulled last.
    waiting, alive, has_pulled : boolean arrays of shape (num_workers,)
        Between two steps; joined and not left; whether the present step's pull has begun.
    ring, head, num_queued, running
        Circular queues of ops, and the op in service or -1.
    chunk, is_last, rate, weight, window
        Bytes left of the chunk in service; whether none follows; bytes a second; by what it shares links;
        the window now.
    flow, num_flows, stale_rates : of shapes (2, num_connections), (2,), (2,)
        The connections that carry something, by direction; whether their rates must be shared anew.
    timer_s, timer_key
        A heap of the ends of compute and parsing.
    due : integer array
        Keys of timers that have run out and are still to be handled.
    counter : integer array
        Numbers with the names above.
    """

    missing: IntArray
    remaining: FloatArray
    services: IntArray
    left: IntArray
    started: IntArray
    ended: IntArray
    clock: IntArray
    contributed: IntArray
    pulled: IntArray
    waiting: BoolArray
    alive: BoolArray
    has_pulled: BoolArray
    ring: IntArray
    head: IntArray
    num_queued: IntArray
    running: IntArray
    chunk: FloatArray
    is_last: BoolArray
    rate: FloatArray
    weight: FloatArray
    window: FloatArray
    flow: IntArray
    num_flows: IntArray
    stale_rates: BoolArray
    timer_s: FloatArray
    timer_key: IntArray
    due: IntArray
    counter: IntArray


@compiled
def new_state(ops: OpArrays, clients: ClientArrays, rules: RuleNumbers) -> RunState:
    """Return the state before the first event."""
    workers, num_ops = len(clients.speed), len(ops.kind)
    queues = len(ops.queue_offset) - 1
    room = workers * (num_ops + 2)
    return RunState(
        missing=np.zeros((workers, num_ops), dtype=np.int64),
        remaining=np.zeros((workers, num_ops)),
        services=np.zeros((workers, num_ops), dtype=np.int64),
        left=np.zeros(workers, dtype=np.int64),
        started=np.zeros(workers, dtype=np.int64),
        ended=np.zeros(workers, dtype=np.int64),
        clock=np.zeros(workers, dtype=np.int64),
        contributed=np.full(workers, -1, dtype=np.int64),
        pulled=np.zeros(workers, dtype=np.int64),
        waiting=np.zeros(workers, dtype=np.bool_),
        alive=np.zeros(workers, dtype=np.bool_),
        has_pulled=np.zeros(workers, dtype=np.bool_),
        ring=np.zeros((workers, max(ops.queue_offset[queues], 1)), dtype=np.int64),
        head=np.zeros((workers, queues), dtype=np.int64),
        num_queued=np.zeros((workers, queues), dtype=np.int64),
        running=np.full((workers, queues), -1, dtype=np.int64),
        chunk=np.zeros((workers, 2 * ops.num_servers)),
        is_last=np.zeros((workers, 2 * ops.num_servers), dtype=np.bool_),
        rate=np.zeros((workers, 2 * ops.num_servers)),
        weight=np.ones((workers, 2 * ops.num_servers)),
        window=np.full((workers, 2 * ops.num_servers), rules.first_window),
        flow=np.zeros((2, workers * ops.num_servers), dtype=np.int64),
        num_flows=np.zeros(2, dtype=np.int64),
        stale_rates=np.zeros(2, dtype=np.bool_),
        timer_s=np.zeros(room),
        timer_key=np.zeros(room, dtype=np.int64),
        due=np.zeros(room, dtype=np.int64),
        counter=np.zeros(7, dtype=np.int64),
    )


@compiled
def enqueue(state: RunState, ops: OpArrays, worker: int, queue: int, op: int) -> None:
    """Put an op at the tail of its queue."""
    start = ops.queue_offset[queue]
    room = ops.queue_offset[queue + 1] - start
    at = (state.head[worker, queue] + state.num_queued[worker, queue]) % room
    state.ring[worker, start + at] = op
    state.num_queued[worker, queue] += 1


@compiled
def dequeue(state: RunState, ops: OpArrays, worker: int, queue: int, place: int) -> int:
    """Take the op at a place counted from the head; the others keep their order."""
    start = ops.queue_offset[queue]
    room = ops.queue_offset[queue + 1] - start
    head = state.head[worker, queue]
    op = state.ring[worker, start + (head + place) % room]
    for at in range(place, 0, -1):
        state.ring[worker, start + (head + at) % room] = state.ring[worker, start + (head + at - 1) % room]
    state.head[worker, queue] = (head + 1) % room
    state.num_queued[worker, queue] -= 1
    return int(op)


@compiled
def add_timer(state: RunState, end_s: float, key: int) -> None:
    """Put a timer into the heap."""
    at = state.counter[TIMERS]
    state.counter[TIMERS] += 1
    while at > 0:
        above = (at - 1) >> 1
        if state.timer_s[above] <= end_s:
            break
        state.timer_s[at] = state.timer_s[above]
        state.timer_key[at] = state.timer_key[above]
        at = above
    state.timer_s[at] = end_s
    state.timer_key[at] = key


@compiled
def drop_first_timer(state: RunState) -> None:
    """Remove the timer that ends first."""
    size = state.counter[TIMERS] - 1
    state.counter[TIMERS] = size
    last_s, last_key = state.timer_s[size], state.timer_key[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and state.timer_s[below + 1] < state.timer_s[below]:
            below += 1
        if state.timer_s[below] >= last_s:
            break
        state.timer_s[at] = state.timer_s[below]
        state.timer_key[at] = state.timer_key[below]
        at = below
    state.timer_s[at] = last_s
    state.timer_key[at] = last_key


@compiled
def remove_flow(state: RunState, direction: int, connection: int) -> None:
    """Take a connection off the list of those that carry something."""
    last = state.num_flows[direction] - 1
    for place in range(last + 1):
        if state.flow[direction, place] == connection:
            state.flow[direction, place] = state.flow[direction, last]
            break
    state.num_flows[direction] = last
    state.stale_rates[direction] = True
