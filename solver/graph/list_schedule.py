"""List scheduling: a plan for given buckets, node by node, on the compute stream and the wires at once.

A heuristic. Whenever the compute stream is free, it takes the ready op of highest rank. Each wire that would
idle while this op runs, or whose queue is too short, first gets the ready one of highest rank. Memory
is counted at each step. Gathers of parameters may be issued at any time, so each waits until memory has room
for it up to its first use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.graph.adjacency import Adjacency
from pace.solver.graph.fused_program import fuse
from pace.solver.graph.memory import MemoryInUse, memory_in_use
from pace.solver.graph.program import COLLECTIVE, OP, Bucket, Program, ProgramPlan
from pace.solver.graph.timeline import run

UNLIMITED = 2**62
LONGEST_QUEUE = 2
FEED_SHARE = 0.5
"""A gather may run ahead if the ops that serve only it take at most this share of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRules:
    """Settings of list scheduling.

    Attributes
    ----------
    window
        How many places an op may run ahead of the first op that has not run; 0 keeps the program order.
    by_tail
        Whether the op with the longest tail goes first. Otherwise the one that is first in the program.
    most_ahead_bytes
        Most bytes of gathers issued before their places in the program.
    queued
        How many collectives are issued behind the one on the wire: 0, 1 or ``LONGEST_QUEUE``. With a queue, a
        wire does not idle if compute is slower than predicted, or collectives end out of order.
    """

    window: int = 0
    by_tail: bool = False
    most_ahead_bytes: int = UNLIMITED
    queued: int = LONGEST_QUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan with its end (seconds), its peak memory (bytes), the node where the peak is, and its method.

    Attributes
    ----------
    unqueued_s
        Seconds in which a wire carries a collective and the next one is not issued yet, added up over all
        wires; 0 if not known. The last collective of a wire does not count.
    longest_s
        Seconds of the longest collective; 0 if not known.
    num_states
        Number of states that were compared to prove that no plan within the budget is faster; None without
        such a proof.
    """

    plan: ProgramPlan
    end_s: float
    peak_bytes: int
    peak_node: int
    method: str
    num_states: int | None = None
    unqueued_s: float = 0.0
    longest_s: float = 0.0


def priced(program: Program, plan: ProgramPlan, method: str) -> PricedPlan:
    """Return a plan with its time and memory."""
    memory = memory_in_use(program, plan)
    return PricedPlan(
        plan=plan,
        end_s=run(program, plan).end_s,
        peak_bytes=memory.peak_bytes,
        peak_node=memory.peak_node,
        method=method,
    )


class ListScheduler:
    """Makes plans of one program under a memory budget."""

    def __init__(self, program: Program, budget_bytes: int) -> None:
        self.program = program
        self.budget_bytes = budget_bytes
        self.tail = program.heads_and_tails[1]

    @cached_property
    def base_memory(self) -> IntArray:
        """Bytes in use at each node in program order, without buckets: an array of shape (num_nodes,)."""
        return self._as_it_is.in_use_bytes

    @cached_property
    def _as_it_is(self) -> MemoryInUse:
        return memory_in_use(self.program, ProgramPlan(order=np.arange(len(self.program)), buckets=()))

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """Collectives that need no other collective's output."""
        return tuple(np.flatnonzero((self.program.kind == COLLECTIVE) & ~self._below).tolist())

    @cached_property
    def sinks(self) -> tuple[int, ...]:
        """Collectives whose output no other collective needs."""
        above = [False] * len(self.program)
        communicates = (self.program.kind == COLLECTIVE).tolist()
        starts, deps = self.program.deps.starts.tolist(), self.program.deps.flat.tolist()
        for node in range(len(above) - 1, -1, -1):
            if above[node] or communicates[node]:
                for dep in deps[starts[node] : starts[node + 1]]:
                    above[dep] = True
        return tuple(node for node in self.program.collectives().tolist() if not above[node])

    @cached_property
    def _below(self) -> BoolArray:
        below = [False] * len(self.program)
        communicates = (self.program.kind == COLLECTIVE).tolist()
        starts, deps = self.program.deps.starts.tolist(), self.program.deps.flat.tolist()
        for node in range(len(below)):
            below[node] = any(
                below[dep] or communicates[dep] for dep in deps[starts[node] : starts[node + 1]]
            )
        return np.array(below, dtype=np.bool_)

    @cached_property
    def gathers(self) -> tuple[int, ...]:
        """Collectives that may be issued at any time, because the ops that they need serve only them."""
        return tuple(np.flatnonzero(self._is_gather).tolist())

    @cached_property
    def first_use(self) -> IntArray:
        """Place of the first node that uses each collective's output; the program's length if none does."""
        users = self.program.users
        uses = np.full(len(self.program), len(self.program))
        waits = self.program.wait_of
        for collective in self.program.collectives():
            below = users[waits[collective]]
            if len(below):
                uses[collective] = below[0]
        return uses

    @cached_property
    def served(self) -> IntArray:
        """For each op that serves only one gather, that gather; -1 for other nodes."""
        owner = self._owner
        nodes = np.arange(len(self.program))
        return np.where((owner >= 0) & (owner != nodes) & self._is_gather[np.maximum(owner, 0)], owner, -1)

    @cached_property
    def _owner(self) -> IntArray:
        """Each node's owner, a collective that returns more than it reads and alone needs the node, or -1."""
        sources = np.array(self.sources, dtype=np.int64)
        growing = sources[self.program.output_bytes[sources] > self.program.input_bytes[sources]]
        return self._only_for(growing.tolist())

    @cached_property
    def sink_of(self) -> IntArray:
        """The only sink that needs each op, if nothing else does; the sink itself for a sink, else -1."""
        return self._only_for(self.sinks)

    def _only_for(self, collectives: Sequence[int]) -> IntArray:
        """Return for each op which of some collectives alone needs it, for these themselves, else -1."""
        program = self.program
        owner = [-1] * len(program)
        for node in collectives:
            owner[node] = node
        free = (program.kind == OP) & ~program.kept[program.storage]
        starts, users = program.users.starts.tolist(), program.users.flat.tolist()
        for node in np.flatnonzero(free)[::-1].tolist():
            owners = {owner[user] for user in users[starts[node] : starts[node + 1]]}
            if len(owners) == 1:
                owner[node] = owners.pop()
        return np.array(owner, dtype=np.int64)

    @cached_property
    def _is_gather(self) -> BoolArray:
        owner = self._owner
        gathers: BoolArray = owner == np.arange(len(owner))
        # A collective whose input others read too must wait for that input.
        readers = np.repeat(np.arange(len(owner)), np.diff(self.program.deps.starts))
        shared = (owner[readers] >= 0) & (owner[self.program.deps.flat] != owner[readers])
        gathers[owner[readers[shared]]] = False
        return gathers

    @cached_property
    def _runs_ahead(self) -> BoolArray:
        """Which gathers are issued before their places, with the ops that serve only them.

        Not those of long ops: the wire would idle while these run, although another collective may be ready.
        """
        feeds = np.zeros(len(self.program))
        fed = self.served >= 0
        np.add.at(feeds, self.served[fed], self.program.duration[fed])
        return self._is_gather & (feeds <= FEED_SHARE * self.program.alone_s)

    @cached_property
    def _time_left(self) -> FloatArray:
        """Seconds of compute from each node to the end of the program, in program order."""
        return np.append(np.cumsum(self.program.duration[::-1])[::-1], 0.0)

    @cached_property
    def _places(self) -> IntArray:
        """The place at which each node is due: of its first use if it runs ahead, else its own."""
        n = len(self.program)
        return np.where(self._runs_ahead, np.minimum(self.first_use, n - 1), np.arange(n))

    @cached_property
    def _program_rank(self) -> FloatArray:
        """Rank in program order: ops by their places, collectives by the compute after their first use."""
        n = len(self.program)
        uses = np.where(self.program.kind == COLLECTIVE, self.first_use, n)
        collectives = self._time_left[uses]
        return np.where(self.program.kind == COLLECTIVE, collectives, -np.arange(n, dtype=np.float64))

    def as_it_is(self) -> PricedPlan:
        """Return the program's own order, without buckets."""
        plan = ProgramPlan(order=np.arange(len(self.program)), buckets=())
        return PricedPlan(
            plan=plan,
            end_s=run(self.program, plan).end_s,
            peak_bytes=self._as_it_is.peak_bytes,
            peak_node=self._as_it_is.peak_node,
            method="the program's own order",
            longest_s=float(self.program.alone_s.max(initial=0.0)),
        )

    def plan(self, buckets: Sequence[Bucket], rules: ListRules) -> PricedPlan:
        """Return a plan with these buckets; its peak memory may exceed the budget."""
        from pace.solver.graph.kernels import list_schedule

        program = self.program
        fused = fuse(program, buckets)
        size = len(fused.kind)
        place = fused.place
        earliest = np.full(size, len(program))
        np.minimum.at(earliest, place, self._places)
        latest = np.zeros(size, dtype=np.int64)
        np.maximum.at(latest, place, self._places)
        # A bucket may be issued at any time only if each of its members may.
        is_gather = fused.kind == COLLECTIVE
        is_gather[place[np.flatnonzero((program.kind == COLLECTIVE) & ~self._runs_ahead)]] = False
        position = np.where(is_gather, earliest, latest)
        rank = np.full(size, -np.inf)
        np.maximum.at(rank, place, self.tail if rules.by_tail else self._program_rank)
        ahead = np.where(is_gather, 0, -1)
        np.add.at(ahead, place, np.where(is_gather[place], program.output_bytes, 0))
        feeders = np.flatnonzero((self.served >= 0) & is_gather[place[self.served]])
        fed = np.full(size, -1, dtype=np.int64)
        fed[place[feeders]] = place[self.served[feeders]]
        feeding = _listed(place[self.served[feeders]], place[feeders], size)
        queue = np.flatnonzero(is_gather)
        queue = queue[np.lexsort((queue, position[queue]))]
        queues = _listed(fused.wire[queue], queue, program.num_wires)
        order = np.empty(size, dtype=np.int64)
        end_s, unqueued_s, peak, peak_at, count = list_schedule(
            fused.kind,
            fused.seconds,
            fused.transfer,
            fused.wire,
            program.num_wires,
            fused.deps.starts,
            fused.deps.flat,
            fused.nexts.starts,
            fused.nexts.flat,
            position,
            rank,
            feeding.starts,
            feeding.flat,
            fed,
            ahead,
            queues.starts,
            queues.flat,
            fused.uses.starts,
            fused.uses.flat,
            fused.fresh.starts,
            fused.fresh.flat,
            fused.storage_bytes,
            fused.num_uses,
            fused.kept,
            self.base_memory,
            program.resident_bytes,
            self.budget_bytes,
            rules.most_ahead_bytes,
            rules.window,
            rules.queued,
            program.compute_slowdown,
            order,
        )
        assert count == size, (count, size)
        return PricedPlan(
            plan=ProgramPlan(order=fused.spread(order), buckets=tuple(buckets)),
            end_s=end_s,
            unqueued_s=unqueued_s,
            longest_s=float(fused.transfer.max(initial=0.0)),
            peak_bytes=peak,
            peak_node=int(fused.members[int(order[peak_at])][0]) if size else 0,
            method=f"heuristic: {'longest tail' if rules.by_tail else 'program order'} first",
        )


def _listed(owners: IntArray, items: IntArray, num_owners: int) -> Adjacency:
    """Return the items of each owner, in their order."""
    starts = np.zeros(num_owners + 1, dtype=np.int64)
    np.cumsum(np.bincount(owners, minlength=num_owners), out=starts[1:])
    return Adjacency(starts=starts, flat=items[np.argsort(owners, kind="stable")])
