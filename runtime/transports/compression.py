"""Sends gradients in half precision: half the bytes, but sums are rounded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from pace.documents.push_pull import PushPull
from pace.runtime.transports.device import apart
from pace.runtime.transports.transport import After, Done, SegmentCall, Transport

Compression = Literal["none", "fp16", "bf16"]

_DTYPES = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class CompressedTransport:
    """Wraps a transport and sends its segments in `dtype`; control messages are not changed."""

    takes_runs = False

    def __init__(self, inner: Transport, dtype: torch.dtype) -> None:
        self._inner = inner
        self._dtype = dtype

    def _travels(self, segment: torch.Tensor) -> bool:
        """Return whether a segment is sent in half precision."""
        return segment.is_floating_point() and segment.element_size() > self._dtype.itemsize

    def prepare(self, calls: Sequence[SegmentCall], *, pace_bytes_per_s: float | None = None) -> None:
        """Announce the segments in the dtype in which they are sent; see ``Transport``."""
        self._inner.prepare(
            [
                replace(call, tensor=torch.empty_like(call.tensor, dtype=self._dtype, device="meta"))
                if self._travels(call.tensor)
                else call
                for call in calls
            ],
            pace_bytes_per_s=pace_bytes_per_s,
        )

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        """Start to sum a segment; see ``Transport``."""
        if not self._travels(segment):
            return self._inner.allreduce(segment, name, done, after)
        assert after is None
        with apart(self._inner.device):
            wire = segment.to(self._dtype)
        return self._inner.allreduce(wire, name, done, lambda: segment.copy_(wire))

    def measure_exchange(self, size_bytes: int) -> PushPull | None:
        """Measure the cost of bytes before compression; see ``Transport``."""
        share = self._dtype.itemsize / torch.float32.itemsize
        found = self._inner.measure_exchange(int(size_bytes * share))
        if found is None:
            return None
        return found.model_copy(
            update={
                "worker_bytes_per_s": found.worker_bytes_per_s / share,
                "min_partition_bytes": round(found.min_partition_bytes / share),
            }
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def compressed(transport: Transport, compression: Compression) -> Any:
    """Return a transport that sends with this compression."""
    dtype = _DTYPES[compression]
    return transport if dtype is None else CompressedTransport(transport, dtype)
