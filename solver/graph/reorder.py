"""Plans in another order: from places, where every node runs as soon as it can; and with later waits.

A program whose buckets are given is here, too, for pricing many orders of it: the end and the memory of each.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.graph.fused_program import FusedProgram, fuse
from pace.solver.graph.memory import memory_of_order
from pace.solver.graph.program import COLLECTIVE, WAIT, Bucket, Program, ProgramPlan
from pace.solver.graph.timeline import walk


def reordered(program: Program, buckets: Sequence[Bucket], place: FloatArray) -> ProgramPlan:
    """Return the plan whose nodes run in order of their places, as far as what they read allows.

    Parameters
    ----------
    buckets
        None of their members may need another's output.
    place : array of shape (num_nodes,)
        A bucket has the last place of its members, and so have its waits.
    """
    fused = fuse(program, buckets)
    return ProgramPlan(order=fused.spread(fused_order(fused, place)), buckets=tuple(buckets))


def fused_order(fused: FusedProgram, place: FloatArray) -> IntArray:
    """Return the order of a fused program's nodes that follows from places of ``fused.program``'s nodes.

    At every step the node with the earliest place runs, of those whose deps have run.
    """
    size = len(fused.kind)
    due = np.full(size, -np.inf)
    np.maximum.at(due, fused.place, place)
    by_place = np.argsort(due, kind="stable")
    rank = np.empty(size, dtype=np.int64)
    rank[by_place] = np.arange(size)
    readers = np.repeat(np.arange(size), np.diff(fused.deps.starts))
    if np.all(rank[fused.deps.flat] < rank[readers]):
        return by_place
    nodes, ranks = by_place.tolist(), rank.tolist()
    missing = np.diff(fused.deps.starts).tolist()
    starts, nexts = fused.nexts.starts.tolist(), fused.nexts.flat.tolist()
    passed = [False] * size
    late: list[int] = []  # ranks of nodes whose places are over, and whose deps have run by now
    order = []
    for due_now in nodes:
        if missing[due_now]:
            passed[due_now] = True
            continue
        late.append(ranks[due_now])
        while late:
            node = nodes[heapq.heappop(late)]
            order.append(node)
            for below in nexts[starts[node] : starts[node + 1]]:
                missing[below] -= 1
                if passed[below] and not missing[below]:
                    heapq.heappush(late, ranks[below])
    assert len(order) == size, "the members of a bucket need one another"
    return np.array(order, dtype=np.int64)


def with_late_waits(program: Program, plan: ProgramPlan) -> ProgramPlan:
    """Return a plan whose waits come later: behind the next collective issued, or before what needs them.

    So compute does not stand still if a collective takes longer than predicted. What the collective reads
    stays in memory for longer.
    """
    fused = fuse(program, plan.buckets)
    places = fused.place[plan.order]
    order: list[int] = []
    held: dict[int, None] = {}
    for node in places[np.sort(np.unique(places, return_index=True)[1])].tolist():
        if fused.kind[node] == WAIT:
            held[node] = None
            continue
        needed = [dep for dep in fused.deps[node].tolist() if dep in held]
        order += [*needed, node]
        for wait in needed:
            del held[wait]
        if fused.kind[node] == COLLECTIVE:
            order += held
            held.clear()
    return replace(plan, order=fused.spread(np.array([*order, *held], dtype=np.int64)))


class BucketedProgram:
    """Prices orders as ``pace.solver.graph.timeline`` and ``memory`` do, and fuses the buckets only once."""

    def __init__(self, program: Program, buckets: Sequence[Bucket]) -> None:
        self._fused = fused = fuse(program, buckets)
        self._kind, self._wire = fused.kind.tolist(), fused.wire.tolist()
        self._seconds, self._transfer = fused.seconds.tolist(), fused.transfer.tolist()
        self._awaited = [
            int(fused.deps[node][0]) if kind == WAIT else -1 for node, kind in enumerate(self._kind)
        ]

    def order(self, place: FloatArray) -> IntArray:
        """Return the order that follows from places; see ``pace.solver.graph.reorder``."""
        return fused_order(self._fused, place)

    def end_s(self, order: IntArray, apart: Iterable[int] = ()) -> float:
        """Return when an order ends, in seconds; `apart` is as in ``ProgramPlan``."""
        return walk(
            order.tolist(),
            kind=self._kind,
            seconds=self._seconds,
            transfer=self._transfer,
            wire=self._wire,
            awaited=self._awaited,
            num_wires=self._fused.program.num_wires,
            apart={int(self._fused.place[node]) for node in apart},
            slowdown=self._fused.program.compute_slowdown,
        ).end_s

    def peak_bytes(self, order: IntArray, returned: Iterable[int] = ()) -> int:
        """Return the most memory that an order uses if the outputs of some nodes are not freed."""
        kept = self._fused.kept.copy()
        kept[np.fromiter(returned, dtype=np.int64)] = True
        return memory_of_order(replace(self._fused, kept=kept), order).peak_bytes
