"""A bound for programs that end in a collective: other collectives need the compute that could hide it.

Theorem. Let j be a collective and C the time of all ops. Give every op that j does not need at most one
collective of j's wire that needs the op, c(v). A plan of time T has

    T >= C + latency + w(j) - sum over v without c(v) of p(v) - sum over c of max(0, sum of p(v) with c(v) = c
    - w(c)),

where p(v) is the duration of v, w is bytes times the seconds per byte of a line below each collective's cost,
and latency is the least latency of these lines.

Proof. Let E be the time at which j (or its bucket) is issued, and F the ops behind it; j needs none of them.
At most E seconds of compute are done by E, so p(F) >= C - E. Every collective of the wire that needs an op of
F is issued after j. Let w(F) be their sum. The wire needs latency + w(j) + w(F) from E on, so T >= E +
latency + w(j) + w(F) >= C + latency + w(j) - (p(F) - w(F)). In the last term, an op of F without c(v) adds
p(v). The ops of F with c(v) = c add at most the sum of their p(v), less w(c), or 0 if F holds none of them.

Within a memory budget, ops that run behind j keep what they read in memory. Let X be j, or an op that j
needs. Nodes send bytes of flow to storages that they read. A storage passes at most its size, and nothing if
it is in use in every plan when X runs (``pace.solver.graph.memory``), or returned. The flow ends there if X
needs the node that allocates the storage. Otherwise, this node sends it on to what it reads. Each op v that j
does not need sends b(v) bytes. So does, for each returned storage that X does not need, the node that
allocates it: m bytes, at most the storage's size. Let R be the budget less what is in use in every plan when
X runs, less the sum of all m.

Theorem. For every price >= 0 and every plan within the budget, the bound holds with p'(v) = max(0, p(v) -
price * b(v)) instead of p(v) in both sums, less price * R.

Proof. The flow of a node that runs behind X starts behind X and ends at storages that are allocated before X.
So it passes a storage that a node before X allocates and a node behind X reads. When X runs, this storage is
in use, or as many bytes of a bucket's buffer. Each passes at most its size. A returned storage that is
allocated before X is in use too, and passes no flow. So b(F) and all m are at most what is in use beside what
is in every plan: b(F) <= R, and p(F) <= p'(F) + price * b(F) <= p'(F) + price * R.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.cost_curve import Line
from pace.solver.graph.program import COLLECTIVE, OP, Program

PRICES = 10
PRICE_STEPS = (0.7, 0.94)
"""Prices of memory are tried in series of so many, each price lower by this factor than the one before.

The first factor belongs to a series for each X, from the highest price that may pay. The second belongs to
one series from just above the best price so far.
"""
DEEPEST = 200
"""Flow passes at most so many nodes on its way to a storage."""
MOST_TRIED = 4
"""So many nodes are looked at for the one where most memory is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCollective:
    """The bound that one collective gives: compute_s + latency_s + own_s - hidden_s.

    Attributes
    ----------
    collective
        Number of the node.
    latency_s, own_s
        Time that the collective takes its wire, by the line below its cost.
    compute_s
        Time of all ops.
    hidden_s
        The most compute that can run while the collective is on the wire; includes ``held_s_per_byte *
        room_bytes``.
    full_at
        Number of the node X where memory is counted.
    held_s_per_byte, room_bytes
        Price of memory, and R; both 0 for a bound with any amount of memory.
    lines
        For each key of collectives on this wire, the line below their cost.
    """

    collective: int
    latency_s: float
    own_s: float
    compute_s: float
    hidden_s: float
    lines: dict[int, Line]
    full_at: int
    held_s_per_byte: float = 0.0
    room_bytes: int = 0

    @property
    def bound_s(self) -> float:
        """The lower bound on the end of every plan, in seconds."""
        return self.compute_s + self.latency_s + self.own_s - self.hidden_s


