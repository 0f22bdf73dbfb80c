"""Memory in use at each step of a plan, by the rules of ``pace.solver.graph.program``."""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import IntArray
from pace.solver.graph.fused_program import FusedProgram, fuse
from pace.solver.graph.program import Program, ProgramPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInUse:
    """Bytes in use at each step of a plan; a bucket is one step, and so are its waits.

    Attributes
    ----------
    in_use_bytes : array of shape (num_steps,)
        What is allocated while a step runs, with what it allocates and before it frees anything.
    nodes : array of shape (num_steps,)
        The first node of each step.
    """

    in_use_bytes: IntArray
    nodes: IntArray
    resident_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most that is in use at once."""
        return int(self.in_use_bytes.max(initial=self.resident_bytes))

    @property
    def peak_node(self) -> int:
        """The node at which most is in use; 0 for an empty program."""
        return int(self.nodes[np.argmax(self.in_use_bytes)]) if len(self.nodes) else 0


def memory_in_use(program: Program, plan: ProgramPlan) -> MemoryInUse:
    """Compute the memory that a plan uses."""
    fused = fuse(program, plan.buckets)
    places = fused.place[plan.order]
    steps = np.unique(places, return_index=True)[1]
    return memory_of_order(fused, places[np.sort(steps)])


def memory_of_order(fused: FusedProgram, order: IntArray) -> MemoryInUse:
    """Compute the memory that an order of a fused program's nodes uses."""
    step_of = np.empty(len(order), dtype=np.int64)
    step_of[order] = np.arange(len(order))
    change = np.zeros(len(order) + 1, dtype=np.int64)
    allocating = step_of[np.repeat(np.arange(len(order)), np.diff(fused.fresh.starts))]
    np.add.at(change, allocating, fused.storage_bytes[fused.fresh.flat])
    last = np.full(len(fused.storage_bytes), -1)
    last[fused.fresh.flat] = allocating
    np.maximum.at(
        last, fused.uses.flat, step_of[np.repeat(np.arange(len(order)), np.diff(fused.uses.starts))]
    )
    freed = np.flatnonzero((fused.storage_bytes > 0) & ~fused.kept)
    np.subtract.at(change, last[freed] + 1, fused.storage_bytes[freed])
    return MemoryInUse(
        in_use_bytes=fused.program.resident_bytes + np.cumsum(change)[:-1],
        nodes=fused.members.flat[fused.members.starts[:-1]][order],
        resident_bytes=fused.program.resident_bytes,
    )
