"""Lower bounds on the window of every schedule, however it fuses, cuts and orders (docs/solver.md).

They are in wall time. Where compute is slowed by traffic, the proofs hold on the compute clock, and every
window is longer than there by the least that its traffic stretches it (``pace.solver.compute_clock``).
"""

from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from pace.documents.proofs import ChainBound, SetBound
from pace.planning.fusion.problem import FusionProblem
from pace.solver import jackson
from pace.solver.arrays import FloatArray
from pace.solver.certificate import certify
from pace.solver.cost import CostCurve, Line
from pace.solver.instance import Instance
from pace.solver.partition import Chain, best_layered


class Bounds:
    """Both bounds of a problem, each computed when it is first asked for."""

    def __init__(self, problem: FusionProblem) -> None:
        self._problem = problem

    @cached_property
    def fusion(self) -> SetBound:
        """The bound by a set of gradients."""
        return fusion_bound(self._problem)

    @cached_property
    def chain(self) -> ChainBound:
        """The bound by a chain of gradients."""
        return chain_bound(self._problem)

    @property
    def best_s(self) -> float:
        """The greater of the two, in seconds."""
        return max(self.fusion.bound_s, self.chain.bound_s)

    @property
    def stretch_s(self) -> float:
        """By how much traffic stretches every window, also one in which all of it is hidden."""
        return max(stretch_s(self._problem, bound) for bound in (self.fusion, self.chain))


def chain_bound(problem: FusionProblem) -> ChainBound:
    """Bound the window of every fusion from below by the exact optimum of a relaxed, layered chain.

    Proof. Take any calls, each carrying bytes of some gradients, and name each by its last gradient on the
    chain, whose ready time and tail it has. Every byte after the k-th of these names is in a later call, so
    the calls from the (k+1)-th on carry at least what they would in the contiguous partition with the same
    last gradients, and they are as many: every suffix's bound is at least that partition's. The critical
    sets of a contiguous partition are suffixes, and ``best_layered`` minimizes over those partitions.
    Lowering tails or ready times until the chain is layered, and g to a line below it, only shortens
    windows. On a profile that is layered already and with an affine g, the bound is the optimum.
    """
    best = ChainBound(order="ready", latency_s=0.0, seconds_per_byte=0.0, bound_s=0.0)
    if not problem.sizes.any():
        return best
    by_ready = problem.chain_of(problem.sent_by_ready())
    chains: list[tuple[Literal["ready", "tail"], Chain]] = [
        ("ready", replace(by_ready, tail=_least_from_here(by_ready.tail)))
    ]
    if not by_ready.is_layered:
        by_tail = problem.chain_of(problem.sent_by_tail())
        chains.append(("tail", replace(by_tail, ready=_least_from_here(by_tail.ready))))
    for line in problem.cost.minorants(float(problem.sizes.sum())):
        curve = CostCurve.affine(line.latency_s, line.seconds_per_byte)
        stretch_s = problem.least_stretch_s(line)
        for order, chain_of_order in chains:
            _, value = best_layered(chain_of_order, curve, enough=0.0)
            value += stretch_s
            if value > best.bound_s:
                best = ChainBound(
                    order=order,
                    latency_s=line.latency_s * problem.slowdown,
                    seconds_per_byte=line.seconds_per_byte * problem.slowdown,
                    bound_s=value,
                )
    return best


def stretch_s(problem: FusionProblem, bound: SetBound | ChainBound) -> float:
    """Return the least that traffic stretches any window by: one latency and all bytes on a bound's line."""
    line = Line(latency_s=bound.latency_s, seconds_per_byte=bound.seconds_per_byte)
    return problem.least_stretch_s(line) / problem.slowdown


def _least_from_here(values: FloatArray) -> FloatArray:
    return np.minimum.accumulate(values[::-1])[::-1]


def fusion_bound(problem: FusionProblem) -> SetBound:
    """Bound the window of every fusion from below (docs/solver.md), in O(n log n) for each line under g.

    Bytes priced at a line below g, plus one latency: whatever is sent after the first gradient of a set is
    ready needs at least one call. Preemption and fusion can only add to that.
    """
    sent = problem.sizes > 0
    lines = problem.cost.minorants(float(problem.sizes.sum())) if sent.any() else ()
    best = SetBound(
        min_ready_s=0.0,
        min_tail_s=0.0,
        num_gradients=0,
        total_bytes=0,
        latency_s=0.0,
        seconds_per_byte=0.0,
        bound_s=0.0,
    )
    for line in lines:
        instance = Instance(
            ready=problem.ready[sent],
            processing=problem.sizes[sent].astype(np.float64) * line.seconds_per_byte,
            tail=problem.tail[sent],
        )
        critical = certify(instance, jackson.solve(instance))
        # Sets of the form {ready >= rho, tail >= theta} suffice (docs/solver.md) and are easy to state.
        inside = sent & (problem.ready >= critical.min_ready) & (problem.tail >= critical.min_tail)
        total = int(problem.sizes[inside].sum())
        value = critical.min_ready + line.latency_s + total * line.seconds_per_byte + critical.min_tail
        value += problem.least_stretch_s(line)
        if value > best.bound_s:
            others = int(problem.sizes.sum()) - total
            best = SetBound(
                min_ready_s=critical.min_ready,
                min_tail_s=critical.min_tail,
                num_gradients=int(np.count_nonzero(inside)),
                total_bytes=total,
                latency_s=line.latency_s * problem.slowdown,
                seconds_per_byte=line.seconds_per_byte * problem.slowdown,
                stretch_s=problem.stretch_s(others * line.seconds_per_byte),
                bound_s=value,
            )
    return best