def last_collective(
    program: Program, budget_bytes: int | None = None, most: int = 4
) -> LastCollective | None:
    """Return the best bound that the `most` longest collectives give; None without collectives.

    Within a memory budget, only the collective is tried whose bound is the best with any amount of memory.
    Complexity: a few passes over the program for each collective and each price of memory.
    """
    collectives = program.collectives()
    if not len(collectives):
        return None
    alone = program.alone_s[collectives]
    # Of equally long ones, try the last of the program first: it tends to give the best bound.
    longest = collectives[np.lexsort((-collectives, -alone))][:most]
    found = [_Behind(program, int(each)) for each in longest]
    best = max(found, key=lambda behind: behind.bound(None).bound_s)
    return best.bound(budget_bytes)


def needed_by(program: Program, node: int) -> BoolArray:
    """Return which nodes a node depends on, itself included: an array of shape (num_nodes,)."""
    needed = np.zeros(len(program), dtype=np.bool_)
    needed[node] = True
    for each in range(node, -1, -1):
        if needed[each]:
            needed[program.deps[each]] = True
    return needed


def first_below(program: Program, wire: int) -> IntArray:
    """Return for each node the first collective of a wire in program order that needs it, else -1."""
    n = len(program)
    below = np.full(n, n)
    starts, flat = program.deps.starts.tolist(), program.deps.flat.tolist()
    of_wire = ((program.kind == COLLECTIVE) & (program.wire == wire)).tolist()
    listed = below.tolist()
    for node in range(n - 1, -1, -1):
        mine = node if of_wire[node] else listed[node]
        for dep in flat[starts[node] : starts[node + 1]]:
            listed[dep] = min(listed[dep], mine)
    below = np.array(listed)
    return np.where(below == n, -1, below)


class _Behind:
    """What can run behind the issue of one collective."""

    def __init__(self, program: Program, collective: int) -> None:
        self.program = program
        self.collective = collective
        self.needed = needed_by(program, collective)
        wire = int(program.wire[collective])
        of_wire = np.flatnonzero((program.kind == COLLECTIVE) & (program.wire == wire))
        self.lines: dict[int, Line] = {}
        for key in np.unique(program.key[of_wire]).tolist():
            total = float(program.input_bytes[of_wire[program.key[of_wire] == key]].sum())
            below = (
                program.costs[key].minorants(total) if total else (Line(latency_s=0.0, seconds_per_byte=0.0),)
            )
            self.lines[key] = max(below, key=lambda line: line.seconds_per_byte)
        per_byte = np.array([self.lines[key].seconds_per_byte for key in program.key[of_wire].tolist()])
        self.seconds = np.zeros(len(program))
        self.seconds[of_wire] = program.input_bytes[of_wire] * per_byte
        self.ops = np.flatnonzero((program.kind == OP) & ~self.needed & (program.duration > 0))
        self.hides = first_below(program, wire)[self.ops]

    def bound(self, budget_bytes: int | None) -> LastCollective:
        """Return the best bound within a memory budget."""
        without = self._bound(self.program.duration[self.ops])
        if budget_bytes is None or not without.hidden_s:
            return without
        best = without
        memories = {node: _MemoryAt(self.program, node) for node in (self.collective, self._fullest())}
        for memory in memories.values():
            room = budget_bytes - memory.in_use_bytes
            if room >= 0:
                highest = min(without.hidden_s / max(1, room), without.compute_s)
                best = self._priced(best, memory, room, highest, PRICE_STEPS[0])
        if best.held_s_per_byte:
            highest = best.held_s_per_byte / PRICE_STEPS[0]
            best = self._priced(best, memories[best.full_at], best.room_bytes, highest, PRICE_STEPS[1])
        return best

    def _priced(
        self, best: LastCollective, memory: "_MemoryAt", room_bytes: int, highest: float, step: float
    ) -> LastCollective:
        """Return the best of a bound and those of several prices, each lower than the one before."""
        for price in (highest * step ** np.arange(PRICES)).tolist():
            left = self.program.duration[self.ops] - price * memory.held_bytes(self.ops, price)
            bound = self._bound(
                np.maximum(0.0, left), full_at=memory.node, held_s_per_byte=price, room_bytes=room_bytes
            )
            best = max(best, bound, key=lambda each: each.bound_s)
        return best

    def _fullest(self) -> int:
        """Return the collective or one of the last ops that it needs: where these use most memory."""
        program = self.program
        tried = [self.collective]
        while len(tried) < MOST_TRIED:
            read = [dep for dep in program.deps[tried[-1]].tolist() if program.kind[dep] == OP]
            if not read:
                break
            tried.append(max(read))

        def bytes_at(node: int) -> int:
            storages = {node, *program.storage[program.deps[node]].tolist()}
            return int(program.size_bytes[list(storages)].sum())

        return max(tried, key=bytes_at)

    def _bound(
        self,
        left: FloatArray,
        *,
        full_at: int | None = None,
        held_s_per_byte: float = 0.0,
        room_bytes: int = 0,
    ) -> LastCollective:
        """Return the bound if ops hide so many seconds each."""
        # An op that no collective needs can run behind this one at no cost.
        free = float(left[self.hides < 0].sum())
        shared = np.zeros(len(self.program))
        mine = self.hides >= 0
        np.add.at(shared, self.hides[mine], left[mine])
        gain = float(np.maximum(shared - self.seconds, 0.0).sum())
        return LastCollective(
            collective=self.collective,
            latency_s=min(line.latency_s for line in self.lines.values()),
            own_s=float(self.seconds[self.collective]),
            compute_s=float(self.program.duration.sum()),
            hidden_s=free + gain + held_s_per_byte * room_bytes,
            lines=self.lines,
            full_at=self.collective if full_at is None else full_at,
            held_s_per_byte=held_s_per_byte,
            room_bytes=room_bytes,
        )


