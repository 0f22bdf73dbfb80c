"""From a profile to its schedule: fusion search, oracle, segments, proofs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pace.allreduce import AffineAllReduce, SampledAllReduce
from pace.bound import fusion_bound, layered_bound
from pace.errors import InvalidOptions, SolverFailed
from pace.fusion import Fusion, fuse
from pace.options import Options
from pace.problem import Partition, Problem, oracle_instance
from pace.profile import Gradient, Op, Profile
from pace.schedule import (
    Certificate,
    ChainBound,
    Execution,
    FusionBound,
    Group,
    Prediction,
    Schedule,
    Segment,
    SolverRecord,
)
from pace.solver import certificate, jackson
from pace.solver.cost import CostCurve
from pace.solver.instance import FloatArray, Instance, IntArray, Solution
from pace.solver.sending import (
    Buffers,
    Sending,
    cut_as_solved,
    cut_while_sending,
    send_by_tail,
    send_in_order,
)
from pace.version import __version__

# A cut that spares a longer tail a wait of less than so many latencies is not considered, in several sizes.
PATIENCE_FACTORS = (0.0, 1.0, 2.0, 4.0, 8.0, np.inf)
CREDIT_TOLERANCE = 1e-3
# Whole numbers of slots, and fractions of one, are still told apart in doubles.
MAX_SLOTS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes out: groups, their buffers, and the segments in order; slots only where there are any."""

    partition: Partition
    buffers: Buffers
    sending: Sending
    start_slots: IntArray | None = None
    num_slots: IntArray | None = None
    risk_s: float | None = None


def optimize(profile: Profile, options: Options | None = None) -> Schedule:
    """Return the schedule that minimises the predicted iteration time of a profile.

    Same profile and options, same schedule to the byte. The schedule carries the proof that no preemptive
    schedule of its groups is faster, and a lower bound against every fusion (DESIGN 4.3).

    Raises
    ------
    InvalidOptions
        If options do not fit one another or the profile; the message says what would.
    SolverFailed
        If the oracle gives no answer.
    """
    options = options or Options()
    problem, fusion, plan = _search(profile, options)
    return _document(profile, options, problem, fusion, plan)


def plan_for(profile: Profile, options: Options | None = None) -> Plan:
    """Return the plan that ``optimize`` documents, without its proofs: for callers that price thousands.

    Raises
    ------
    InvalidOptions, SolverFailed
        As ``optimize`` does.
    """
    return _search(profile, options or Options())[2]


def _search(profile: Profile, options: Options) -> tuple[Problem, Fusion, Plan]:
    _refuse_misfits(options)
    problem = Problem.of(profile, barrier=options.target != "pace")
    fusion = fuse(problem, options)
    return problem, fusion, _fastest_plan(profile, problem, fusion, options)


def _refuse_misfits(options: Options) -> None:
    if options.oracle == "lp" and options.slot_s is None:
        raise InvalidOptions(
            'oracle "lp" works in slots: give slot_s, or use oracle "jackson" for continuous time'
        )
    if options.target != "pace":
        if options.slot_s is not None:
            raise InvalidOptions(f'target "{options.target}" sends whole groups: leave slot_s out')
        if options.fusion == "pace":
            raise InvalidOptions(
                f'fusion "pace" prices preemption, target "{options.target}" has none: use fusion "optimal"'
            )
        if options.max_segment_bytes is not None:
            raise InvalidOptions(f'target "{options.target}" sends whole groups: leave max_segment_bytes out')
    if options.slot_s is not None and (options.max_segment_bytes is not None or options.scenarios):
        raise InvalidOptions(
            "a slotted plan is the oracle's: leave max_segment_bytes and scenarios out, or slot_s"
        )
    if options.scenarios == 0 and options.jitter > 0:
        raise InvalidOptions("jitter is used with scenarios: give how many, 50 for example")


def _fastest_plan(profile: Profile, problem: Problem, fusion: Fusion, options: Options) -> Plan:
    if options.slot_s is not None:
        return _slotted_plan(problem, fusion.partitions[0], options)
    plans = [
        Plan(partition=partition, buffers=buffers, sending=sending)
        for partition in (_in_order(problem, partition) for partition in fusion.partitions)
        for buffers in (problem.buffers(partition),)
        for sending in _sendings(buffers, problem.cost, options)
    ]
    if not options.scenarios:
        return min(plans, key=lambda plan: (_window(problem, plan), len(plan.sending.groups)))
    from pace.scenarios import price, sample

    scenarios = sample(profile, options)
    priced = [
        replace(
            plan, risk_s=price(scenarios, plan.partition, plan.buffers, plan.sending, problem.cost, options)
        )
        for plan in plans
    ]
    return min(priced, key=lambda plan: (plan.risk_s, _window(problem, plan), len(plan.sending.groups)))


def _window(problem: Problem, plan: Plan) -> float:
    return max(plan.sending.objective, problem.compute_s)


