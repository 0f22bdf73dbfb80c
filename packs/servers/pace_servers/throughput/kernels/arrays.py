"""What the compiled simulation reads and writes: named tuples of arrays, and what every number means."""

from typing import NamedTuple

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray

# Kinds of ops, in the order in which simultaneous ones end; CONTROL is a worker that joins or leaves.
DOWNLINK, WORKER, UPLINK, PS, CONTROL = range(5)
JOIN, LEAVE = 0, 1


class OpArrays(NamedTuple):
    """The graph of a step. Queues are numbered: downlinks of servers, uplinks of servers, streams.

    Attributes
    ----------
    kind, server, queue : integer arrays of shape (num_ops,)
        `queue` is -1 for an op that runs at once.
    size : array of shape (num_ops,)
        Bytes of transfers.
    successors, first_successor, num_predecessors
        The ops that wait for op i are ``successors[first_successor[i]:first_successor[i + 1]]``.
    queue_offset : integer array of shape (num_queues + 1,)
        Where each queue's room starts in a row of the queues' storage.
    num_servers : int
    """

    kind: IntArray
    server: IntArray
    queue: IntArray
    size: FloatArray
    successors: IntArray
    first_successor: IntArray
    num_predecessors: IntArray
    queue_offset: IntArray
    num_servers: int


class StepArrays(NamedTuple):
    """The recorded steps, and which of them every worker takes.

    Attributes
    ----------
    duration : array of shape (num_steps, num_ops)
        Seconds of compute ops.
    roots : integer array of shape (num_steps, num_roots)
        The ops that wait for none, in the order in which they are submitted.
    drawn, order : integer arrays of shape (num_workers, num_drawn)
        The recorded step and the order of transfers that a worker's n-th step takes.
    priority : array of shape (num_orders, num_ops)
        Smaller goes first among the transfers that wait in one queue; equal ones in order of arrival.
    deviate : array of shape (num_workers, any)
        Standard normal numbers: op i of a worker's step n takes entry n * num_ops + i, in turns.
    spread : array of shape (num_ops,)
        Standard deviation of the logarithm of the weights by which transfers share links.
    """

    duration: FloatArray
    roots: IntArray
    drawn: IntArray
    order: IntArray
    priority: FloatArray
    deviate: FloatArray
    spread: FloatArray


class ClientArrays(NamedTuple):
    """The workers: `down` and `up` hold the limits of the workers' links, then of the servers'."""

    speed: FloatArray
    join: FloatArray
    leave: FloatArray
    down: FloatArray
    up: FloatArray


class RuleNumbers(NamedTuple):
    """The discipline of the links, what a step leaves out, and what a worker waits for between steps.

    Attributes
    ----------
    window, first_window, growth
        Bytes of one service at most; of the first one on a connection; and the factor by which the latter
        grows towards the former with every service that filled it.
    max_services
        The last of so many services takes all the rest.
    fresh_first
        Whether streams that were never served go before remainders.
    ordered
        Whether `priority` counts.
    seconds_per_byte, seconds
        Parsing of a received transfer.
    pull_every, push_every
        A worker pulls in its first step and every so many steps; it pushes in the last of every so many.
    max_ahead
        A worker is at most so many steps ahead of the slowest; -1 for no limit.
    quorum, drop_late
        So many ended steps end a round, 0 for no rounds; whether steps that a round did not wait for count.
    skip, steps, in_total
        Steps of each worker before measuring starts, and until it ends. `in_total` counts the steps of all
        workers together, and workers go on until the last.
    """

    window: float
    first_window: float
    growth: float
    max_services: int
    fresh_first: bool
    ordered: bool
    seconds_per_byte: float
    seconds: float
    pull_every: int
    push_every: int
    max_ahead: int
    quorum: int
    drop_late: bool
    skip: int
    steps: int
    in_total: bool


class RunRecord(NamedTuple):
    """What a run leaves.

    Attributes
    ----------
    time, worker, staleness, kept : arrays of shape (num_workers * steps,)
        Every ended step. Staleness is -1 where a step pushed nothing.
    carried : array of shape (num_workers, 2 * num_servers)
        Bytes that every connection carried: downlinks, then uplinks.
    carried_lo, carried_hi
        The same when measuring started and ended.
    op_end : array of shape (num_workers, num_recorded, num_ops)
        When ops of the first steps ended, in seconds.
    span : array of shape (2,)
        When measuring started and ended.
    num_ended : integer array of shape (1,)
    """

    time: FloatArray
    worker: IntArray
    staleness: IntArray
    kept: BoolArray
    carried: FloatArray
    carried_lo: FloatArray
    carried_hi: FloatArray
    op_end: FloatArray
    span: FloatArray
    num_ended: IntArray


def new_record(num_workers: int, num_servers: int, steps: int, num_ops: int, num_recorded: int) -> RunRecord:
    """Return an empty record."""
    total, links = num_workers * steps, (num_workers, 2 * num_servers)
    return RunRecord(
        time=np.zeros(total),
        worker=np.zeros(total, dtype=np.int64),
        staleness=np.zeros(total, dtype=np.int64),
        kept=np.ones(total, dtype=np.bool_),
        carried=np.zeros(links),
        carried_lo=np.zeros(links),
        carried_hi=np.zeros(links),
        op_end=np.full((num_workers, num_recorded, num_ops), np.nan),
        span=np.full(2, np.nan),
        num_ended=np.zeros(1, dtype=np.int64),
    )
