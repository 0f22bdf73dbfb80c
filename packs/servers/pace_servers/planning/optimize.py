"""From a profile and its parameter servers to their schedule: groups, segments, servers, proofs."""

import math
from dataclasses import replace

import numpy as np

from pace.counted import counted
from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.documents.schedule import Execution, Group, Prediction, Schedule, Segment, SolverRecord
from pace.documents.schedule_rules import server_links
from pace.errors import InvalidOptions
from pace.planning.fusion.search import FusionResult, fuse
from pace.solver.flow_shop.lockstep import MOST_GROUPED, MOST_ORDERED
from pace.version import __version__
from pace_servers.planning.bounds import segment_proofs, servers_bound, servers_chain_bound
from pace_servers.planning.plans import ServersPlan, best_plan, faster_whole_plan, most_parts, offsets
from pace_servers.planning.problem import ServersProblem

# On each link. Two messages in flight would share the connection.
ONE_AT_A_TIME = 1

# A plan of more parts takes minutes and gigabytes; so does one of more parts times servers.
MOST_PARTS = 2_000_000
MOST_SENT = 500_000_000


def optimize_servers(profile: Profile, options: Options | None = None) -> Schedule:
    """Return the schedule of pushes and pulls that minimizes the predicted iteration time.

    Longest tail first on both links is optimal in the limit of small parts
    (``pace.solver.flow_shop.lockstep``). The prediction includes the extra time of parts of finite size. The
    same documents and options give the same schedule, byte for byte.

    Raises
    ------
    InvalidCluster
        If the cluster does not fit the profile.
    InvalidOptions
        If the options do not fit, or neither they nor the profile have servers.
    """
    options = options or Options()
    options.refuse_others("servers")
    cluster = cluster_of(profile, options).with_touched_rows(profile)
    problem = ServersProblem.of(profile, cluster)
    plan, fusion = plan_servers(problem, options)
    proofs = segment_proofs(problem, plan.segments)
    bound, chain = servers_bound(problem), servers_chain_bound(problem)
    compute = problem.plain.compute_s
    lower = max(compute, bound.bound_s, chain.bound_s if chain else 0.0)
    ideal = max([compute, *(proof.bound_s for proof in proofs)])
    segments = _segments(plan)
    return Schedule(
        exchange="servers",
        profile_sha256=profile.sha256,
        fingerprint=profile.fingerprint,
        cluster=cluster,
        solver=SolverRecord(
            version=__version__,
            fusion=options.fusion,
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
        proofs=proofs,
        bound=bound,
        chain_bound=chain,
        execution=Execution(
            max_in_flight=ONE_AT_A_TIME if segments else 0,
            max_segment_bytes=max(
                (plan.elements * plan.buffers.element_bytes[plan.groups]).tolist(), default=0
            ),
            discipline=options.discipline,
            connection_bytes_per_s=None
            if cluster.exchange.colocated
            else cluster.exchange.pace_bytes_per_s(profile.workers),
        ),
        links=server_links(cluster.exchange.servers),
        groups=_groups(profile, plan),
        transfers=segments,
    )


def cluster_of(profile: Profile, options: Options) -> Cluster:
    """Return the options' cluster, or else the one on which the profile was measured.

    Raises
    ------
    InvalidOptions
        If there is neither.
    """
    if options.cluster is not None:
        return options.cluster
    if isinstance(profile.allreduce, PushPull):
        return Cluster(name=profile.name, exchange=profile.allreduce)
    raise InvalidOptions('exchange "servers" needs a cluster: the profile was measured without servers')


def plan_servers(problem: ServersProblem, options: Options) -> tuple[ServersPlan, FusionResult]:
    """Return the plan of ``optimize_servers``, and how its groups were found."""
    size = max(options.partition_bytes or problem.suggested_partition_bytes(), problem.least_bytes)
    total = float(problem.plain.sizes.sum())
    servers = problem.links.num_servers
    most = min(MOST_PARTS, most_parts(MOST_SENT, servers))
    if options.partition_bytes is not None and total > most * size:
        raise InvalidOptions(
            f"partition_bytes {options.partition_bytes} makes over {most:,} segments for "
            f"{counted(servers, 'server')}: use at least {math.ceil(total / most):,}"
        )
    asked = Options(
        fusion=options.fusion, max_group_bytes=options.max_group_bytes, search_calls=options.search_calls
    )
    # The last part has between one byte and a whole partition, so groups are sought for both lags.
    found = [
        fuse(fusing, asked)
        for lag in ((min(size, float(problem.sent_bytes.sum())), 0.0) if options.fusion != "none" else (0.0,))
        for fusing in (problem.lagging(lag),)
    ]
    if options.fusion != "none" and not problem.is_even:
        found[0] = replace(found[0], method=f"{found[0].method}; gradients with ratios by themselves")
    if options.fusion == "optimal":
        found.append(fuse(problem.plain, Options(fusion="none")))
    partitions = dict.fromkeys(partition for each in found for partition in each.partitions)
    plan = best_plan(problem, tuple(partitions), options.partition_bytes)
    num_sent = int(np.count_nonzero(problem.plain.sizes))
    if options.fusion != "optimal" or options.partition_bytes is not None or not 0 < num_sent <= MOST_ORDERED:
        return plan, found[0]
    whole = "groups" if num_sent <= MOST_GROUPED else "gradients"
    method = f"{found[0].method}; no order of whole {whole} is faster"
    return faster_whole_plan(problem, plan, options.max_group_bytes) or plan, replace(found[0], method=method)


def _groups(profile: Profile, plan: ServersPlan) -> tuple[Group, ...]:
    return tuple(
        Group(
            tensors=tuple(profile.gradients[number].name for number in members),
            size_bytes=int(plan.buffers.sizes[at]),
            dtype=profile.gradients[members[0]].dtype,
            ready_s=float(plan.buffers.ready[at]),
            tail_s=float(plan.buffers.tail[at]),
        )
        for at, members in enumerate(plan.partition)
    )


def _segments(plan: ServersPlan) -> tuple[Segment, ...]:
    times = plan.times
    segments = []
    for at, (group, elements, offset) in enumerate(
        zip(plan.groups, plan.elements, offsets(plan), strict=True)
    ):
        push = Segment(
            op="push",
            group=int(group),
            offset_bytes=offset,
            size_bytes=int(elements * plan.buffers.element_bytes[group]),
            link=2 * int(plan.segments.server[at]),
            priority=at,
            start_s=float(times.push_starts[at]),
            end_s=float(times.push_ends[at]),
        )
        pulled = {
            "op": "pull",
            "link": push.link + 1,
            "start_s": float(times.pull_starts[at]),
            "end_s": float(times.pull_ends[at]),
        }
        segments += [push, push.model_copy(update=pulled)]
    return tuple(segments)
