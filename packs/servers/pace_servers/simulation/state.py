"""The state of workers, servers and connections between two events."""

from typing import NamedTuple

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace_servers.simulation.inputs import ServerLinks, ServerParts, WindowDag
from pace_servers.simulation.traffic import ServersRules


class EventHeap(NamedTuple):
    """Events by time, kind, worker, and number of the op or partition.

    The code of an event is (kind * workers + worker) * span + number.
    """

    times: FloatArray
    codes: IntArray
    size: IntArray
    workers: int
    span: int


class KeyHeaps(NamedTuple):
    """One heap of integers for each connection, `size[c]` of them in ``keys[c]``, and `total[0]` in all."""

    keys: IntArray
    size: IntArray
    total: IntArray


class WindowState(NamedTuple):
    """Progress of every worker in its window.

    Attributes
    ----------
    number, to_do, starting : of shape (num_workers,)
        The window of each worker, what is left to do in it, and whether it is about to begin.
    missing : integer array of shape (num_workers, num_ops)
        What each op still waits for.
    groups_missing, parts_missing : integer arrays of shape (num_workers, num_groups)
        Gradients still to be produced, and partitions still to be pulled.
    """

    number: IntArray
    to_do: IntArray
    starting: BoolArray
    missing: IntArray
    groups_missing: IntArray
    parts_missing: IntArray


class PushState(NamedTuple):
    """Partitions that workers want to push, and those that they handed over.

    Attributes
    ----------
    wanting, handed
        Queues of each connection: before and after the credit.
    passed : integer array of shape (num_connections,)
        Partitions with a gate that have passed it.
    flying, num_flying : arrays of shape (num_purses,)
        Bytes and partitions in flight on each credit.
    leads : integer array of shape (num_windows, num_parts)
        When worker 0 handed over each partition, or -1.
    stirred : boolean array of shape (num_workers,)
        Whether the worker may have something to hand over.
    sequence : integer array of shape (1,)
        Counts what is queued, pulls too.
    """

    wanting: KeyHeaps
    handed: KeyHeaps
    passed: IntArray
    flying: FloatArray
    num_flying: IntArray
    leads: IntArray
    stirred: BoolArray
    sequence: IntArray


class PullState(NamedTuple):
    """Partitions that servers have received, and answers that they send.

    Attributes
    ----------
    answering
        A queue of each connection.
    passed : integer array of shape (num_connections,)
        Partitions with a gate that have passed it.
    pushed, asked : arrays of shape (num_workers, num_parts)
        Pushes that have arrived, and whether a pull waits.
    arrived_in : integer array of shape (num_windows,)
        Pushes of each window that have arrived.
    """

    answering: KeyHeaps
    passed: IntArray
    pushed: IntArray
    asked: BoolArray
    arrived_in: IntArray


class FlowState(NamedTuple):
    """Partitions on the connections.

    Attributes
    ----------
    carried, left, rates : arrays of shape (num_flows,)
        The partition of every flow or -1, the bytes left of it and its rate.
    active, ended : integer arrays of shape (num_flows,)
        Lists of flows that links carry now, and of pulls that have ended.
    num_active, num_ended : integer arrays of shape (1,)
    stale : boolean array of shape (1,)
        Whether the links must be shared anew.
    link_left, link_flows, link_full : arrays of shape (num_links,)
        Scratch of sharing.
    """

    carried: IntArray
    left: FloatArray
    rates: FloatArray
    active: IntArray
    ended: IntArray
    num_active: IntArray
    num_ended: IntArray
    stale: BoolArray
    link_left: FloatArray
    link_flows: IntArray
    link_full: BoolArray


class ServersState(NamedTuple):
    """Everything that changes while windows run."""

    windows: WindowState
    pushes: PushState
    pulls: PullState
    flows: FlowState
    events: EventHeap


