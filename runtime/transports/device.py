"""Devices (GPUs), to which the host queues work: how work in one queue waits for work in another.

The host queues work and continues. So a gradient is ready when the device has computed it, not when its hook
runs. If a forward pass needs a sum, the device waits for it, not the host.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from pace.runtime.transports.clock import Clock, CudaClock, CudaMoment, HostClock


class Device(Clock, Protocol):
    """A device's queues: the one that the calling thread fills, and one for communication."""

    def now(self) -> Any:
        """Return the moment at which the device reaches the work that the calling thread queues next."""

    def wait_for(self, moment: Any) -> None:
        """Make the device wait for a moment before the next work of the calling thread; returns at once."""

    def reached(self, moment: Any) -> bool:
        """Return whether the device has reached a moment."""

    def apart(self) -> AbstractContextManager[Any]:
        """Inside, queue into the communication queue: its work and compute do not wait for one another."""

    def note_queue(self) -> None:
        """Note the queue that the calling thread, which trains, fills now."""

    def in_noted_queue(self) -> AbstractContextManager[Any]:
        """Inside, another thread queues into the noted queue, in order with the training thread's work."""


class CudaDevice(CudaClock):
    """One GPU, with a separate stream for communication.

    Its kernels have priority over those of compute, as they hold up all ranks and need few of the device's
    processors.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        make: Any = torch.cuda.Stream  # untyped in torch
        self._communication: torch.cuda.Stream = make(device, priority=-1)
        self._noted = torch.cuda.current_stream(device)

    def wait_for(self, moment: CudaMoment) -> None:
        """Make the current stream wait for a moment of any stream; see ``Device``."""
        moment.wait(torch.cuda.current_stream(self._device))

    def reached(self, moment: CudaMoment) -> bool:
        """Ask the moment's event; see ``Device``."""
        return moment.reached()

    def apart(self) -> AbstractContextManager[Any]:
        """Queue into the stream for communication; see ``Device``."""
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._communication)
        return stream

    def note_queue(self) -> None:
        """Note the current stream; see ``Device``."""
        self._noted = torch.cuda.current_stream(self._device)

    def in_noted_queue(self) -> AbstractContextManager[Any]:
        """Queue into the noted stream; see ``Device``."""
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._noted)
        return stream


def device_of(model: object) -> CudaDevice | None:
    """Return the device on which a model's gradients are computed; None if the host computes them.

    Also None if `model` is not a module: that is refused later, on all ranks.
    """
    if not isinstance(model, torch.nn.Module):
        return None
    device = next((p.device for p in model.parameters() if p.requires_grad), torch.device("cpu"))
    return CudaDevice(device) if device.type == "cuda" else None


def clock_of(device: Device | None) -> Clock:
    """Return the clock that times compute: the device's own, as its host only queues it, or the host's."""
    return HostClock() if device is None else device


def apart(device: Device | None) -> AbstractContextManager[Any]:
    """Inside, queue into the device's communication queue, if there is a device."""
    return nullcontext() if device is None else device.apart()
