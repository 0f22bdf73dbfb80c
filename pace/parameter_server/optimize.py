"""From a profile and a cluster to the schedule of pushes and pulls: groups, partitions, servers, proofs."""

from typing import Annotated

from pydantic import Field

from pace.documents.base import Document
from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.push_pull_schedule import (
    ExchangeExecution,
    ExchangeGroup,
    ExchangeSegment,
    ExchangeSolver,
    PushPullSchedule,
    SendOrder,
)
from pace.documents.schedule import Fusion, Prediction
from pace.fusion.bounds import Bounds
from pace.fusion.search import FusionResult, fuse
from pace.parameter_server.bounds import exchange_bound, exchange_chain_bound, segment_certificates
from pace.parameter_server.plans import ExchangePlan, best_plan, offsets
from pace.parameter_server.problem import ExchangeProblem
from pace.version import __version__


class ExchangeOptions(Document):
    """Options of ``optimize_exchange``.

    Attributes
    ----------
    fusion
        How gradients are fused; a cluster with ratios keeps one group per gradient.
    max_group_bytes
        No group of more than one gradient is larger.
    partition_bytes
        Size of the parts; searched for around delta0 if left out. The cluster's ``min_partition_bytes`` is
        taken if that is more.
    order
        What the runtime does when the segment that is planned next is late.
    """

    fusion: Fusion = "optimal"
    max_group_bytes: Annotated[int, Field(gt=0)] | None = None
    partition_bytes: Annotated[int, Field(gt=0)] | None = None
    order: SendOrder = "overtake"


def optimize_exchange(
    profile: Profile, cluster: Cluster, options: ExchangeOptions | None = None
) -> PushPullSchedule:
    """Return the schedule of pushes and pulls that minimizes the predicted iteration time.

    Longest tail first on both links is optimal in the fluid limit (``pace.solver.flow_shop.fluid``); what
    partitions of a finite size cost above it is priced. Same documents and options, same schedule to the
    byte.

    Raises
    ------
    InvalidCluster
        If the cluster does not fit the profile.
    """
    options = options or ExchangeOptions()
    problem = ExchangeProblem.of(profile, cluster)
    plan, fusion = plan_exchange(problem, options)
    certificates = segment_certificates(problem, plan.segments)
    bound, chain = exchange_bound(problem), exchange_chain_bound(problem)
    compute = problem.plain.compute_s
    lower = max(compute, bound.bound_s, chain.bound_s if chain else 0.0)
    ideal = max([compute, *(certificate.bound_s for certificate in certificates)])
    return PushPullSchedule(
        profile_sha256=profile.sha256,
        fingerprint=profile.fingerprint,
        cluster=cluster,
        solver=ExchangeSolver(
            version=__version__,
            fusion=options.fusion if problem.is_even else "none",
            method=fusion.method,
            order=plan.order,
            partition_bytes=plan.partition_bytes,
            suggested_partition_bytes=problem.suggested_partition_bytes(),
        ),
        predicted=Prediction(
            iteration_s=plan.window_s,
            ideal_iteration_s=ideal,
            compute_s=compute,
            lower_bound_s=lower,
            gap=plan.window_s / lower - 1 if lower else 0.0,
        ),
        certificates=certificates,
        bound=bound,
        chain_bound=chain,
        execution=ExchangeExecution(
            order=options.order,
            max_segment_bytes=max(
                (plan.elements * plan.buffers.element_bytes[plan.groups]).tolist(), default=0
            ),
            pace_bytes_per_s=None
            if cluster.exchange.colocated
            else cluster.exchange.pace_bytes_per_s(profile.workers),
        ),
        groups=_groups(profile, plan),
        segments=_segments(plan),
    )


def plan_exchange(problem: ExchangeProblem, options: ExchangeOptions) -> tuple[ExchangePlan, FusionResult]:
    """Return the plan that ``optimize_exchange`` documents, and how its groups were found."""
    size = max(options.partition_bytes or problem.suggested_partition_bytes(), problem.least_bytes)
    chosen = options.fusion if problem.is_even else "none"
    asked = Options(fusion=chosen, max_group_bytes=options.max_group_bytes)
    # A last part is anything from a byte to a whole partition: groups are sought for both lags.
    found = [
        fuse(fusing, asked, Bounds(fusing))
        for lag in ((min(size, float(problem.plain.sizes.sum())), 0.0) if chosen != "none" else (0.0,))
        for fusing in (problem.lagging(lag),)
    ]
    if chosen == "optimal":
        found.append(fuse(problem.plain, Options(fusion="none")))
    partitions = dict.fromkeys(partition for each in found for partition in each.partitions)
    return best_plan(problem, tuple(partitions), options.partition_bytes), found[0]


def _groups(profile: Profile, plan: ExchangePlan) -> tuple[ExchangeGroup, ...]:
    return tuple(
        ExchangeGroup(
            gradients=tuple(profile.gradients[number].name for number in members),
            size_bytes=int(plan.buffers.sizes[at]),
            dtype=profile.gradients[members[0]].dtype,
            ready_s=float(plan.buffers.ready[at]),
            tail_s=float(plan.buffers.tail[at]),
        )
        for at, members in enumerate(plan.partition)
    )


def _segments(plan: ExchangePlan) -> tuple[ExchangeSegment, ...]:
    times = plan.times
    return tuple(
        ExchangeSegment(
            group=int(group),
            offset_bytes=offset,
            size_bytes=int(elements * plan.buffers.element_bytes[group]),
            link=int(plan.segments.server[at]),
            priority=at,
            push_start_s=float(times.push_starts[at]),
            push_end_s=float(times.push_ends[at]),
            pull_start_s=float(times.pull_starts[at]),
            pull_end_s=float(times.pull_ends[at]),
        )
        for at, (group, elements, offset) in enumerate(
            zip(plan.groups, plan.elements, offsets(plan), strict=True)
        )
    )
