"""Bounds on the window that no schedule beats, whatever it fuses, cuts or reorders (DESIGN 4.3)."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pace.graph import FloatArray
from pace.problem import Problem
from pace.solver import jackson
from pace.solver.certificate import certify
from pace.solver.cost import CostCurve, Line
from pace.solver.instance import Instance
from pace.solver.partition import Chain, best_layered


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No fusion and no order beats `bound`; see ``pace.schedule.FusionBound`` for what it rests on."""

    members: tuple[int, ...]
    line: Line
    min_ready: float
    total_bytes: int
    min_tail: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredBound:
    """No fusion beats `bound`; see ``pace.schedule.ChainBound`` for what it rests on."""

    order: Literal["ready", "tail"]
    line: Line
    bound: float


def layered_bound(problem: Problem) -> LayeredBound:
    """Bound the window of every fusion from below by the exact optimum of a relaxed, layered chain.

    Proof. Take any calls, each carrying bytes of some gradients, and name each by its last gradient on the
    chain, whose ready time and tail it has. Every byte after the k-th of these names is in a later call, so
    the calls from the (k+1)-th on carry at least what they would in the contiguous partition with the same
    last gradients, and they are as many: every suffix's bound is at least that partition's. The critical
    sets of a contiguous partition are suffixes, and ``best_layered`` minimises over those partitions.
    Lowering tails or ready times until the chain is layered, and g to a line below it, only shortens
    windows. On a profile that is layered already and with an affine g, the bound is the optimum.
    """
    best = LayeredBound(order="ready", line=Line(latency_s=0.0, seconds_per_byte=0.0), bound=0.0)
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
        for order, chain_of_order in chains:
            _, value = best_layered(chain_of_order, curve, enough=0.0)
            if value > best.bound:
                best = LayeredBound(order=order, line=line, bound=value)
    return best


def _least_from_here(values: FloatArray) -> FloatArray:
    return np.minimum.accumulate(values[::-1])[::-1]


def fusion_bound(problem: Problem) -> Bound:
    """Bound the window of every fusion from below (DESIGN 4.3), in O(n log n) for each line under g.

    Bytes priced at a line below g, plus one latency: whatever is sent after the first gradient of a set is
    ready needs at least one call. Preemption and fusion can only add to that.
    """
    sent = problem.sizes > 0
    lines = problem.cost.minorants(float(problem.sizes.sum())) if sent.any() else ()
    best = Bound(
        members=(),
        line=Line(latency_s=0.0, seconds_per_byte=0.0),
        min_ready=0.0,
        total_bytes=0,
        min_tail=0.0,
        bound=0.0,
    )
    for line in lines:
        instance = Instance(
            ready=problem.ready[sent],
            processing=problem.sizes[sent].astype(np.float64) * line.seconds_per_byte,
            tail=problem.tail[sent],
        )
        critical = certify(instance, jackson.solve(instance))
        # Sets of the form {ready >= rho, tail >= theta} suffice (DESIGN 4.3) and are easy to state.
        inside = sent & (problem.ready >= critical.min_ready) & (problem.tail >= critical.min_tail)
        total = int(problem.sizes[inside].sum())
        value = critical.min_ready + line.latency_s + total * line.seconds_per_byte + critical.min_tail
        if value > best.bound:
            best = Bound(
                members=tuple(np.flatnonzero(inside).tolist()),
                line=line,
                min_ready=critical.min_ready,
                total_bytes=total,
                min_tail=critical.min_tail,
                bound=value,
            )
    return best
