"""Clocks that time compute, and devices (GPUs), to which the host queues work.

The host queues work and continues. So a gradient is ready when the device has computed it, not when its hook
runs. If a forward pass needs a sum, the device waits for it, not the host.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from pace.errors import InvalidOptions


class Clock(Protocol):
    """Takes stamps of moments at little cost, and converts them to seconds later.

    Attributes
    ----------
    runs_behind
        Whether what is timed runs behind the host, which queues it.
    """

    runs_behind: bool

    def now(self) -> Any:
        """Return a stamp of this moment."""

    def seconds(self, stamps: Sequence[Any]) -> list[float]:
        """Convert stamps to seconds since the first of them."""

    def reserve(self, count: int) -> None:
        """Prepare to take so many stamps, which then cost less."""


class HostClock:
    """The host's monotonic clock in nanoseconds, for compute that runs in the calling thread."""

    runs_behind = False

    def now(self) -> int:
        """Return a stamp of this moment."""
        return time.perf_counter_ns()

    def seconds(self, stamps: Sequence[int]) -> list[float]:
        """Turn stamps into seconds since the first of them."""
        return [(stamp - stamps[0]) * 1e-9 for stamp in stamps]

    def reserve(self, count: int) -> None:
        """Do nothing; see ``Clock``."""


class CudaMoment:
    """A moment on a stream; its event is used again once nothing refers to the moment.

    So events are made once, not at every moment. Whatever waits for a moment is done with its event when the
    call returns.
    """

    __slots__ = ("_event", "_unused")

    def __init__(self, unused: "deque[torch.cuda.Event]", stream: torch.cuda.Stream) -> None:
        self._unused = unused
        try:
            self._event = unused.pop()
        except IndexError:
            make: Any = torch.cuda.Event  # untyped in torch
            self._event = make(enable_timing=True, blocking=True)
        self._event.record(stream)

    def __del__(self) -> None:
        self._unused.append(self._event)

    def wait(self, stream: torch.cuda.Stream) -> None:
        """Make a stream wait for this moment; the host does not."""
        self._event.wait(stream)

    def reached(self) -> bool:
        """Return whether the device has reached this moment."""
        event: Any = self._event  # untyped in torch
        return bool(event.query())

    def synchronize(self) -> None:
        """Sleep until the device has reached this moment."""
        self._event.synchronize()

    def seconds_to(self, later: "CudaMoment") -> float:
        """Return how long after this moment another one is, once the device has reached both."""
        return float(self._event.elapsed_time(later._event)) * 1e-3


class CudaClock:
    """Events on the current stream, which record when the device reaches them, not the host.

    The host queues kernels ahead of the device, so a host clock would time the queueing. Stamps are read
    after all work is queued; until then nothing here waits for the device.
    """

    runs_behind = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._unused: deque[torch.cuda.Event] = deque()

    def now(self) -> CudaMoment:
        """Return a stamp of this moment in the current stream."""
        # Name the device: the model's device may not be the current one.
        return CudaMoment(self._unused, torch.cuda.current_stream(self._device))

    def seconds(self, stamps: Sequence[CudaMoment]) -> list[float]:
        """Wait for the last stamp, and convert all to seconds since the first."""
        stamps[-1].synchronize()
        return [stamps[0].seconds_to(stamp) for stamp in stamps]

    def reserve(self, count: int) -> None:
        """Make the events of so many stamps; torch makes an event when it is first recorded."""
        stream = torch.cuda.current_stream(self._device)
        moments = [CudaMoment(self._unused, stream) for _ in range(count - len(self._unused))]
        moments.clear()


def clock_for(model: torch.nn.Module) -> Clock:
    """Return the clock of the device that holds the model's parameters.

    Raises
    ------
    InvalidOptions
        If the parameters are on several devices, which one stream's events cannot order, or on an unknown
        device.
    """
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        shown = ", ".join(sorted(map(str, devices)))
        raise InvalidOptions(f"the model's parameters are on several devices ({shown}): capture needs one")
    device = next(iter(devices), torch.device("cpu"))
    if device.type == "cuda":
        return CudaClock(device)
    if device.type == "cpu":
        return HostClock()
    raise InvalidOptions(f'no clock for device "{device}": capture works on cpu and cuda')


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
