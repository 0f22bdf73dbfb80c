"""A program of compute ops and collectives, as arrays: one compute stream, any number of wires.

Time. Nodes run in program order. An op takes its duration on the compute stream. Issuing a collective takes
none: it starts when it is issued and its wire is free, so a wire is first in, first out. A wait blocks
compute until its collective ends.

Memory. It follows program order too, as an allocator does: an output is allocated when its node runs, and
freed when the last node that uses its storage has run. The input of a collective is in use until its wait.

Buckets. Collectives of one key may be fused. The bucket is issued once, after its members' inputs are
copied into a buffer, and its first wait copies the outputs out. Both copies run on the compute stream, and
the buffers live from the issue to the wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.cost import CostCurve

OP, COLLECTIVE, WAIT = 0, 1, 2

Bucket = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjacency:
    """A list of numbers for each node, all in one array: node i has ``flat[starts[i]:starts[i + 1]]``."""

    starts: IntArray
    flat: IntArray

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Adjacency":
        """Convert one list for each node."""
        starts = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(each) for each in lists], out=starts[1:])
        flat = np.fromiter((item for each in lists for item in each), dtype=np.int64, count=int(starts[-1]))
        return cls(starts=starts, flat=flat)

    def __getitem__(self, node: int) -> IntArray:
        return self.flat[self.starts[node] : self.starts[node + 1]]

    def reversed(self, num_targets: int) -> "Adjacency":
        """Return for each target the nodes that list it, in their order."""
        sources = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        order = np.argsort(self.flat, kind="stable")
        starts = np.zeros(num_targets + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.flat, minlength=num_targets), out=starts[1:])
        return Adjacency(starts=starts, flat=sources[order])


@dataclass(frozen=True, kw_only=True)
class Program:
    """Nodes in program order; each comes after those that it depends on.

    Attributes
    ----------
    kind : array of shape (num_nodes,), as all arrays here
        OP, COLLECTIVE or WAIT.
    duration
        Seconds that an op takes on the compute stream; 0 for collectives and waits.
    deps
        Nodes whose outputs each node reads. A wait depends on its collective only.
    wire, key
        Wire and key of each collective; -1 for other nodes. Collectives of one key may share a bucket, and
        ``costs[key]`` gives their durations.
    input_bytes, output_bytes
        Bytes that each collective reads and returns; 0 for other nodes. The cost of a bucket is that of the
        sum of its members' `input_bytes`.
    storage
        The node that allocated each node's output: the node itself unless the output is a view.
    size_bytes
        Bytes that each node allocates; 0 if its output is a view.
    kept
        Whether each storage is never freed, because the program returns it.
    costs
        The cost of each key.
    num_wires
        Number of wires.
    copy_bytes_per_s
        Rate of the device's memory. A copy reads and writes each byte.
    resident_bytes
        Bytes allocated before the first node and never freed.
    """

    kind: IntArray
    duration: FloatArray
    deps: Adjacency
    wire: IntArray
    key: IntArray
    input_bytes: IntArray
    output_bytes: IntArray
    storage: IntArray
    size_bytes: IntArray
    kept: BoolArray
    costs: tuple[CostCurve, ...]
    num_wires: int
    copy_bytes_per_s: float
    resident_bytes: int

    def __len__(self) -> int:
        return len(self.kind)

    def collectives(self) -> IntArray:
        """Return the numbers of the collectives, in program order."""
        return np.flatnonzero(self.kind == COLLECTIVE)

    @cached_property
    def wait_of(self) -> IntArray:
        """The number of each collective's wait; -1 for other nodes."""
        waits = np.full(len(self), -1)
        for wait in np.flatnonzero(self.kind == WAIT).tolist():
            waits[self.deps[wait][0]] = wait
        return waits

    @cached_property
    def alone_s(self) -> FloatArray:
        """Seconds that each collective takes its wire outside any bucket; 0 for other nodes."""
        seconds = np.zeros(len(self))
        for key, cost in enumerate(self.costs):
            members = np.flatnonzero(self.key == key)
            seconds[members] = cost(self.input_bytes[members])
        return seconds

    @cached_property
    def users(self) -> Adjacency:
        """The nodes that read each node's output, in program order."""
        return self.deps.reversed(len(self))

    @cached_property
    def paths(self) -> tuple[FloatArray, FloatArray]:
        """Each node's head and tail: the longest paths to its start and from its end, in seconds.

        Ops count with their durations and collectives with their time outside any bucket, as a bucket takes
        no less. So in every plan, with any order and any buckets, no node starts before its head, and the
        plan lasts at least the tail after the node's end.
        """
        weights = (self.duration + self.alone_s).tolist()
        starts, flat = self.deps.starts.tolist(), self.deps.flat.tolist()
        heads, tails = [0.0] * len(self), [0.0] * len(self)
        for node, (first, last) in enumerate(pairwise(starts)):
            for dep in flat[first:last]:
                end = heads[dep] + weights[dep]
                if end > heads[node]:
                    heads[node] = end
        for node in range(len(self) - 1, -1, -1):
            behind = tails[node] + weights[node]
            for dep in flat[starts[node] : starts[node + 1]]:
                if behind > tails[dep]:
                    tails[dep] = behind
        return np.array(heads), np.array(tails)

    def transfer_s(self, bucket: Sequence[int]) -> float:
        """Return how long a bucket, or a single collective, takes its wire, in seconds."""
        key = self.key[bucket[0]]
        return float(self.costs[key](float(self.input_bytes[list(bucket)].sum())))

    def copy_in_s(self, bucket: Sequence[int]) -> float:
        """Return the seconds of copying into a bucket's buffer; 0 for a single collective."""
        return self._copy_s(self.input_bytes, bucket)

    def copy_out_s(self, bucket: Sequence[int]) -> float:
        """Return the seconds of copying out of a bucket's buffer; 0 for a single collective."""
        return self._copy_s(self.output_bytes, bucket)

    def _copy_s(self, sizes: IntArray, bucket: Sequence[int]) -> float:
        if len(bucket) < 2:
            return 0.0
        return 2 * float(sizes[list(bucket)].sum()) / self.copy_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """An order of all nodes, and the buckets of two or more collectives.

    The members of a bucket are next to one another in the order, and so are their waits.
    """

    order: IntArray
    buckets: tuple[Bucket, ...]
