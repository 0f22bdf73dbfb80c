"""The sender of state dicts: a trainer's end of weight synchronization."""

import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from pace.errors import InvalidUse
from pace.runtime.closing import Closing
from pace.wire.addresses import parse_address
from pace_fabric.runtime.weight_sync.buckets import BucketSource
from pace_fabric.runtime.weight_sync.sender import WeightDelivery, WeightSender
from pace_sync.documents.delta_sync import DeltaPlan
from pace_sync.documents.sync_plan import SyncPlan
from pace_sync.weight_sync.block_hashes import version_hash
from pace_sync.weight_sync.deltas import SentVersion, delta_layout, digests_of
from pace_sync.weight_sync.state_layout import DEFAULT_BUCKET_BYTES, DeltaBase, StateLayout, lay_out


class StateSender(Closing):
    """Brings state dicts to receivers, in the buckets and the order of a plan.

    Parameters
    ----------
    receivers
        HOST:PORT of each, fastest first.
    plan
        Made for the same tensors (``sync_tensors``). Without one, buckets of 16 MiB go in the order of the
        dict.
    token
        What receivers must know, too.
    direct
        Send to every receiver from here, instead of from host to host.
    deltas
        Send only blocks that changed, by this plan (``pace_sync.plan_deltas``).
    """

    def __init__(
        self,
        receivers: Sequence[str],
        *,
        plan: SyncPlan | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        direct: bool = False,
        deltas: DeltaPlan | None = None,
    ) -> None:
        self._plan = plan
        self._deltas = None if deltas is None or deltas.rule == "anchors" else deltas
        self._sent: SentVersion | None = None
        self._since_anchor = 0
        self._sender = WeightSender(
            [parse_address(place, place) for place in receivers],
            token=token,
            ssl_context=ssl_context,
            direct=direct,
        )

    def send(
        self, state: Mapping[str, torch.Tensor], version: int, *, timeout_s: float = 600.0
    ) -> WeightDelivery:
        """Bring a state dict to all receivers, and return when they have it or have failed.

        Its tensors must not change meanwhile. A receiver that fails is named in ``failed``, and keeps the
        version that it had.

        Raises
        ------
        ScheduleMismatch
            If the plan is for other tensors.
        InvalidUse
            If something cannot be sent as it is, such as a DTensor, or was changed meanwhile.
        """
        layout = lay_out(state, self._plan)
        tensors = [state[tensor.name] for tensor in layout.tensors]
        if self._deltas is None:
            return self._distribute(layout, tensors, version, timeout_s)
        began = time.monotonic()
        block_bytes = self._deltas.block_bytes
        digests = digests_of(layout.tensors, tensors, block_bytes)
        base = DeltaBase(version=version, sha256=version_hash(layout.tensors, digests))
        now = SentVersion(base=base, tensors=layout.tensors, digests=digests)
        whole = layout.model_copy(update={"version_sha256": base.sha256, "block_bytes": block_bytes})
        delta = self._delta(now, self._deltas)
        self._sent = now
        hashed_s = time.monotonic() - began
        if delta is None:
            self._since_anchor = 0
            report = self._distribute(whole, tensors, version, timeout_s)
            return replace(report, seconds=report.seconds + hashed_s)
        self._since_anchor += 1
        report = self._distribute(delta, tensors, version, timeout_s)
        if report.wanting and self._deltas.rule == "ask":
            left_s = max(timeout_s - (time.monotonic() - began), 0.1)
            asked = self._distribute(whole, tensors, version, left_s, only=report.wanting)
            report = _after(report, asked)
        return replace(report, seconds=report.seconds + hashed_s)

    def _delta(self, now: SentVersion, deltas: DeltaPlan) -> StateLayout | None:
        """Return the delta from the last version; None when an anchor is due or pays."""
        if self._sent is None:
            return None
        if deltas.anchor_every is not None and self._since_anchor + 1 >= deltas.anchor_every:
            return None
        credit_bytes = None if self._plan is None else self._plan.credit_bytes
        bucket_bytes = min(DEFAULT_BUCKET_BYTES, credit_bytes or DEFAULT_BUCKET_BYTES)
        return delta_layout(self._sent, now, deltas.block_bytes, deltas.anchor_above_bytes, bucket_bytes)

    def _distribute(
        self,
        layout: StateLayout,
        tensors: Sequence[torch.Tensor],
        version: int,
        timeout_s: float,
        *,
        only: Sequence[str] | None = None,
    ) -> WeightDelivery:
        credit_bytes = None if self._plan is None else self._plan.credit_bytes
        source = state_source(layout, tensors, credit_bytes)
        return self._sender.distribute_buckets(source, version, only=only, timeout_s=timeout_s)

    def close(self) -> None:
        """End all connections."""
        self._sender.close()


def state_source(
    layout: StateLayout, tensors: Sequence[torch.Tensor], credit_bytes: int | None
) -> BucketSource:
    """Return the buckets of a layout, whose tensors these are."""
    return BucketSource(
        sizes=layout.sizes,
        parts=_Bytes(layout, tensors).parts,
        layout=layout.model_dump_json(),
        layout_sha256=layout.sha256,
        credit_bytes=credit_bytes,
    )


def _after(delta: WeightDelivery, whole: WeightDelivery) -> WeightDelivery:
    """Return what came of a delta and of the whole weights for those that asked."""

    def added(first: dict[str, int], then: dict[str, int]) -> dict[str, int]:
        return {name: size + then.get(name, 0) for name, size in first.items()}

    others = {name: said for name, said in delta.failed.items() if name not in delta.wanting}
    return WeightDelivery(
        seconds=delta.seconds + whole.seconds,
        order=delta.order,
        sent_bytes=added(delta.sent_bytes, whole.sent_bytes),
        received_bytes=added(delta.received_bytes, whole.received_bytes),
        failed=others | whole.failed,
        wanting=delta.wanting,
    )


class _Bytes:
    """The bytes of tensors: those on the CPU in place, others copied bucket by bucket.

    Torch counts how often a tensor is changed in place. A change within a bucket breaks its hash; one between
    two buckets would mix two versions, and no hash would tell.
    """

    def __init__(self, layout: StateLayout, tensors: Sequence[torch.Tensor]) -> None:
        self._names = [tensor.name for tensor in layout.tensors]
        self._buckets = layout.buckets
        self._tensors = tensors
        self._changes = self._count_changes()
        self._flat: dict[int, torch.Tensor] = {}

    def parts(self, bucket: int) -> Iterator[memoryview]:
        """Return the memory of a bucket, part by part.

        Raises
        ------
        InvalidUse
            At the end of a bucket, if a tensor was changed since this object was made.
        """
        for number, offset, size in self._buckets[bucket]:
            if number not in self._flat:
                whole = self._tensors[number].detach().resolve_conj().resolve_neg()
                self._flat[number] = whole.contiguous().reshape(-1).view(torch.uint8)
            yield self._flat[number][offset : offset + size].cpu().numpy().data
        for name, before, now in zip(self._names, self._changes, self._count_changes(), strict=True):
            if now != before:
                raise InvalidUse(f'tensor "{name}" was changed while it was sent: send a copy of it, or wait')

    def _count_changes(self) -> list[int]:
        # Tensors made in inference mode are not counted.
        return [0 if tensor.is_inference() else tensor._version for tensor in self._tensors]