def _in_order(problem: Problem, partition: Partition) -> Partition:
    """Number the groups by ready time, tail and size, so that the document does not depend on the search."""
    buffers = problem.buffers(partition)
    sizes = zip(buffers.sizes.tolist(), buffers.element_bytes.tolist(), strict=True)
    keys = zip(buffers.ready.tolist(), buffers.tail.tolist(), sizes, partition, strict=True)
    return tuple(group for *_, group in sorted(keys))


def _sendings(buffers: Buffers, cost: CostCurve, options: Options) -> Iterator[Sending]:
    limit = float(options.max_segment_bytes or np.inf)
    latency = cost.durations_s[0]
    for factor in PATIENCE_FACTORS if options.target == "pace" else (np.inf,):
        patience = factor * latency if latency > 0 or factor == 0 else np.inf
        sending = cut_while_sending(buffers, cost, patience_s=patience, max_segment_bytes=limit)
        if sending is not None:
            yield sending


def _slotted_plan(problem: Problem, partition: Partition, options: Options) -> Plan:
    partition = _in_order(problem, partition)
    buffers = problem.buffers(partition)
    instance = oracle_instance(buffers, problem.cost, options.slot_s)
    _refuse_tiny_slots(instance, options)
    solution = _solve(instance, options)
    kept, elements = cut_as_solved(buffers, solution)
    # What costs nothing takes no slot: it goes out whole, in the slot in which it is ready.
    free = np.flatnonzero((instance.processing == 0) & (buffers.elements > 0))
    groups = np.concatenate([free, solution.jobs[kept]])
    elements = np.concatenate([buffers.elements[free], elements])
    starts = np.concatenate([instance.ready[free], solution.starts[kept]])
    lengths = np.concatenate([np.zeros(len(free)), (solution.ends - solution.starts)[kept]])
    order = np.argsort(starts, kind="stable")
    return Plan(
        partition=partition,
        buffers=buffers,
        sending=send_in_order(buffers, groups[order], elements[order], problem.cost),
        start_slots=starts[order].astype(np.int64),
        num_slots=lengths[order].astype(np.int64),
    )


def _refuse_tiny_slots(instance: Instance, options: Options) -> None:
    slots = float(np.max(instance.ready, initial=0.0) + np.sum(instance.processing))
    if slots > MAX_SLOTS:
        assert options.slot_s is not None
        fitting = options.slot_s * slots / MAX_SLOTS * 1.1
        raise InvalidOptions(
            f"slot_s of {options.slot_s:g} cuts the window into {slots:.2g} slots, of {MAX_SLOTS:g} at most: "
            f"slot_s of {fitting:.2g} would fit, or leave slot_s out"
        )


def _solve(instance: Instance, options: Options) -> Solution:
    if options.oracle == "jackson":
        return jackson.solve(instance)
    from pace.solver import lp

    with _explained(options.slot_s or 0.0):
        return lp.solve(instance)


def write_lp(schedule: Schedule, path: Path) -> None:
    """Write the paper's linear program (3)-(14) for a slotted schedule's groups as .lp or .mps, for audit.

    Raises
    ------
    InvalidOptions
        Without slots, with too many, or if `path` ends in neither.
    """
    from pace.solver import lp_model

    slot_s = schedule.solver.slot_s
    if slot_s is None:
        raise InvalidOptions("the linear program works in slots: give slot_s")
    instance = Instance(
        ready=np.array([group.ready_s for group in schedule.groups]),
        processing=np.array([group.allreduce_s for group in schedule.groups]),
        tail=np.array([group.tail_s for group in schedule.groups]),
    )
    if path.suffix not in lp_model.SUFFIXES:
        raise InvalidOptions(f"{path}: expected a name that ends in {' or '.join(lp_model.SUFFIXES)}")
    with _explained(slot_s):
        lp_model.write(instance.in_slots(slot_s), path)


@contextmanager
def _explained(slot_s: float) -> Iterator[None]:
    """Turn what the linear programs raise into errors that say what would work."""
    from pace.solver import lp

    try:
        yield
    except lp.TooLarge as error:
        # Variables grow with the number of slots, so the length scales with their excess.
        fitting = slot_s * error.variables / error.limit * 1.1
        raise InvalidOptions(
            f"the linear program would have {error.variables:,} variables of at most {error.limit:,}: "
            f'slot_s of {fitting:.2g} would fit, or use oracle "jackson"'
        ) from None
    except lp.NoOptimum as error:
        raise SolverFailed(f"HiGHS: {error}") from None


