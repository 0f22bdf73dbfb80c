"""Memory in use at each step of a plan, by the rules of ``pace.solver.graph.program``, and a lower bound.

Theorem. When a node runs in any plan, at least these bytes are in use: what the node allocates, what it or a
node behind it reads and a node before it or it itself allocated, and what a node before it allocated and the
program returns. Behind and before are meant by what nodes need.

Proof. All nodes before it have run, and none behind it. A bucket instead of its members holds buffers of at
least their outputs from their issue on, and a wait that allocates these outputs runs no later than their
first use.
"""

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


def needed_bytes(program: Program) -> IntArray:
    """Return the bytes that are in use in every plan when each node runs: an array of shape (num_nodes,).

    Complexity: a set of nodes for each node, and a pass over the nodes for each that allocates memory.
    """
    n = len(program)
    before, behind = [1 << node for node in range(n)], [1 << node for node in range(n)]
    readers = [0] * n
    for node in range(n):
        for dep in program.deps[node].tolist():
            before[node] |= before[dep]
            readers[program.storage[dep]] |= before[node]
    for node in range(n - 1, -1, -1):
        for user in program.users[node].tolist():
            behind[node] |= behind[user]
    needed: IntArray = np.full(n, program.resident_bytes)
    for storage in np.flatnonzero(program.size_bytes > 0).tolist():
        nodes = behind[storage]
        if not program.kept[storage]:
            nodes &= readers[storage] | 1 << storage
        bits = np.frombuffer(nodes.to_bytes((n + 7) // 8, "little"), dtype=np.uint8)
        needed[np.flatnonzero(np.unpackbits(bits, bitorder="little"))] += program.size_bytes[storage]
    return needed
