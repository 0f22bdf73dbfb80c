"""Devices that run behind the host: how what is queued in one place comes after what is queued in another.

The host queues work and goes on. So a gradient is ready when the device has computed it, not when its hook
runs, and a forward pass that needs a sum has the device wait for it, not the host.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from pace.runtime.transports.clock import Clock, CudaClock


class Device(Clock, Protocol):
    """A device's queues, as the calling thread sees them: the one it fills now, and one for communication."""

    def now(self) -> Any:
        """Return the moment when the device gets to what the calling thread queues next."""

    def wait_for(self, moment: Any) -> None:
        """Have the device wait for a moment before what the calling thread queues next; returns at once."""

    def apart(self) -> AbstractContextManager[Any]:
        """What is queued inside does not wait for compute, nor compute for it."""


class CudaDevice(CudaClock):
    """One GPU, with a stream of its own for communication."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        make: Any = torch.cuda.Stream  # untyped in torch
        self._communication: torch.cuda.Stream = make(device)

    def wait_for(self, moment: torch.cuda.Event) -> None:
        """Have the current stream wait for a moment of any stream; see ``Device``."""
        moment.wait(torch.cuda.current_stream(self._device))

    def apart(self) -> AbstractContextManager[Any]:
        """Queue into the stream for communication; see ``Device``."""
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._communication)
        return stream


def device_of(model: object) -> CudaDevice | None:
    """Return the device on which a model's gradients are computed; None where the host computes them.

    Also None for what is no model, which is refused where all ranks learn of it.
    """
    if not isinstance(model, torch.nn.Module):
        return None
    device = next((p.device for p in model.parameters() if p.requires_grad), torch.device("cpu"))
    return CudaDevice(device) if device.type == "cuda" else None


def apart(device: Device | None) -> AbstractContextManager[Any]:
    """What is queued inside goes into the device's queue for communication, where there is a device."""
    return nullcontext() if device is None else device.apart()
