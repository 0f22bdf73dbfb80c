"""The sender of state dicts: a trainer's end of weight synchronization."""

import ssl
from collections.abc import Iterator, Mapping, Sequence

import torch

from pace.documents.sync.sync_plan import SyncPlan
from pace.runtime.closing import Closing
from pace.runtime.fabric.weight_sync.buckets import BucketSource
from pace.runtime.fabric.weight_sync.sender import WeightDelivery, WeightSender
from pace.runtime.weight_sync.state_layout import StateLayout, lay_out
from pace.wire.addresses import parse_address


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
    """

    def __init__(
        self,
        receivers: Sequence[str],
        *,
        plan: SyncPlan | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        direct: bool = False,
    ) -> None:
        self._plan = plan
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
            If something cannot be sent as it is, such as a DTensor.
        """
        layout = lay_out(state, self._plan)
        tensors = _Bytes(layout, state)
        source = BucketSource(
            sizes=layout.sizes,
            parts=tensors.parts,
            layout=layout.model_dump_json(),
            layout_sha256=layout.sha256,
            credit_bytes=None if self._plan is None else self._plan.credit_bytes,
        )
        return self._sender.distribute_buckets(source, version, timeout_s=timeout_s)

    def close(self) -> None:
        """End all connections."""
        self._sender.close()


class _Bytes:
    """The bytes of a state dict: those on the CPU in place, others copied bucket by bucket."""

    def __init__(self, layout: StateLayout, state: Mapping[str, torch.Tensor]) -> None:
        self._buckets = layout.buckets
        self._tensors = [state[tensor.name] for tensor in layout.tensors]
        self._flat: dict[int, torch.Tensor] = {}

    def parts(self, bucket: int) -> Iterator[memoryview]:
        """Return the memory of a bucket, part by part."""
        for number, offset, size in self._buckets[bucket]:
            if number not in self._flat:
                whole = self._tensors[number].detach().resolve_conj().resolve_neg()
                self._flat[number] = whole.contiguous().reshape(-1).view(torch.uint8)
            yield self._flat[number][offset : offset + size].cpu().numpy().data
