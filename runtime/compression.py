"""Sends gradients in half precision: half the bytes, at the price of rounding what is summed."""

from typing import Any, Literal

import torch

from pace.errors import InvalidOptions
from pace.runtime.transport import Done, Transport

Compression = Literal["none", "fp16", "bf16"]

_DTYPES = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class CompressedTransport:
    """Another transport whose segments travel in `dtype`; control messages are left alone."""

    def __init__(self, inner: Transport, dtype: torch.dtype) -> None:
        self._inner = inner
        self._dtype = dtype

    def allreduce(self, segment: torch.Tensor, name: str, done: Done) -> None:
        """Start to sum a segment; see ``Transport``."""
        if not segment.is_floating_point() or segment.element_size() <= self._dtype.itemsize:
            self._inner.allreduce(segment, name, done)
            return
        wire = segment.to(self._dtype)

        def widen(error: BaseException | None) -> None:
            if error is None:
                segment.copy_(wire)
            done(error)

        self._inner.allreduce(wire, name, widen)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def compressed(transport: Transport, compression: Compression) -> Any:
    """Wrap a transport so that it sends in the wire format asked for."""
    if compression not in _DTYPES:
        raise InvalidOptions(f"compression is {compression!r}; {', '.join(_DTYPES)} are supported")
    dtype = _DTYPES[compression]
    return transport if dtype is None else CompressedTransport(transport, dtype)
