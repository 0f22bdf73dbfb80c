"""What contenders over parameter servers put on the links, in the simulation and in the runtime."""

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.harness.contenders import RANDOM_ORDER, Contender
from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Group, Schedule, Segment
from pace.planning.fusion.problem import FusionProblem
from pace.simulation import make_policy
from pace_servers.planning.optimize import optimize_servers
from pace_servers.simulation.policies import TicTacOnServers
from pace_servers.simulation.run import run_server_policy
from pace_servers.simulation.traffic import ServersPolicy, ServersTraffic, ranks


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A policy whose traffic is known."""

    decided: ServersTraffic

    def traffic(self, _profile: Profile, _cluster: Cluster) -> ServersTraffic:
        """Return it."""
        return self.decided


def traffic_of(
    contender: Contender, profile: Profile, cluster: Cluster, size_factor: float, *, paced: bool
) -> ServersTraffic:
    """Return a contender's partitions, servers, order and rules, which are measured and predicted."""
    knobs = dict(contender.knobs)
    for name in contender.scaled:
        knobs[name] = max(round(knobs[name] * size_factor) // 4, 1) * 4
    policy: ServersPolicy
    if contender.policy == RANDOM_ORDER:
        policy = TicTacOnServers(order="random", **knobs)
    else:
        policy = make_policy(contender.policy, "servers", **knobs)
    traffic = policy.traffic(profile, cluster)
    return replace(traffic, rules=traffic.rules._replace(paced=paced))


def predict_over_servers(
    profile: Profile, cluster: Cluster, traffic: ServersTraffic, *, windows: int = 1
) -> float:
    """Return the simulated window in seconds: the median of as many as are measured in one round.

    One more window follows in a round; its messages share the links with the last one that counts.
    """
    run = run_server_policy(profile, cluster, _Fixed(traffic), iterations=windows + 1)
    return float(np.median(run.iterations_s[:windows]))


def schedule_over_servers(
    contender: Contender, profile: Profile, cluster: Cluster, traffic: ServersTraffic
) -> Schedule:
    """Return our plan, or a schedule that has the runtime send exactly the traffic's partitions.

    Times and proofs of the latter are those of our own plan: the runtime does not read them.
    """
    ours = optimize_servers(profile, Options(cluster=cluster))
    if contender.kind == "pace":
        return ours
    problem = FusionProblem.of(profile)
    buffers = problem.buffers(traffic.groups)
    priority = ranks(traffic.pull_priority)
    filled = [0] * len(traffic.groups)
    segments = []
    for at, (group, size, server) in enumerate(
        zip(traffic.part_groups.tolist(), traffic.sizes.tolist(), traffic.server.tolist(), strict=True)
    ):
        push = Segment(
            op="push",
            group=group,
            offset_bytes=filled[group],
            size_bytes=size,
            link=2 * server,
            priority=int(priority[at]),
            start_s=0.0,
            end_s=0.0,
        )
        segments += [push, push.model_copy(update={"op": "pull", "link": push.link + 1})]
        filled[group] += size
    groups = tuple(
        Group(
            tensors=tuple(profile.gradients[number].name for number in members),
            size_bytes=int(buffers.sizes[at]),
            dtype=profile.gradients[members[0]].dtype,
            ready_s=float(buffers.ready[at]),
            tail_s=float(buffers.tail[at]),
        )
        for at, members in enumerate(traffic.groups)
    )
    return ours.model_copy(update={"groups": groups, "transfers": tuple(segments)})
