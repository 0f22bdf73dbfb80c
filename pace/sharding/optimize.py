"""From a profile to its schedule in two halves: groups, shards, segments, predictions, proofs."""

import numpy as np

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Execution, FusionBound, Prediction
from pace.documents.sharded_schedule import (
    HalfCall,
    HalfSegment,
    NormBound,
    NormExchange,
    ShardedSchedule,
    ShardedSolver,
    ShardGroup,
)
from pace.errors import InvalidOptions
from pace.sharding.bounds import certificate, least_stretch_s, norm_bound, set_bound, whole_stretch_s
from pace.sharding.plans import ShardedPlan, best_plan, stretch_s
from pace.sharding.problem import ShardingProblem
from pace.solver.compute_clock import ComputeClock
from pace.solver.cost import CostCurve
from pace.solver.two_halves.calls import Half
from pace.version import __version__

# Two segments under way would share the network.
ONE_AT_A_TIME = 1


def optimize_sharded(profile: Profile, options: Options | None = None) -> ShardedSchedule:
    """Return the schedule in two halves that minimizes the predicted iteration time of a profile.

    With a global norm the plan is exact where the costs are affine and gradients have one dtype
    (``pace.solver.two_halves.behind_norm``); without one, it is a search (``...chains``). Same profile and
    options, same schedule to the byte. An update of a shard is taken to take no time.

    Raises
    ------
    InvalidOptions
        If options do not fit, or gradients are exchanged over parameter servers.
    """
    options = options or Options()
    problem, plan, method = _search(profile, options)
    proof = certificate(problem, plan)
    bound = set_bound(problem) if problem.norm_s is None else norm_bound(problem)
    floor = problem.floor_s
    slowdown = profile.compute_slowdown
    lower = max(floor + least_stretch_s(problem, bound), bound.bound_s)
    iteration = max(floor, plan.sending.objective) + stretch_s(problem, plan)
    clock = _clock(plan, slowdown)
    segments = _segments(plan, clock)
    sending = plan.sending
    return ShardedSchedule(
        profile_sha256=profile.sha256,
        fingerprint=profile.fingerprint,
        workers=profile.workers,
        update=profile.update,
        solver=ShardedSolver(version=__version__, fusion=options.fusion, method=method),
        predicted=Prediction(
            iteration_s=iteration,
            ideal_iteration_s=max(floor + whole_stretch_s(problem, plan), proof.bound_s),
            compute_s=problem.gradients.compute_s,
            lower_bound_s=lower,
            gap=iteration / lower - 1 if lower else 0.0,
        ),
        certificate=proof,
        norm_bound=bound if isinstance(bound, NormBound) else None,
        set_bound=bound if isinstance(bound, FusionBound) else None,
        execution=Execution(
            credit_bytes=ONE_AT_A_TIME if segments else 0,
            max_segment_bytes=max(plan.segment_bytes().tolist(), default=0),
        ),
        shards=_shards(profile, plan),
        reduce_scatters=_calls(plan.scattered, plan.scattered_shards, problem.reduce_scatter, slowdown),
        norm=None
        if sending.norm_start_s is None or sending.norm_end_s is None
        else NormExchange(
            start_s=float(clock.wall_s(sending.norm_start_s)), end_s=float(clock.wall_s(sending.norm_end_s))
        ),
        all_gathers=_calls(plan.gathered, plan.gathered_shards, problem.all_gather, slowdown),
        segments=segments,
    )


def sharded_plan_for(profile: Profile, options: Options | None = None) -> ShardedPlan:
    """Return the plan that ``optimize_sharded`` documents, without its proofs.

    Raises
    ------
    InvalidOptions
        As ``optimize_sharded`` does.
    """
    return _search(profile, options or Options())[1]


def _search(profile: Profile, options: Options) -> tuple[ShardingProblem, ShardedPlan, str]:
    _refuse_misfits(options)
    problem = ShardingProblem.of(profile)
    return problem, *best_plan(problem, options)


def _refuse_misfits(options: Options) -> None:
    if options.target not in ("pace", "sharded"):
        raise InvalidOptions(f'target "{options.target}" does not shard: use target "sharded" or "pace"')
    if options.oracle != "jackson" or options.slot_s is not None:
        raise InvalidOptions("a schedule in two halves is continuous: leave slot_s and oracle out")
    if options.fusion == "pace":
        raise InvalidOptions('fusion "pace" is defined on all-reduces: use "optimal" or "none"')
    if options.scenarios:
        raise InvalidOptions("scenarios choose between plans of all-reduces: leave them out")


def _shards(profile: Profile, plan: ShardedPlan) -> tuple[ShardGroup, ...]:
    sent = [
        ShardGroup(
            gradients=tuple(profile.gradients[number].name for number in members),
            dtype=profile.gradients[members[0]].dtype,
            num_columns=int(columns),
        )
        for members, columns in zip(plan.shards, plan.columns, strict=True)
    ]
    unsent = [
        ShardGroup(gradients=(gradient.name,), dtype=gradient.dtype, num_columns=0)
        for gradient in profile.gradients
        if not gradient.size_bytes
    ]
    return (*sent, *unsent)


def _clock(plan: ShardedPlan, slowdown: float) -> ComputeClock:
    sending = plan.sending
    norm = [] if sending.norm_start_s is None else [sending.norm_start_s]
    norm_end = [] if sending.norm_end_s is None else [sending.norm_end_s]
    return ComputeClock.carrying(
        slowdown, np.concatenate([sending.starts, norm]), np.concatenate([sending.ends, norm_end])
    )


def _calls(
    half: Half, shards: tuple[tuple[int, ...], ...], cost: CostCurve, slowdown: float
) -> tuple[HalfCall, ...]:
    return tuple(
        HalfCall(
            shards=carried, size_bytes=int(size), time_s=float(time), duration_s=float(duration) * slowdown
        )
        for carried, size, time, duration in zip(
            shards, half.sizes, half.times, half.durations(cost), strict=True
        )
    )


def _segments(plan: ShardedPlan, clock: ComputeClock) -> tuple[HalfSegment, ...]:
    sending, count = plan.sending, len(plan.scattered)
    starts, ends = clock.wall_s(sending.starts), clock.wall_s(sending.ends)
    sent = [0] * (count + len(plan.gathered))
    segments = []
    for at, (call, columns) in enumerate(zip(sending.calls.tolist(), sending.columns.tolist(), strict=True)):
        segments.append(
            HalfSegment(
                half="reduce-scatter" if call < count else "all-gather",
                call=call if call < count else call - count,
                first_column=sent[call],
                num_columns=columns,
                priority=at,
                start_s=float(starts[at]),
                end_s=float(ends[at]),
            )
        )
        sent[call] += columns
    return tuple(segments)