def _document(profile: Profile, options: Options, problem: Problem, fusion: Fusion, plan: Plan) -> Schedule:
    instance = oracle_instance(plan.buffers, problem.cost, options.slot_s)
    unit = options.slot_s or 1.0
    solution = jackson.solve(instance)
    proof = certificate.certify(instance, solution)
    bound = fusion_bound(problem)
    chain_bound = layered_bound(problem)
    lower = max(problem.compute_s, bound.bound, chain_bound.bound)
    iteration = max(problem.compute_s, plan.sending.objective)
    segments = _segments(plan)
    largest = max((segment.size_bytes for segment in segments), default=0)
    return Schedule(
        profile_sha256=profile.sha256,
        fingerprint=profile.fingerprint,
        target=options.target,
        solver=SolverRecord(
            version=__version__,
            oracle=options.oracle,
            fusion=options.fusion,
            slot_s=options.slot_s,
            method=fusion.method,
        ),
        predicted=Prediction(
            iteration_s=iteration,
            ideal_iteration_s=max(problem.compute_s, solution.objective * unit),
            compute_s=problem.compute_s,
            lower_bound_s=lower,
            scenarios_s=plan.risk_s,
            gap=iteration / lower - 1 if lower else 0.0,
        ),
        certificate=Certificate(
            groups=proof.jobs,
            min_ready_s=proof.min_ready * unit,
            total_allreduce_s=proof.total_processing * unit,
            min_tail_s=proof.min_tail * unit,
            bound_s=proof.bound * unit,
        ),
        bound=FusionBound(
            min_ready_s=bound.min_ready,
            min_tail_s=bound.min_tail,
            num_gradients=len(bound.members),
            total_bytes=bound.total_bytes,
            latency_s=bound.line.latency_s,
            seconds_per_byte=bound.line.seconds_per_byte,
            bound_s=bound.bound,
        ),
        chain_bound=ChainBound(
            order=chain_bound.order,
            latency_s=chain_bound.line.latency_s,
            seconds_per_byte=chain_bound.line.seconds_per_byte,
            bound_s=chain_bound.bound,
        ),
        execution=Execution(credit_bytes=_credit(problem, plan, iteration), max_segment_bytes=largest),
        groups=_groups(profile, problem.cost, plan),
        segments=segments,
    )


def _credit(problem: Problem, plan: Plan, iteration_s: float) -> int:
    """Return the most bytes in flight with which sending by longest tail is as fast as the plan.

    More credit keeps the network busy while a host is late; but what is in flight goes first, so a runtime
    that decides as gradients become ready overtakes less. Candidates halve twice the largest segment.
    """
    sending = plan.sending
    if not len(sending.groups):
        return 0
    sizes = sending.elements * plan.buffers.element_bytes[sending.groups]
    candidates = [int(2 * sizes.max()) >> halvings for halvings in range(12)]
    windows = [
        max(send_by_tail(plan.buffers, sending, problem.cost, credit_bytes=credit), problem.compute_s)
        for credit in candidates
    ]
    enough = max(iteration_s, min(windows)) * (1 + CREDIT_TOLERANCE)
    return next(
        max(credit, 1) for credit, window in zip(candidates, windows, strict=True) if window <= enough
    )


def _groups(profile: Profile, cost: CostCurve, plan: Plan) -> tuple[Group, ...]:
    durations: FloatArray = cost(plan.buffers.sizes)
    return tuple(
        Group(
            gradients=tuple(profile.gradients[number].name for number in members),
            size_bytes=int(plan.buffers.sizes[at]),
            dtype=profile.gradients[members[0]].dtype,
            ready_s=float(plan.buffers.ready[at]),
            tail_s=float(plan.buffers.tail[at]),
            allreduce_s=float(durations[at]),
        )
        for at, members in enumerate(plan.partition)
    )


def _segments(plan: Plan) -> tuple[Segment, ...]:
    sending = plan.sending
    offsets = [0] * len(plan.partition)
    segments = []
    for at, (group, elements) in enumerate(
        zip(sending.groups.tolist(), sending.elements.tolist(), strict=True)
    ):
        size = elements * int(plan.buffers.element_bytes[group])
        slot = None if plan.start_slots is None else int(plan.start_slots[at])
        segments.append(
            Segment(
                group=group,
                offset_bytes=offsets[group],
                size_bytes=size,
                priority=at if slot is None else slot,
                start_s=float(sending.starts[at]),
                end_s=float(sending.ends[at]),
                start_slot=slot,
                num_slots=None if plan.num_slots is None else int(plan.num_slots[at]),
            )
        )
        offsets[group] += size
    return tuple(segments)


def warm_up() -> None:
    """Compile every hot loop that ``optimize`` may call, so that no request waits for a compiler.

    Takes some seconds on a machine's first run and a fraction of one when the compiled code is cached.
    """
    ops = [Op(name=f"bwd/{layer}", duration_s=1.0) for layer in range(4)]
    ops += [
        Op(
            name=f"fwd/{layer}",
            duration_s=1.0 + layer % 2,
            deps=(f"bwd/{layer}",),
            waits_for=(f"gradient {layer}",),
        )
        for layer in range(4)
    ]
    gradients = tuple(
        Gradient(name=f"gradient {layer}", size_bytes=4 * (layer + 1), producer=f"bwd/{layer}")
        for layer in range(4)
    )
    for allreduce in (
        AffineAllReduce(latency_s=0.1, seconds_per_byte=0.1),
        SampledAllReduce(samples=((4, 0.1), (8, 0.4), (16, 0.5))),
    ):
        profile = Profile(name="warm-up", workers=2, ops=tuple(ops), gradients=gradients, allreduce=allreduce)
        for options in (Options(), Options(fusion="pace"), Options(target="ddp")):
            optimize(profile, options)
