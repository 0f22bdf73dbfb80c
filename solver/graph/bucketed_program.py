"""A program whose buckets are given, for pricing many orders of it: the end and the memory of each."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.graph.fused_program import fuse
from pace.solver.graph.memory import memory_of_order
from pace.solver.graph.program import WAIT, Bucket, Program
from pace.solver.graph.reorder import fused_order
from pace.solver.graph.timeline import walk


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
