"""The sender of shards: one trainer rank's end of resharding, by a plan that all ranks share."""

import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from pace.errors import InvalidUse, ScheduleMismatch
from pace.runtime.closing import Closing
from pace.wire.addresses import parse_address
from pace_fabric.runtime.weight_sync.sender import WeightDelivery, WeightSender
from pace_sync.documents.reshard_plan import ReshardPlan, ShardStream
from pace_sync.weight_sync.assembly import common, spans_of
from pace_sync.weight_sync.local_shards import LocalShard, local_shards, local_tensor
from pace_sync.weight_sync.sender import state_source
from pace_sync.weight_sync.state_layout import StateLayout, StateTensor, filled


class ShardSender(Closing):
    """Brings this rank's part of a state dict to receivers, by a reshard plan.

    Receivers have a version when the parts of all ranks are there. If a rank dies before, they forget all
    parts, and the other ranks learn of it.

    Parameters
    ----------
    name
        This rank's name in the plan.
    plan
        The same at all ranks.
    receivers
        HOST:PORT of each receiver, by its name in the plan.
    token
        What receivers must know, too.
    """

    def __init__(
        self,
        name: str,
        plan: ReshardPlan,
        receivers: Mapping[str, str],
        *,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._name, self._plan = name, plan
        self._streams = [stream for stream in plan.streams if stream.sender == name]
        wanted = {receiver for stream in self._streams for receiver in stream.receivers}
        lost = next(iter(sorted(wanted - set(receivers))), None)
        if lost is not None:
            raise InvalidUse(f'the plan sends to receiver "{lost}": give its address')
        self._senders = [
            WeightSender(
                [parse_address(receivers[each], each) for each in stream.receivers],
                token=token,
                ssl_context=ssl_context,
                bytes_per_s=stream.bytes_per_s,
                keep_order=True,
            )
            for stream in self._streams
        ]

    def send(
        self, state: Mapping[str, torch.Tensor], version: int, *, timeout_s: float = 600.0
    ) -> WeightDelivery:
        """Bring this rank's part to all its receivers; return when they have the whole version or failed.

        All ranks call it with the same version. Tensors must not change meanwhile. A rank of which the plan
        sends nothing returns at once.

        Raises
        ------
        ScheduleMismatch
            If the state dict does not hold here what the plan sends from here.
        InvalidUse
            If a tensor was changed meanwhile.
        """
        held = local_shards(state)
        prepared = [self._layout(stream, held) for stream in self._streams]
        sources = [
            state_source(layout, [_box(state[box.name], held[box.name], box) for box in layout.tensors], None)
            for layout in prepared
        ]
        if not sources:
            return WeightDelivery(seconds=0.0, order=(), sent_bytes={}, received_bytes={}, failed={})
        with ThreadPoolExecutor(len(sources), thread_name_prefix="pace.shards") as pool:
            found = list(
                pool.map(
                    lambda each: each[0].distribute_buckets(each[1], version, timeout_s=timeout_s),
                    zip(self._senders, sources, strict=True),
                )
            )
        return _together(found)

    def close(self) -> None:
        """End all connections."""
        for sender in self._senders:
            sender.close()

    def _layout(self, stream: ShardStream, held: Mapping[str, LocalShard]) -> StateLayout:
        dtypes = {tensor.name: (tensor.dtype, tensor.shape) for tensor in self._plan.tensors}
        boxes = []
        for box in stream.boxes:
            dtype, whole = dtypes[box.tensor]
            shard = held.get(box.tensor)
            if shard is None:
                raise ScheduleMismatch(f'the plan sends tensor "{box.tensor}", which this rank does not have')
            if shard.whole != whole or shard.dtype is not getattr(torch, dtype):
                raise ScheduleMismatch(
                    f'tensor "{box.tensor}" is {shard.dtype} of shape {shard.whole} here; the plan is for '
                    f"{dtype} of shape {whole}: plan again"
                )
            spans = spans_of(box.begin, box.shape)
            if common(spans, spans_of(shard.begin, shard.shape)) != spans:
                raise ScheduleMismatch(
                    f'the plan sends {box.told()} from "{self._name}", which holds {shard.shape} '
                    f"from {shard.begin} on: plan again"
                )
            boxes.append(
                StateTensor(name=box.tensor, dtype=dtype, shape=box.shape, begin=box.begin, whole=whole)
            )
        tensors = tuple(boxes)
        return StateLayout(
            plan_sha256=self._plan.sha256,
            sender=self._name,
            tensors=tensors,
            buckets=filled(tensors, self._plan.bucket_bytes),
        )


def _box(tensor: torch.Tensor, shard: LocalShard, box: StateTensor) -> torch.Tensor:
    part = local_tensor(tensor)
    for axis, (begin, length) in enumerate(zip(box.origin, box.shape, strict=True)):
        part = part.narrow(axis, begin - shard.begin[axis], length)
    return part


def _together(found: list[WeightDelivery]) -> WeightDelivery:
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    failed: dict[str, str] = {}
    for each in found:
        for name, size in each.sent_bytes.items():
            sent[name] = sent.get(name, 0) + size
        for name, size in each.received_bytes.items():
            received[name] = received.get(name, 0) + size
        failed |= each.failed
    return WeightDelivery(
        seconds=max(each.seconds for each in found),
        order=tuple(dict.fromkeys(name for each in found for name in each.order)),
        sent_bytes=sent,
        received_bytes=received,
        failed=failed,
    )