class _MemoryAt:
    """Memory in use when a node X runs.

    Attributes
    ----------
    in_use_bytes
        In every plan: resident memory, what X or a node behind it reads and a node before it allocates, and
        of each returned storage its own bytes, or as many of what it is made from.
    """

    def __init__(self, program: Program, node: int) -> None:
        self.node = node
        self._needed: list[bool] = needed_by(program, node).tolist()
        self._duration = program.duration
        self._starts = program.deps.starts.tolist()
        self._read: list[int] = program.storage[program.deps.flat].tolist()
        counted = self._counted(program)
        self._left: list[int] = np.where(counted | program.kept, 0, program.size_bytes).tolist()
        self._exhausted = [False] * len(program)
        returned = np.flatnonzero(program.kept & ~counted & (program.size_bytes > 0)).tolist()
        flow = sum(self._send(each, int(program.size_bytes[each]), 0) for each in returned)
        self.in_use_bytes = program.resident_bytes + int(program.size_bytes[counted].sum()) + flow

    def _counted(self, program: Program) -> BoolArray:
        """Return the storages that are in use in every plan when the node runs."""
        behind = [False] * len(program)
        behind[self.node] = True
        starts, deps = self._starts, program.deps.flat.tolist()
        for node in range(self.node + 1, len(program)):
            behind[node] = any(behind[dep] for dep in deps[starts[node] : starts[node + 1]])
        readers = np.repeat(np.arange(len(program)), np.diff(program.deps.starts))
        used: BoolArray = program.kept.copy()
        used[program.storage[program.deps.flat[np.array(behind)[readers]]]] = True
        used[self.node] = True
        counted: BoolArray = used & np.array(self._needed) & (program.size_bytes > 0)
        return counted

    def held_bytes(self, ops: IntArray, price: float) -> IntArray:
        """Return a flow of bytes from each op that is worth the op's time at a price, or as much as fits."""
        kept = self._left.copy(), self._exhausted.copy()
        wanted = np.ceil(self._duration[ops] / price)
        found = [
            self._send(node, int(most), 0) for node, most in zip(ops.tolist(), wanted.tolist(), strict=True)
        ]
        self._left, self._exhausted = kept
        return np.array(found, dtype=np.int64)

    def _send(self, node: int, most: int, depth: int) -> int:
        """Send a flow from a node to storages that nodes before this one allocate; return its bytes."""
        sent = 0
        for storage in self._read[self._starts[node] : self._starts[node + 1]]:
            if not self._left[storage]:
                continue
            passed = min(most - sent, self._left[storage])
            if not self._needed[storage]:
                if self._exhausted[storage] or depth == DEEPEST:
                    continue
                passed = self._send(storage, passed, depth + 1)
            self._left[storage] -= passed
            sent += passed
            if sent == most:
                return sent
        self._exhausted[node] = True
        return sent
