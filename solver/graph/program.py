"""A program of compute ops and collectives, as arrays: one compute stream, any number of wires.

Time. Nodes run in program order. An op takes its duration on the compute stream. Issuing a collective takes
none: it starts when it is issued and its wire is free, so a wire is first in, first out. A wait blocks
compute until its collective ends. A plan may put collectives on a second communicator of their wires: then
each communicator is first in, first out, and while both carry one, each gets half of the wire. While any wire
carries a collective, ops and copies take `compute_slowdown` times as long.

Memory. It follows program order too, as an allocator does: an output is allocated when its node runs, and
freed when the last node that uses its storage has run. The input of a collective is in use until its wait.

Buckets. Collectives of one key may be fused. The bucket is issued once, after its members' inputs are
copied into a buffer, and its first wait copies the outputs out. Both copies run on the compute stream, and
the buffers live from the issue to the wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.graph.adjacency import Adjacency
from pace.solver.graph.heads import heads_and_tails

OP, COLLECTIVE, WAIT = 0, 1, 2

Bucket = tuple[int, ...]


def beside_traffic_s(seconds: float, busy_s: float, slowdown: float) -> float:
    """Return how long compute takes that takes so many seconds alone; `slowdown` is at least 1.

    For `busy_s` from its start, a wire is busy, and compute takes `slowdown` times as long. So compute that
    starts earlier, or whose traffic ends earlier, never ends later.
    """
    slow_s = min(busy_s, seconds * slowdown)
    return seconds if slow_s <= 0.0 else seconds + slow_s * (1.0 - 1.0 / slowdown)


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
    compute_slowdown
        Factor by which compute takes longer while a wire is busy; 1 for no slowdown.
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
    compute_slowdown: float = 1.0

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
    def heads_and_tails(self) -> tuple[FloatArray, FloatArray]:
        """Each node's head and tail: no plan starts it before, or ends within less than its tail of its end.

        The proof is in ``pace.solver.graph.heads``.
        """
        weight = self.duration + self.alone_s
        return heads_and_tails(self.deps, self.users, weight, self.duration, self.kind == COLLECTIVE)

    @cached_property
    def clocked(self) -> "Program":
        """The program on the compute clock, where traffic is faster instead of compute slower.

        See ``pace.solver.compute_clock``.
        """
        costs = tuple(cost.faster(self.compute_slowdown) for cost in self.costs)
        return replace(self, costs=costs, compute_slowdown=1.0)

    def in_order(self, order: IntArray) -> "Program":
        """Return the program whose own order is another one: node i is node ``order[i]`` of this program."""
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        lengths = np.diff(self.deps.starts)[order]
        starts = np.append(0, np.cumsum(lengths))
        read = np.arange(len(self.deps.flat)) - np.repeat(starts[:-1] - self.deps.starts[order], lengths)
        turned = replace(
            self,
            kind=self.kind[order],
            duration=self.duration[order],
            deps=Adjacency(starts=starts, flat=place[self.deps.flat[read]]),
            wire=self.wire[order],
            key=self.key[order],
            input_bytes=self.input_bytes[order],
            output_bytes=self.output_bytes[order],
            storage=place[self.storage[order]],
            size_bytes=self.size_bytes[order],
            kept=self.kept[order],
        )
        # Heads and tails do not depend on the order, and take longer than all else.
        head, tail = self.heads_and_tails
        vars(turned)["heads_and_tails"] = head[order], tail[order]
        return turned

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

    Attributes
    ----------
    apart
        Collectives on a second communicator of their wires: all members of a bucket, or none.
    """

    order: IntArray
    buckets: tuple[Bucket, ...]
    apart: frozenset[int] = frozenset()

    def of(self, order: IntArray) -> "ProgramPlan":
        """Return a plan of ``program.in_order(order)``, this one, as a plan of the program."""
        return ProgramPlan(
            order=order[self.order],
            buckets=tuple(tuple(order[list(bucket)].tolist()) for bucket in self.buckets),
            apart=frozenset(order[list(self.apart)].tolist()) if self.apart else frozenset(),
        )
