"""A bound for programs that end in a collective: other collectives need the compute that could hide it.

Theorem. Let j be a collective and C the time of all ops. Give every op that j does not need at most one
collective of j's wire that needs the op, c(v). For every plan,

    T >= C + latency + w(j) - sum over v without c(v) of p(v) - sum over c of max(0, sum of p(v) with c(v) = c
    - w(c)),

where w is bytes times the seconds per byte of a line below each collective's cost, and latency the least of
theirs.

Proof. Let E be the start of j (or of its bucket), and F the ops that have not ended by then; j needs none of
them. At most E seconds of compute are done by E, so p(F) >= C - E. Every collective of the wire that needs an
op of F starts after E too. Let w(F) be their sum. The wire needs latency + w(j) + w(F) from E on, so T >= E +
latency + w(j) + w(F) >= C + latency + w(j) - (p(F) - w(F)). In the last term, an op of F without c(v) adds
p(v). The ops of F with c(v) = c add at most the sum of their p(v), less w(c), or 0 if F holds none of them.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import BoolArray, IntArray
from pace.solver.cost_curve import Line
from pace.solver.graph.program import COLLECTIVE, OP, Program


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
        The most compute that can run while the collective is on the wire.
    lines
        For each key of collectives on this wire, the line below their cost.
    """

    collective: int
    latency_s: float
    own_s: float
    compute_s: float
    hidden_s: float
    lines: dict[int, Line]

    @property
    def bound_s(self) -> float:
        """The lower bound on the end of every plan, in seconds."""
        return self.compute_s + self.latency_s + self.own_s - self.hidden_s


def last_collective(program: Program, most: int = 4) -> LastCollective | None:
    """Return the best bound that the `most` longest collectives give; None without collectives."""
    collectives = program.collectives()
    if not len(collectives):
        return None
    alone = program.alone_s[collectives]
    # Of equally long ones, try the last of the program first: it tends to give the best bound.
    longest = collectives[np.lexsort((-collectives, -alone))][:most]
    found = [_bound(program, int(each)) for each in longest]
    return max(found, key=lambda bound: bound.bound_s)


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


def _bound(program: Program, collective: int) -> LastCollective:
    wire = int(program.wire[collective])
    of_wire = np.flatnonzero((program.kind == COLLECTIVE) & (program.wire == wire))
    lines: dict[int, Line] = {}
    for key in np.unique(program.key[of_wire]).tolist():
        total = float(program.input_bytes[of_wire[program.key[of_wire] == key]].sum())
        below = program.costs[key].minorants(total) if total else (Line(latency_s=0.0, seconds_per_byte=0.0),)
        lines[key] = max(below, key=lambda line: line.seconds_per_byte)
    per_byte = np.array([lines[key].seconds_per_byte for key in program.key[of_wire].tolist()])
    seconds = np.zeros(len(program) + 1)
    seconds[of_wire] = program.input_bytes[of_wire] * per_byte
    deferrable = (program.kind == OP) & ~needed_by(program, collective)
    hides = first_below(program, wire)
    # An op that no collective needs can run behind this one at no cost.
    free = float(program.duration[deferrable & (hides < 0)].sum())
    shared = np.zeros(len(program))
    mine = deferrable & (hides >= 0)
    np.add.at(shared, hides[mine], program.duration[mine])
    gain = float(np.maximum(shared - seconds[:-1], 0.0).sum())
    return LastCollective(
        collective=collective,
        latency_s=min(line.latency_s for line in lines.values()),
        own_s=float(seconds[collective]),
        compute_s=float(program.duration.sum()),
        hidden_s=free + gain,
        lines=lines,
    )
