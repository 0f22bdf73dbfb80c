"""Orders of a program that the search starts from; each is a plan without buckets.

None of these is always the best. Draining early sends what is ready, and frees memory. Deferred ops hide a
long last collective, but what they read stays in memory.
"""

from collections.abc import Iterator

import numpy as np

from pace.solver.arrays import BoolArray, IntArray
from pace.solver.graph.fused_program import fuse
from pace.solver.graph.last_collective import last_collective, needed_by
from pace.solver.graph.list_schedule import ListScheduler
from pace.solver.graph.program import OP, Program
from pace.solver.graph.reorder import fused_order

NUM_WITHOUT_DEFERRED = 2
"""The number of orders that defer no ops; they come first."""


def base_orders(scheduler: ListScheduler) -> Iterator[IntArray]:
    """Yield the own order, a lean one that drains early, and both with deferred ops if there are any.

    Complexity: a few passes over the program.
    """
    own = np.arange(len(scheduler.program))
    lean = leaner(scheduler.program, drained_early(scheduler))
    yield own
    yield lean
    deferred = deferred_nodes(scheduler)
    if deferred.any():
        for order in (own, lean):
            place = np.empty(len(order))
            place[order] = np.arange(len(order))
            place[deferred] += len(order)
            yield fused_order(fuse(scheduler.program, ()), place)


def drained_early(scheduler: ListScheduler) -> IntArray:
    """Return an order in which ops that serve only one sink run as soon as they can."""
    program = scheduler.program
    fused = fuse(program, ())
    place = np.arange(len(program), dtype=np.float64)
    deps, starts = program.deps.flat.tolist(), program.deps.starts.tolist()
    places = place.tolist()
    for node in np.flatnonzero(scheduler.sink_of >= 0).tolist():
        if starts[node] < starts[node + 1]:
            last = max(places[dep] for dep in deps[starts[node] : starts[node + 1]])
            places[node] = min(places[node], last + 1 / len(places))
    return fused_order(fused, np.array(places))


def leaner(program: Program, order: IntArray) -> IntArray:
    """Return an order in which ops add memory as late as they can, then those that free some run early."""
    from pace.solver.graph.kernels import lean_places

    fused = fuse(program, ())
    movable = (program.kind == OP) & ~program.kept[program.storage]
    users = fused.uses.reversed(len(fused.storage_bytes))
    for later in (True, False):
        place = np.empty(len(order))
        place[order] = np.arange(len(order))
        neighbors = fused.nexts if later else fused.deps
        lean_places(
            place,
            order,
            later,
            movable,
            neighbors.starts,
            neighbors.flat,
            fused.uses.starts,
            fused.uses.flat,
            users.starts,
            users.flat,
            fused.fresh.starts,
            fused.fresh.flat,
            fused.storage_bytes,
            fused.kept,
        )
        order = fused_order(fused, place)
    return order


def deferred_nodes(scheduler: ListScheduler) -> BoolArray:
    """Return which nodes to run behind the issue of the last long collective: an array of shape (num_nodes,).

    These are sinks that this collective does not need, with the ops that serve only them. First come those
    that hide most seconds for each byte that stays in memory until then. They end when they hide the whole
    collective, or fill the memory budget beside what the program holds from their places on.
    """
    program = scheduler.program
    deferred = np.zeros(len(program), dtype=np.bool_)
    late = last_collective(program)
    if late is None:
        return deferred
    last = late.collective
    needed = needed_by(program, last)
    sink_of = np.where(needed, -1, scheduler.sink_of)
    wire, wait_of = program.wire, program.wait_of
    groups = []
    by_sink = np.argsort(sink_of, kind="stable")
    by_sink = by_sink[np.searchsorted(sink_of[by_sink], 0) :]
    for nodes in np.split(by_sink, np.flatnonzero(np.diff(sink_of[by_sink])) + 1) if len(by_sink) else ():
        sink = int(sink_of[nodes[0]])
        seconds = float(program.duration[nodes].sum())
        if wire[sink] == wire[last]:
            seconds -= float(program.alone_s[sink])
        if sink != last and seconds > 0:
            read = {int(storage) for node in nodes for storage in program.storage[program.deps[node]]}
            read_bytes = program.size_bytes[list(read.difference(nodes.tolist()))].sum()
            groups.append((int(read_bytes - program.output_bytes[sink]), seconds, sink, nodes))
    groups.sort(key=lambda group: (max(0, group[0]) / group[1], -group[2]))
    most_in_use = np.maximum.accumulate(scheduler.base_memory[::-1])[::-1]
    held = 0
    left = float(program.alone_s[last])
    for held_bytes, seconds, sink, nodes in groups:
        if left <= 0:
            break
        if held + held_bytes <= scheduler.budget_bytes - most_in_use[nodes[0]]:
            held += max(0, held_bytes)
            left -= seconds
            deferred[nodes] = True
            deferred[wait_of[sink]] = True
    deferred[wait_of[last]] = deferred.any()
    return deferred
