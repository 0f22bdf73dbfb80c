"""Lower bounds on the window of every schedule, with any fusion, cuts and order (docs/concepts/bounds.md).

They are in wall time. If traffic slows compute, the proofs hold on the compute clock. The least time by which
traffic lengthens any window is added (``pace.solver.compute_clock``).
"""

from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from pace.documents.proofs import ChainBound, SetBound
from pace.planning.fusion.problem import FusionProblem
from pace.solver.arrays import FloatArray
from pace.solver.cost_curve import CostCurve, Line
from pace.solver.one_machine import Instance, certify, solve
from pace.solver.partition import Chain, best_layered


class Bounds:
    """Both lower bounds of a problem. Each is computed when it is first needed."""

    def __init__(self, problem: FusionProblem) -> None:
        self._problem = problem

    @cached_property
    def fusion(self) -> SetBound:
        """The bound from a set of gradients."""
        return fusion_bound(self._problem)

    @cached_property
    def chain(self) -> ChainBound:
        """The bound from a chain of gradients."""
        return chain_bound(self._problem)

    @property
    def best_s(self) -> float:
        """The greater of the two, in seconds."""
        return max(self.fusion.bound_s, self.chain.bound_s)

    @property
    def stretch_s(self) -> float:
        """By how many seconds traffic lengthens every window, even if compute hides all of it."""
        return max(stretch_s(self._problem, bound) for bound in (self.fusion, self.chain))


def chain_bound(problem: FusionProblem) -> ChainBound:
    """Bound the window of every fusion from below by the exact optimum of a relaxed, layered chain.

    Proof. Take any calls, each of which carries bytes of some gradients. Label each call with its last
    gradient on the chain; the call is ready no earlier and has no shorter tail than this gradient. Every byte
    after the k-th label is in a later call. So the calls from the (k+1)-th on carry at least the bytes that
    they would carry in the contiguous partition with the same last gradients, and there are as many of them.
    Thus every suffix's bound is at least that of this partition. The critical sets of a contiguous partition
    are suffixes, and ``best_layered`` minimizes over these partitions. Lowering tails or ready times until
    the chain is layered, and g to a line below it, only shortens windows. On a layered profile with an affine
    g, the bound is the optimum.
    """
    best = ChainBound(order="ready", latency_s=0.0, seconds_per_byte=0.0, bound_s=0.0)
    if not problem.sizes.any():
        return best
    by_ready = problem.chain_of(problem.sent_by_ready())
    by_ready = replace(by_ready, ready=later(problem, by_ready.ready))
    chains: list[tuple[Literal["ready", "tail"], Chain]] = [
        ("ready", replace(by_ready, tail=_least_from_here(by_ready.tail)))
    ]
    if not by_ready.is_layered:
        by_tail = problem.chain_of(problem.sent_by_tail())
        chains.append(("tail", replace(by_tail, ready=_least_from_here(later(problem, by_tail.ready)))))
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


def later(problem: FusionProblem, ready_s: FloatArray) -> FloatArray:
    """Return ready times that contain the extra time of one call; bounds by sets stay true with them.

    Let the calls of a set of gradients start at `r` or later. Either one of them starts while compute surely
    runs, before `problem.backward_s`; then they take the least extra time longer. Or all of them start after
    that. So with ``max(r, min(r + extra, backward))`` for r, a set's bound holds. This never falls as r
    grows, so it may be applied to each gradient.
    """
    if problem.extra is None:
        return ready_s
    extra_s = min(problem.extra.durations_s)
    return np.maximum(ready_s, np.minimum(ready_s + extra_s, problem.backward_s))


def stretch_s(problem: FusionProblem, bound: SetBound | ChainBound) -> float:
    """Return the least time by which traffic lengthens any window: that of one call with all bytes."""
    line = Line(latency_s=bound.latency_s, seconds_per_byte=bound.seconds_per_byte)
    return problem.least_stretch_s(line) / problem.slowdown


def _least_from_here(values: FloatArray) -> FloatArray:
    return np.minimum.accumulate(values[::-1])[::-1]


def fusion_bound(problem: FusionProblem) -> SetBound:
    """Bound the window of every fusion from below (docs/solver.md), in O(n log n) for each line below g.

    The bytes of a set of gradients, sent after the first of them is ready, need at least one call. So they
    take at least one latency plus their bytes on a line below g. Fusion and preemption can only add to that.
    """
    sent = problem.sizes > 0
    ready = later(problem, problem.ready)
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
            ready=ready[sent],
            processing=problem.sizes[sent].astype(np.float64) * line.seconds_per_byte,
            tail=problem.tail[sent],
        )
        critical = certify(instance, solve(instance))
        # Sets of the form {ready >= rho, tail >= theta} suffice (docs/solver.md) and are short to write down.
        inside = sent & (ready >= critical.min_ready) & (problem.tail >= critical.min_tail)
        total = int(problem.sizes[inside].sum())
        value = critical.min_ready + line.latency_s + total * line.seconds_per_byte + critical.min_tail
        value += problem.least_stretch_s(line)
        if value > best.bound_s:
            others = int(problem.sizes.sum()) - total
            least_ready = float(problem.ready[inside].min(initial=critical.min_ready))
            best = SetBound(
                min_ready_s=least_ready,
                extra_s=critical.min_ready - least_ready,
                min_tail_s=critical.min_tail,
                num_gradients=int(np.count_nonzero(inside)),
                total_bytes=total,
                latency_s=line.latency_s * problem.slowdown,
                seconds_per_byte=line.seconds_per_byte * problem.slowdown,
                stretch_s=problem.stretch_s(others * line.seconds_per_byte),
                bound_s=value,
            )
    return best
