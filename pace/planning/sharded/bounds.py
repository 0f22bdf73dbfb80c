"""The proofs of a sharded plan: a bound for its calls, and bounds for every plan with any groups and cuts."""

from dataclasses import replace

import numpy as np

from pace.documents.proofs import NormBound, Proof, SetBound
from pace.planning.fusion.bounds import chain_bound, fusion_bound, stretch_s
from pace.planning.sharded.plans import ShardedPlan
from pace.planning.sharded.problem import ShardingProblem
from pace.solver.arrays import FloatArray
from pace.solver.cost_curve import CostCurve
from pace.solver.one_machine import certify, solve
from pace.solver.sending import least_durations
from pace.solver.two_halves.chains import chained_instance


def proof_of_calls(problem: ShardingProblem, plan: ShardedPlan) -> Proof:
    """Return the calls whose times add up to the shortest window that these calls allow."""
    proof = _chained(problem, plan) if problem.norm_s is None else _behind_norm(problem, plan)
    slowdown = problem.gradients.slowdown
    if slowdown == 1:
        return proof
    # From the compute clock to wall time: its calls take longer, and the other calls lengthen compute.
    inside = proof.total_s + proof.norm_s
    whole = whole_stretch_s(problem, plan)
    return proof.model_copy(
        update={
            "total_s": proof.total_s * slowdown,
            "norm_s": proof.norm_s * slowdown,
            "stretch_s": max(whole - problem.gradients.stretch_s(inside), 0.0),
            "bound_s": proof.bound_s + whole,
        }
    )


def whole_stretch_s(problem: ShardingProblem, plan: ShardedPlan) -> float:
    """Return by how many seconds a plan's calls lengthen compute if none is cut without need."""
    return problem.stretch_s(float(np.sum(_calls_s(problem, plan))))


def _calls_s(problem: ShardingProblem, plan: ShardedPlan) -> FloatArray:
    """Return the seconds of each call, reduce-scatters first, in one piece or in the plan's segments."""
    first = plan.scattered.durations(problem.reduce_scatter)
    whole = np.concatenate([first, plan.gathered.durations(problem.all_gather)])
    return least_durations(whole, plan.sending.calls, plan.sending.ends - plan.sending.starts)


def least_stretch_s(problem: ShardingProblem, proof: NormBound | SetBound) -> float:
    """Return the least time by which any plan lengthens compute: each half sends all bytes in one call."""
    lines = (proof,) if isinstance(proof, SetBound) else (proof.reduce_scatter, proof.all_gather)
    return sum((stretch_s(problem.gradients, line) for line in lines), problem.stretch_s(0.0))


def _chained(problem: ShardingProblem, plan: ShardedPlan) -> Proof:
    instance = chained_instance(
        plan.scattered,
        plan.gathered,
        reduce_scatter=problem.reduce_scatter,
        all_gather=problem.all_gather,
        calls_s=_calls_s(problem, plan),
    )
    proof = certify(instance, solve(instance))
    total = float(np.sum(instance.processing[list(proof.jobs)]))
    return Proof(
        set=proof.jobs,
        min_ready_s=proof.min_ready,
        total_s=total,
        min_tail_s=proof.min_tail,
        bound_s=proof.min_ready + total + proof.min_tail,
    )


def _behind_norm(problem: ShardingProblem, plan: ShardedPlan) -> Proof:
    assert problem.norm_s is not None
    first, second = plan.scattered, plan.gathered
    if not len(first):
        return Proof(min_ready_s=0.0, total_s=0.0, min_tail_s=0.0, bound_s=0.0)
    by_ready = np.argsort(first.times, kind="stable")
    calls_s = _calls_s(problem, plan)
    lasting = calls_s[: len(first)][by_ready]
    # Of all sets of calls that end last, the one without a pause between its calls.
    begins = int(np.argmax(first.times[by_ready] + np.cumsum(lasting[::-1])[::-1]))
    by_tail = np.argsort(-second.times, kind="stable")
    gathering = calls_s[len(first) :][by_tail]
    last = int(np.argmax(np.cumsum(gathering) + second.times[by_tail]))
    ready, tail = float(first.times[by_ready[begins]]), float(second.times[by_tail[last]])
    total = float(np.sum(lasting[begins:])) + float(np.sum(gathering[: last + 1]))
    gathers = sorted(len(first) + int(call) for call in by_tail[: last + 1])
    return Proof(
        set=(*sorted(int(call) for call in by_ready[begins:]), *gathers),
        min_ready_s=ready,
        total_s=total,
        norm_s=problem.norm_s,
        min_tail_s=tail,
        bound_s=ready + total + problem.norm_s + tail,
    )


def norm_bound(problem: ShardingProblem) -> NormBound:
    """Bound the window of every plan with a norm: the bounds of both halves, plus the norm between them.

    Every gather starts after the norm, and the norm starts after the last reduce-scatter. The bound of each
    half is the optimum of its chain (``pace.planning.fusion.bounds.chain_bound``), which is exact for an
    affine cost. What calls take longer beside compute is left out.
    """
    assert problem.norm_s is not None
    gradients = replace(problem.gradients, extra=None)
    nothing = np.zeros(len(gradients.sizes))
    first = chain_bound(replace(gradients, tail=nothing, cost=problem.reduce_scatter))
    flat = replace(gradients, ready=nothing, cost=problem.all_gather)
    second = chain_bound(flat)
    norm_s = problem.norm_s * gradients.slowdown if gradients.sizes.any() else 0.0
    return NormBound(
        reduce_scatter=first,
        norm_s=norm_s,
        all_gather=second,
        bound_s=first.bound_s + norm_s + second.bound_s,
    )


def set_bound(problem: ShardingProblem) -> SetBound:
    """Bound the window of every plan without a norm by a set of gradients.

    Take all gradients that are ready no earlier than rho and have a tail of at least theta. Their bytes are
    summed and gathered between rho and (the window's end) - theta, in at least one call of each half.
    """
    gradients = problem.gradients
    total = float(gradients.sizes.sum())
    best: SetBound | None = None
    for first in problem.reduce_scatter.minorants(total) if total else ():
        for second in problem.all_gather.minorants(total):
            line = CostCurve.affine(
                first.latency_s + second.latency_s, first.seconds_per_byte + second.seconds_per_byte
            )
            found = fusion_bound(replace(gradients, cost=line))
            if best is None or found.bound_s > best.bound_s:
                best = found
    return fusion_bound(gradients) if best is None else best
