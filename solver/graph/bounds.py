"""Lower bounds that hold for every plan of a program, and the sets that prove them.

Theorem. Let r and q be heads and tails (``pace.solver.graph.heads``). For every plan, every machine and every
set S of its jobs, the program ends no earlier than min r over S + the time S takes the machine + min q over
S. Jobs of the compute stream are ops; copies only add to them. Jobs of a wire are collectives. However they
are fused, a set of X bytes takes the wire at least latency + X * seconds per byte, where the line lies below
the cost of every size: costs of buckets add up, and a line that starts at or above zero counts its latency at
least once.

Proof. No job of S starts before min r, a machine serves one job at a time, and at least min q follows the
last one. Two communicators of one wire serve two, each at half the rate, which takes no less time.

Let compute take s times as long while a wire is busy. Let W be any of these bounds with collectives s times
as fast, and P the least time that a wire is busy in any plan. Then W + (1 - 1 / s) P is a bound too
(``pace.solver.compute_clock``): some wire is busy for at least P.

It suffices to look at the sets {r >= rho, q >= theta}, and longest tail first finds the best of them
(``pace.solver.one_machine``). The bound is that of 1 | r, q, pmtn | Cmax.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import Line
from pace.solver.graph.program import COLLECTIVE, OP, Program
from pace.solver.one_machine import Instance, certify, solve


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineBound:
    """A set of jobs of one machine and the lower bound that it proves, a sum of four times in seconds.

    Attributes
    ----------
    wire
        Number of the wire; None for the compute stream.
    min_head_s, min_tail_s
        Smallest head and smallest tail in the set. The set holds all jobs with no smaller ones.
    total_s
        Time that the set takes on the machine; on a wire it is priced by `lines`, without latency.
    latency_s
        Latency, counted once for the whole set.
    num_jobs
        Number of jobs in the set.
    lines
        On a wire: for each key of its collectives, the line below their cost that prices them.
    """

    wire: int | None
    min_head_s: float
    total_s: float
    latency_s: float
    min_tail_s: float
    num_jobs: int
    lines: dict[int, Line]

    @property
    def bound_s(self) -> float:
        """The lower bound on the end of every plan, in seconds."""
        return self.min_head_s + self.total_s + self.latency_s + self.min_tail_s


def machine_bounds(program: Program) -> tuple[MachineBound, ...]:
    """Return the best bound of the compute stream and of each wire."""
    head, tail = program.heads_and_tails
    ops = np.flatnonzero((program.kind == OP) & (program.duration > 0))
    bounds = [_bound(None, ops, head, program.duration, tail, 0.0, {})]
    for wire in range(program.num_wires):
        jobs = np.flatnonzero(
            (program.kind == COLLECTIVE) & (program.wire == wire) & (program.input_bytes > 0)
        )
        if len(jobs):
            bounds.append(_wire_bound(program, wire, jobs, head, tail))
    return tuple(bounds)


def least_stretch_s(program: Program, bounds: Iterable[MachineBound]) -> float:
    """Return by how many seconds traffic lengthens every plan beyond bounds of ``program.clocked``."""
    carried_s = 0.0
    for bound in bounds:
        of_bytes = sum(
            float(program.input_bytes[program.key == key].sum()) * line.seconds_per_byte
            for key, line in bound.lines.items()
        )
        carried_s = max(carried_s, of_bytes + bound.latency_s)
    return (program.compute_slowdown - 1) * carried_s


def longest_path_s(program: Program) -> float:
    """Return the longest path through any node: its head, its least time and its tail."""
    head, tail = program.heads_and_tails
    return float(np.max(head + program.duration + program.alone_s + tail, initial=0.0))


def _wire_bound(
    program: Program, wire: int, jobs: IntArray, head: FloatArray, tail: FloatArray
) -> MachineBound:
    """Return the best bound over the choices of a line below the cost of each key; each choice is valid."""
    keys = np.unique(program.key[jobs]).tolist()
    sizes = program.input_bytes[jobs].astype(np.float64)
    lines = {key: program.costs[key].minorants(float(sizes[program.key[jobs] == key].sum())) for key in keys}
    # Where bytes dominate, the steepest lines give the best bound; where latency dominates, the flattest.
    chosen = {key: max(lines[key], key=lambda line: line.seconds_per_byte) for key in keys}
    best: MachineBound | None = None
    improved = True
    while improved:
        improved = False
        for key in keys:
            for line in lines[key]:
                trial = {**chosen, key: line}
                slopes = np.array(
                    [
                        trial[each].seconds_per_byte if each in trial else 0.0
                        for each in range(len(program.costs))
                    ]
                )
                seconds = sizes * slopes[program.key[jobs]]
                # A set may lack every key but one, so only the least latency is certain.
                latency = min(each.latency_s for each in trial.values())
                bound = _bound(wire, jobs, head, seconds, tail, latency, trial)
                if best is None or bound.bound_s > best.bound_s * (1 + 1e-12):
                    best, chosen, improved = bound, trial, True
    assert best is not None
    return best


def _bound(
    wire: int | None,
    jobs: IntArray,
    head: FloatArray,
    seconds: FloatArray,
    tail: FloatArray,
    latency_s: float,
    lines: dict[int, Line],
) -> MachineBound:
    if not len(jobs):
        return MachineBound(
            wire=wire, min_head_s=0.0, total_s=0.0, latency_s=0.0, min_tail_s=0.0, num_jobs=0, lines=lines
        )
    processing = seconds if len(seconds) == len(jobs) else seconds[jobs]
    instance = Instance(ready=head[jobs], processing=processing, tail=tail[jobs])
    found = certify(instance, solve(instance))
    inside = (instance.ready >= found.min_ready) & (instance.tail >= found.min_tail)
    return MachineBound(
        wire=wire,
        min_head_s=found.min_ready,
        total_s=float(processing[inside].sum()),
        latency_s=latency_s,
        min_tail_s=found.min_tail,
        num_jobs=int(inside.sum()),
        lines=lines,
    )
