"""Who competes over parameter servers: the simulator's policies, and the ring all-reduce.

ByteScheduler's sizes in bytes, chosen for models of hundreds of megabytes, are scaled like the gradients.
P3's 160 kB are not: scaled they would be some 3 kB, and what Python needs for each would be measured, not P3.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Group, Schedule, Segment, SendDiscipline
from pace.fusion.problem import FusionProblem
from pace.parameter_server.optimize import optimize_servers
from pace.simulation import make_server_policy
from pace.simulation.parameter_server.run import run_server_policy
from pace.simulation.parameter_server.traffic import ExchangePolicy, ExchangeTraffic, ranks

Family = Literal["policy", "pace", "ring"]

# Equal parts that the first trials of the policies had.
PARTITION_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContender:
    """One way to exchange gradients.

    Attributes
    ----------
    family
        "policy": a policy of the simulator over our wire. "pace": our runtime as it is. "ring": one of the
        all-reduce testbed's contenders, of this name.
    policy, knobs
        The simulator's policy; knobs whose names are in `scaled` are multiplied by the gradients' factor.
    order
        For our runtime.
    peer
        Whether it counts as what others do.
    """

    name: str
    label: str
    family: Family
    policy: str = ""
    knobs: tuple[tuple[str, Any], ...] = ()
    scaled: frozenset[str] = frozenset()
    order: SendDiscipline = "overtake"
    peer: bool = False

    def simulated(self, size_factor: float) -> ExchangePolicy:
        """Return the simulator's policy, with sizes that fit scaled gradients."""
        knobs = dict(self.knobs)
        for name in self.scaled:
            knobs[name] = max(round(knobs[name] * size_factor) // 4, 1) * 4
        return make_server_policy(self.policy, **knobs)


CONTENDERS = (
    ExchangeContender(
        name="fifo-whole",
        label="FIFO, whole tensors",
        family="policy",
        policy="ps-fifo",
        knobs=(("keys", "round-robin"),),
        peer=True,
    ),
    ExchangeContender(
        name="fifo",
        label="FIFO, equal parts",
        family="policy",
        policy="ps-fifo",
        knobs=(("keys", "parts"), ("partition_bytes", PARTITION_BYTES)),
        peer=True,
    ),
    ExchangeContender(
        name="p3",
        label="P3",
        family="policy",
        policy="ps-p3",
        knobs=(("acknowledged", False),),
        peer=True,
    ),
    ExchangeContender(
        name="bytescheduler",
        label="ByteScheduler's policy",
        family="policy",
        policy="ps-bytescheduler",
        knobs=(("partition_bytes", 4_000_000), ("credit_bytes", 16_000_000)),
        scaled=frozenset({"partition_bytes", "credit_bytes"}),
        peer=True,
    ),
    ExchangeContender(name="tictac", label="TicTac (TAO)", family="policy", policy="ps-tao", peer=True),
    ExchangeContender(
        name="pace-static",
        label="PACE, static",
        family="pace",
        policy="ps-pace",
        knobs=(("order", "static"),),
        order="static",
    ),
    ExchangeContender(
        name="pace-overtake",
        label="PACE, overtake",
        family="pace",
        policy="ps-pace",
        knobs=(("order", "overtake"),),
    ),
    ExchangeContender(name="ddp", label="Ring: DDP", family="ring", peer=True),
    ExchangeContender(name="ring-pace-static", label="Ring: PACE, static", family="ring"),
)

EXCHANGE_BY_NAME = {contender.name: contender for contender in CONTENDERS}


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A policy whose traffic is known."""

    decided: ExchangeTraffic

    def traffic(self, _profile: Profile, _cluster: Cluster) -> ExchangeTraffic:
        """Return it."""
        return self.decided


def traffic_of(
    contender: ExchangeContender, profile: Profile, cluster: Cluster, size_factor: float, *, paced: bool
) -> ExchangeTraffic:
    """Return what a contender puts on the links; what is measured and what is predicted."""
    traffic = contender.simulated(size_factor).traffic(profile, cluster)
    return replace(traffic, rules=replace(traffic.rules, paced=paced))


def predict_exchange(
    profile: Profile, cluster: Cluster, traffic: ExchangeTraffic, *, windows: int = 1
) -> float:
    """Return the simulated window in seconds: the median of as many as are measured in one round.

    In a round one more follows, whose messages share the links with the last that counts.
    """
    run = run_server_policy(profile, cluster, _Fixed(traffic), iterations=windows + 1)
    return float(np.median(run.iterations_s[:windows]))


def schedule_of(
    contender: ExchangeContender, profile: Profile, cluster: Cluster, traffic: ExchangeTraffic
) -> Schedule:
    """Return our plan, or a schedule that has the runtime send exactly the traffic's partitions.

    Times and proofs of the latter are those of our own plan: the runtime does not read them.
    """
    ours = optimize_servers(profile, Options(cluster=cluster))
    if contender.family == "pace":
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
