"""A model whose ranks hold shards, for tests of resharding: DTensors on a mesh of 2 x 2 ranks.

Every rank can be a receiver too: rank 0 of whole tensors, ranks 1 and 2 of shards along columns.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from pace.errors import CommunicationFailed
from pace_fabric.runtime.weight_sync import WeightSender
from pace_fabric.runtime.weight_sync.buckets import BucketSource
from pace_sync.documents.reshard_plan import ReshardPlan
from pace_sync.documents.resharding import Resharding, ShardHolder, ShardReceiver, TensorBox
from pace_sync.planning.reshard import plan_reshard
from pace_sync.weight_sync import ShardSender, StateReceiver, shard_boxes, whole_tensors

SEED, WITHIN_S = 11, 200.0
RECEIVERS = ("whole", "left", "right")


def whole_state(version: int, megabytes: int) -> dict[str, torch.Tensor]:
    """Return all tensors of a version, whole: rows that no number of ranks divides, one number, a bias."""
    random = torch.Generator().manual_seed(SEED + version)
    rows = megabytes * 125 + 1

    def made(*shape: int) -> torch.Tensor:
        bits = torch.randint(-(2**15), 2**15, shape, generator=random, dtype=torch.int16)
        return bits.view(torch.bfloat16).nan_to_num()

    return {
        "embed": made(rows, 1000),
        "up.weight": made(2 * rows + 2, 500),
        "head": made(1000, rows),
        "norm": made(999).to(torch.float32),
        "scale": torch.tensor(float(version)),
        "layer.weight": made(1000, rows),
    }


def sharded(whole: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return this rank's state dict: sharded twice, by column, replicated, and by FSDP over columns."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "tensor"))
    layer = torch.nn.Sequential()
    rows, columns = whole["layer.weight"].shape
    layer.add_module("layer", torch.nn.Linear(columns, rows, bias=False))
    layer.to(torch.bfloat16)
    with torch.no_grad():
        layer.get_parameter("layer.weight").copy_(whole["layer.weight"])
    parallelize_module(layer, mesh["tensor"], {"layer": ColwiseParallel()})
    fully_shard(layer, mesh=mesh["replica"])
    placements: dict[str, Any] = {
        "embed": [Shard(0), Shard(0)],
        "up.weight": [Shard(0), Shard(1)],
        "head": [Replicate(), Shard(1)],
        "norm": [Replicate(), Replicate()],
    }
    found: dict[str, Any] = {
        name: distribute_tensor(whole[name], mesh, placement, src_data_rank=None)
        for name, placement in placements.items()
    }
    return found | {"scale": whole["scale"]} | layer.state_dict()


def columns_here(whole: dict[str, torch.Tensor], group: Any) -> dict[str, Any]:
    """Return what a receiver of two has: shards along the last dimension, in an engine's order."""
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    return {
        name: distribute_tensor(tensor, mesh, [Shard(tensor.ndim - 1)], src_data_rank=None)
        if tensor.ndim > 1
        else tensor
        for name, tensor in reversed(whole.items())
    }


def planned(state: dict[str, Any], like: dict[str, Any] | None) -> ReshardPlan:
    """Gather what all ranks hold and want, and plan; the plan is the same on every rank."""
    told: list[Any] = [None] * dist.get_world_size()
    wants = None if like is None else [box.model_dump() for box in shard_boxes(like)]
    dist.all_gather_object(told, ([box.model_dump() for box in shard_boxes(state)], wants))

    def boxes(found: Any) -> tuple[TensorBox, ...]:
        return tuple(TensorBox(**each) for each in found)

    problem = Resharding(
        name="test",
        tensors=whole_tensors(state),
        senders=tuple(
            ShardHolder(name=f"trainer {number}", bytes_per_s=1e8, shards=boxes(held))
            for number, (held, _) in enumerate(told)
        ),
        receivers=tuple(
            ShardReceiver(name=name, bytes_per_s=1e8, wants=boxes(told[number][1]))
            for number, name in enumerate(RECEIVERS)
        ),
    )
    return plan_reshard(problem)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors, or their shards here, have the same type and bits."""
    pair = [each.to_local() if isinstance(each, DTensor) else each for each in (left, right)]
    if pair[0].dtype != pair[1].dtype or pair[0].shape != pair[1].shape:
        return False
    flat = [each.contiguous().reshape(-1).view(torch.uint8) for each in pair]
    return torch.equal(*flat)


def reshard(rank: int, _size: int, megabytes: int, dies: bool) -> list[Any]:
    """Send version 1 and 2 of a model from four ranks to three receivers; rank 3 may die during version 2.

    Returns, for a receiver, which versions came and whether they are right; and who failed for this rank.
    """
    columns = dist.new_group([1, 2], backend="gloo")
    first = whole_state(0, megabytes)
    state = sharded(first)
    like: dict[str, Any] | None = None
    if rank == 0:
        like = first
    elif rank in (1, 2):
        like = columns_here(first, columns)
    receiver = None if like is None else StateReceiver(token="secret", like=like)
    plan = planned(state, like)
    addresses: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(addresses, None if receiver is None else receiver.address)
    places = dict(zip(RECEIVERS, addresses[: len(RECEIVERS)], strict=True))
    sender = ShardSender(f"trainer {rank}", plan, places, token="secret")
    found: list[Any] = []
    try:
        for version in (1, 2):
            whole = whole_state(version, megabytes)
            state = sharded(whole)
            dist.monitored_barrier(timeout=timedelta(seconds=WITHIN_S))
            if version == 2 and dies and rank == 3:
                _die_in_mid_transfer()
            report = sender.send(state, version, timeout_s=WITHIN_S)
            arrived = None
            if receiver is not None:
                try:
                    arrived = receiver.receive(0.5 if version == 2 and dies else WITHIN_S)
                except CommunicationFailed:
                    found.append((version, "nothing arrived", report.failed))
                    continue
            right = True
            if arrived is not None:
                expected = whole if rank == 0 else columns_here(whole, columns)
                right = list(arrived.data) == list(expected) and all(
                    same_bits(arrived.data[name], tensor) for name, tensor in expected.items()
                )
            found.append((version, right, report.failed))
    finally:
        sender.close()
        if receiver is not None:
            receiver.finish()
            receiver.close()
    if not dies:
        dist.barrier()
    return found


def _die_in_mid_transfer() -> None:
    """Let this process kill itself when half of the last bucket of a stream is out."""
    whole = WeightSender._send_bucket

    def dying(
        self: WeightSender, chain: Any, source: BucketSource, bucket: int, sent: dict[str, int]
    ) -> None:
        def half(number: int) -> Iterator[memoryview]:
            for part in source.parts(number):
                yield part[: len(part) // 2]
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)

        last = bucket == len(source.sizes) - 1
        whole(self, chain, replace(source, parts=half) if last else source, bucket, sent)

    WeightSender._send_bucket = dying  # type: ignore[method-assign]  # the moment of its death
