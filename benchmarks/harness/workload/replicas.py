"""HSDP on the testbed: neighboring hosts are the shards of a replica.

The hosts of a replica have links of their own, which are faster, as GPUs of one machine have; hosts that hold
the same shard are joined by the slower ones. What goes over those is all-reduced: by PACE, or in FIFO order.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from torch import nn

from benchmarks.harness.network.hosts import INNER_INTERFACE, INTERFACE, Host
from benchmarks.harness.workload.replay import Replay, StagePlan, plan_replay
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Group, Schedule, Segment
from pace.planning.allreduce.optimize import optimize_allreduce

# Users shard a model block by block: so many blocks of about the same size, where gradients allow it.
UNITS = 16


def unit_starts(stages: Sequence[StagePlan]) -> list[int]:
    """Return with which stage each unit begins."""
    sizes = [sum(gradient.size_bytes for gradient in stage.gradients) for stage in stages]
    starts, held = [0], 0
    for number, size in enumerate(sizes[:-1]):
        held += size
        if held >= sum(sizes) / UNITS:
            starts.append(number + 1)
            held = 0
    return starts


def by_units(profile: Profile) -> Profile:
    """Make the gradients of a unit ready with its last one, and needed with its first one.

    What is needed is there before a unit is gathered, and what is ready has left its reduce-scatter.
    """
    stages = plan_replay(profile).stages
    starts = unit_starts(stages)
    producer: dict[str, str] = {}
    consumers: dict[str, list[str]] = {}
    for first, end in zip(starts, [*starts[1:], len(stages)], strict=True):
        for stage in stages[first:end]:
            for gradient in stage.gradients:
                producer[gradient.name] = stages[first].producer
                consumers.setdefault(stages[first].consumer, []).append(gradient.name)
    return profile.replace(
        ops=tuple(
            op.model_copy(update={"waits_for": tuple(consumers.get(op.name, ()))}) for op in profile.ops
        ),
        gradients=tuple(
            gradient.model_copy(update={"producer": producer[gradient.name]})
            for gradient in profile.gradients
        ),
    )


def fifo_schedule(profile: Profile) -> Schedule:
    """Return the plan of one all-reduce a unit, first ready first sent, nothing waiting for anything else."""
    single = optimize_allreduce(profile, Options(fusion="none"))
    of_name = {group.tensors[0]: group for group in single.groups}
    producers = {gradient.name: gradient.producer for gradient in profile.gradients}
    ordered = sorted(of_name, key=lambda name: (of_name[name].ready_s, producers[name]))
    groups = tuple(_fused([of_name[name] for name in names]) for names in _runs(ordered, producers))
    return single.model_copy(
        update={
            "groups": groups,
            "transfers": tuple(
                Segment(
                    op="all-reduce",
                    group=number,
                    offset_bytes=0,
                    size_bytes=group.size_bytes,
                    priority=number,
                    start_s=0.0,
                    end_s=0.0,
                )
                for number, group in enumerate(groups)
            ),
            "execution": single.execution.model_copy(
                update={
                    "max_in_flight": len(groups),
                    "max_segment_bytes": max(group.size_bytes for group in groups),
                }
            ),
        }
    )


def _runs(ordered: Sequence[str], producers: dict[str, str]) -> Iterator[list[str]]:
    for _, names in groupby(ordered, key=producers.__getitem__):
        yield list(names)


def _fused(members: Sequence[Group]) -> Group:
    return members[0].model_copy(
        update={
            "tensors": tuple(name for member in members for name in member.tensors),
            "size_bytes": sum(member.size_bytes for member in members),
        }
    )


def shard(model: Replay, rank: int, on: Sequence[Host], shards: int, *, alone: bool = False) -> None:
    """Shard a model over its replica's hosts; torch.distributed must have been joined.

    What was gathered stays for the backward pass: links within a machine are meant to be fast, and here they
    cost this machine's time.

    Parameters
    ----------
    shards
        How many hosts are a replica.
    alone
        Whether replicas know nothing of one another, so that nobody sums their gradients.
    """
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(rank, on, shards, alone=alone)
    stages = list(model.stages)
    starts = unit_starts(model.plan.stages)
    runs = [stages[first:end] for first, end in zip(starts, [*starts[1:], len(stages)], strict=True)]
    parameters = set(model.parameters())
    units = [nn.Sequential(*run) for run in runs]
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=False)
    # What runs the units holds nothing of its own.
    fully_shard(model, mesh=mesh, ignored_params=parameters | set(model.parameters()))
    model.units = nn.ModuleList(units)


def _mesh(rank: int, on: Sequence[Host], shards: int, *, alone: bool) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    ranks = [list(range(first, first + shards)) for first in range(0, len(on), shards)]
    os.environ["GLOO_SOCKET_IFNAME"] = INNER_INTERFACE  # read as each group connects
    within = [dist.new_group(each) for each in ranks]
    if alone:
        return DeviceMesh.from_group(within[rank // shards], "cpu", mesh_dim_names=("shards",))
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    across = [dist.new_group(list(each)) for each in zip(*ranks, strict=True)]
    return DeviceMesh.from_group(
        [across[rank % shards], within[rank // shards]],
        "cpu",
        mesh=ranks,
        mesh_dim_names=("replicas", "shards"),
    )