def new_state(
    shape: tuple[int, int, int], dag: WindowDag, parts: ServerParts, links: ServerLinks, rules: ServersRules
) -> ServersState:
    """Return the state before the first window; `shape` is windows, workers, ops."""
    windows, workers, num_ops = shape
    num_parts = len(parts.server)
    return ServersState(
        windows=_new_windows(workers, dag),
        pushes=_new_pushes(windows, workers, parts, rules),
        pulls=_new_pulls(windows, workers, parts),
        flows=_new_flows(links),
        events=_new_events(workers * (num_ops + 2 * num_parts) + 1, workers, max(num_ops, num_parts, 1)),
    )


def _new_windows(workers: int, dag: WindowDag) -> WindowState:
    """Return the state before the first window."""
    num_ops, num_groups = len(dag.num_predecessors), len(dag.group_producers)
    return WindowState(
        number=np.zeros(workers, dtype=np.int64),
        to_do=np.zeros(workers, dtype=np.int64),
        starting=np.ones(workers, dtype=np.bool_),
        missing=np.zeros((workers, num_ops), dtype=np.int64),
        groups_missing=np.zeros((workers, num_groups), dtype=np.int64),
        parts_missing=np.zeros((workers, num_groups), dtype=np.int64),
    )


def _new_pushes(windows: int, workers: int, parts: ServerParts, rules: ServersRules) -> PushState:
    """Return empty queues of pushes."""
    servers = len(parts.gated_pushes)
    connections = workers * servers
    room = int(np.bincount(parts.server, minlength=servers).max()) + 1
    purses = connections if rules.per_connection else workers
    return PushState(
        wanting=_new_heaps(connections, room),
        handed=_new_heaps(connections, room),
        passed=np.zeros(connections, dtype=np.int64),
        flying=np.zeros(purses),
        num_flying=np.zeros(purses, dtype=np.int64),
        leads=np.full((windows, len(parts.server)), -1, dtype=np.int64),
        stirred=np.zeros(workers, dtype=np.bool_),
        sequence=np.zeros(1, dtype=np.int64),
    )


def _new_pulls(windows: int, workers: int, parts: ServerParts) -> PullState:
    """Return empty queues of pulls."""
    servers = len(parts.gated_pulls)
    connections = workers * servers
    room = int(np.bincount(parts.server, minlength=servers).max()) + 1
    return PullState(
        answering=_new_heaps(connections, room),
        passed=np.zeros(connections, dtype=np.int64),
        pushed=np.zeros((workers, len(parts.server)), dtype=np.int64),
        asked=np.zeros((workers, len(parts.server)), dtype=np.bool_),
        arrived_in=np.zeros(windows, dtype=np.int64),
    )


def _new_flows(links: ServerLinks) -> FlowState:
    """Return connections that carry nothing."""
    flows = len(links.local)
    return FlowState(
        carried=np.full(flows, -1, dtype=np.int64),
        left=np.zeros(flows),
        rates=np.zeros(flows),
        active=np.empty(flows, dtype=np.int64),
        ended=np.empty(flows, dtype=np.int64),
        num_active=np.zeros(1, dtype=np.int64),
        num_ended=np.zeros(1, dtype=np.int64),
        stale=np.zeros(1, dtype=np.bool_),
        link_left=np.zeros(len(links.capacity)),
        link_flows=np.zeros(len(links.capacity), dtype=np.int64),
        link_full=np.zeros(len(links.capacity), dtype=np.bool_),
    )


def _new_events(room: int, workers: int, span: int) -> EventHeap:
    """Return an empty heap of events."""
    return EventHeap(
        times=np.empty(room),
        codes=np.empty(room, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
        workers=workers,
        span=span,
    )


def _new_heaps(connections: int, room: int) -> KeyHeaps:
    """Return empty heaps of keys."""
    return KeyHeaps(
        keys=np.empty((connections, room), dtype=np.int64),
        size=np.zeros(connections, dtype=np.int64),
        total=np.zeros(1, dtype=np.int64),
    )
