"""From a profile to its schedule of all-reduces: fusion search, oracle, segments, proofs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.options import Options
from pace.documents.profile import DType, Gradient, Op, Profile
from pace.documents.proofs import Proof
from pace.documents.schedule import Execution, Group, Prediction, Schedule, Segment, SolverRecord
from pace.errors import InvalidOptions
from pace.planning.allreduce.realize import RealizedPlan, fastest_plan, stretch_s
from pace.planning.allreduce.under_load import AllReducesUnderLoad
from pace.planning.fusion.bounds import Bounds
from pace.planning.fusion.oracle import PricingOracle, explained
from pace.planning.fusion.problem import FusionProblem, oracle_instance, stops_at_barrier
from pace.planning.fusion.search import FusionResult, fuse
from pace.solver.arrays import FloatArray
from pace.solver.compute_clock import ComputeClock
from pace.solver.one_machine import Instance, certify
from pace.solver.sending import least_durations
from pace.solver.whole_groups import MOST_GRADIENTS
from pace.version import __version__

# Two segments in flight would share the network. (A runtime may hand over the next just before one ends.)
ONE_AT_A_TIME = 1


def optimize_allreduce(profile: Profile, options: Options | None = None) -> Schedule:
    """Return the schedule of all-reduces that minimizes the predicted iteration time of a profile.

    The same profile and options give the same schedule, byte for byte, except for the recorded seconds of
    linear programs. The schedule contains the proof that no preemptive schedule of its groups is faster, and
    a lower bound that holds for every fusion (docs/solver.md). If updates wait for a global norm, the forward
    pass waits for the last all-reduce; then a sharded schedule is faster.

    Raises
    ------
    InvalidOptions
        If the options do not fit one another or the profile; the message says which would.
    SolverFailed
        If the oracle finds no solution.
    """
    options = options or Options()
    return _document(profile, options, _search(profile, options))


def plan_for(profile: Profile, options: Options | None = None) -> RealizedPlan:
    """Return the plan of ``optimize_allreduce`` without its proofs, for callers that need thousands of plans.

    Raises
    ------
    InvalidOptions, SolverFailed
        In the cases of ``optimize_allreduce``.
    """
    return _search(profile, options or Options()).plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    problem: FusionProblem
    bounds: Bounds
    fusion: FusionResult
    plan: RealizedPlan
    oracle: PricingOracle
    load: AllReducesUnderLoad


def _search(profile: Profile, options: Options) -> _Found:
    _refuse_misfits(options)
    problem = FusionProblem.of(profile, barrier=stops_at_barrier(profile, options))
    bounds = Bounds(problem)
    oracle = PricingOracle(options)
    load = AllReducesUnderLoad(profile=profile, problem=problem, risk=options.risk, fusion=options.fusion)
    fusion = fuse(problem, options, bounds, oracle, max(load.extra.durations_s))
    plan = fastest_plan(problem, fusion, options, oracle, load)
    return _Found(problem=problem, bounds=bounds, fusion=fusion, plan=plan, oracle=oracle, load=load)


def _refuse_misfits(options: Options) -> None:
    options.refuse_others("allreduce")
    if options.oracle == "lp" and options.slot_s is None:
        raise InvalidOptions(
            'oracle "lp" works in slots: give slot_s, or use oracle "jackson" for continuous time'
        )
    if options.framework is not None:
        if options.slot_s is not None:
            raise InvalidOptions(f'framework "{options.framework}" does not cut groups: leave slot_s out')
        if options.fusion == "paper":
            raise InvalidOptions(
                f'fusion "paper" assumes preemption, but framework "{options.framework}" does not preempt: '
                'use fusion "optimal"'
            )
        if options.max_segment_bytes is not None:
            raise InvalidOptions(
                f'framework "{options.framework}" does not cut groups: leave max_segment_bytes out'
            )
    if options.slot_s is not None and (options.max_segment_bytes is not None or options.risk != "mean"):
        raise InvalidOptions(
            'slot_s cannot be combined with max_segment_bytes or risk "p95": leave one of them out'
        )


def write_lp(schedule: Schedule, path: Path) -> None:
    """Write the PACE paper's linear program, (3)-(14), for a slotted schedule's groups as .lp or .mps.

    Raises
    ------
    InvalidOptions
        If the schedule has no slots or too many, or `path` ends in neither .lp nor .mps.
    """
    from pace.solver.linear_program import lp_model

    slot_s = schedule.solver.slot_s
    if slot_s is None:
        raise InvalidOptions("the linear program works in slots: give slot_s")
    instance = Instance(
        ready=np.array([group.ready_s for group in schedule.groups]),
        processing=np.array([group.duration_s for group in schedule.groups]),
        tail=np.array([group.tail_s for group in schedule.groups]),
    )
    if path.suffix not in lp_model.SUFFIXES:
        raise InvalidOptions(f"{path}: expected a name that ends in {' or '.join(lp_model.SUFFIXES)}")
    with explained(slot_s):
        lp_model.write(instance.in_slots(slot_s), path)


def _document(profile: Profile, options: Options, found: _Found) -> Schedule:
    problem, plan = found.problem, found.plan
    instance = oracle_instance(plan.buffers, problem.cost, options.slot_s)
    if options.slot_s is None:
        lengths = plan.sending.ends - plan.sending.starts
        durations = least_durations(instance.processing, plan.sending.groups, lengths)
        instance = replace(instance, processing=durations)
    unit = options.slot_s or 1.0
    solution = found.oracle.solve(instance)
    proof = certify(instance, solution)
    slowdown = problem.slowdown
    # The oracle's plan slows compute by all that it sends, in any order.
    carried = float(np.sum(instance.processing)) * unit
    ideal = max(problem.compute_s, solution.objective * unit) + problem.stretch_s(carried)
    # The two are sums of the same numbers in another order if all is in the proof.
    outside = max(0.0, carried - proof.total_processing * unit) if slowdown != 1 else 0.0
    lower = max(problem.compute_s + found.bounds.stretch_s, found.bounds.best_s)
    iteration = max(problem.compute_s, plan.sending.objective) + stretch_s(problem, plan.sending)
    segments = _segments(plan, slowdown)
    largest = max((segment.size_bytes for segment in segments), default=0)
    return Schedule(
        exchange="allreduce",
        framework=options.framework,
        profile_sha256=profile.sha256,
        fingerprint=profile.fingerprint,
        solver=SolverRecord(
            version=__version__,
            oracle=options.oracle,
            lp_solver=options.lp_solver if options.oracle == "lp" else None,
            num_programs=found.oracle.num_programs if options.oracle == "lp" else None,
            programs_s=found.oracle.programs_s if options.oracle == "lp" else None,
            fusion=options.fusion,
            slot_s=options.slot_s,
            method=found.fusion.method + plan.note,
            curve=plan.curve,
        ),
        predicted=Prediction(
            iteration_s=iteration,
            ideal_iteration_s=ideal,
            compute_s=problem.compute_s,
            lower_bound_s=lower,
            expected_s=plan.expected_s,
            ddp_s=None if plan.expected_s is None else found.load.ddp_s(),
            gap=iteration / lower - 1 if lower else 0.0,
        ),
        proofs=(
            Proof(
                set=proof.jobs,
                min_ready_s=proof.min_ready * unit,
                total_s=proof.total_processing * unit * slowdown,
                min_tail_s=proof.min_tail * unit,
                stretch_s=problem.stretch_s(outside),
                bound_s=proof.bound * unit + problem.stretch_s(carried),
            ),
        ),
        bound=found.bounds.fusion,
        chain_bound=found.bounds.chain,
        execution=Execution(max_in_flight=ONE_AT_A_TIME if segments else 0, max_segment_bytes=largest),
        groups=_groups(profile, plan),
        transfers=segments,
    )


def _groups(profile: Profile, plan: RealizedPlan) -> tuple[Group, ...]:
    durations: FloatArray = profile.cost(plan.buffers.sizes)
    return tuple(
        Group(
            tensors=tuple(profile.gradients[number].name for number in members),
            size_bytes=int(plan.buffers.sizes[at]),
            dtype=profile.gradients[members[0]].dtype,
            ready_s=float(plan.buffers.ready[at]),
            tail_s=float(plan.buffers.tail[at]),
            transfer_s=float(durations[at]),
        )
        for at, members in enumerate(plan.partition)
    )


def _segments(plan: RealizedPlan, slowdown: float) -> tuple[Segment, ...]:
    sending = plan.sending
    clock = ComputeClock.carrying(slowdown, sending.starts, sending.ends)
    starts, ends = clock.wall_s(sending.starts), clock.wall_s(sending.ends)
    offsets = [0] * len(plan.partition)
    segments = []
    for at, (group, elements) in enumerate(
        zip(sending.groups.tolist(), sending.elements.tolist(), strict=True)
    ):
        size = elements * int(plan.buffers.element_bytes[group])
        slot = None if plan.start_slots is None else int(plan.start_slots[at])
        segments.append(
            Segment(
                op="all-reduce",
                group=group,
                offset_bytes=offsets[group],
                size_bytes=size,
                priority=at if slot is None else slot,
                start_s=float(starts[at]),
                end_s=float(ends[at]),
                start_slot=slot,
                num_slots=None if plan.num_slots is None else int(plan.num_slots[at]),
            )
        )
        offsets[group] += size
    return tuple(segments)


def warm_up() -> None:
    """Compile every hot loop that ``optimize_allreduce`` may call, so that no request waits for the compiler.

    This takes some seconds on a machine's first run, and less than a second once the compiled code is cached.
    """
    from pace.solver.kernels.partition import price

    for profile in _smallest_profiles([1.0, 2.0] * 2):
        for options in (Options(), Options(fusion="paper"), Options(framework="ddp")):
            optimize_allreduce(profile, options)
        # Merging calls asks for single prices, and plans of so few gradients leave nothing to merge.
        price(1.0, *profile.cost.knots())
    # Groups of one dtype are found without the local search.
    for profile in _smallest_profiles([1.0, 2.0] * 2, dtypes=("float32", "int32")):
        optimize_allreduce(profile)


def warm_up_for_layers() -> None:
    """Compile what profiles need in which a later gradient is needed earlier, as in most networks.

    It takes about half as long as ``warm_up``.
    """
    for profile in _smallest_profiles([1.0] * (MOST_GRADIENTS + 1)):
        optimize_allreduce(profile)


def _smallest_profiles(
    forward_s: Sequence[float], dtypes: Sequence[DType] = ("float32",)
) -> Iterator[Profile]:
    """Yield profiles with a gradient for each forward op, of these durations, and every kind of cost.

    Gradients have these dtypes in turn, of four bytes each.
    """
    ops, gradients = [], []
    for layer, duration_s in enumerate(forward_s):
        backward, gradient = f"bwd/{layer}", f"gradient {layer}"
        forward = Op(name=f"fwd/{layer}", duration_s=duration_s, deps=(backward,), waits_for=(gradient,))
        ops += [Op(name=backward, duration_s=1.0), forward]
        dtype = dtypes[layer % len(dtypes)]
        gradients.append(Gradient(name=gradient, size_bytes=4 * (layer + 1), dtype=dtype, producer=backward))
    for allreduce in (
        AffineAllReduce(latency_s=0.1, seconds_per_byte=0.1),
        SampledAllReduce(samples=((4, 0.1), (8, 0.4), (16, 0.5))),
    ):
        yield Profile(
            name="warm-up", workers=2, ops=tuple(ops), gradients=tuple(gradients), allreduce=allreduce
        )
