"""Clocks that time compute: the host's clock for CPU work, events of a stream for CUDA work."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from pace.errors import InvalidOptions


class Clock(Protocol):
    """Takes stamps of moments at little cost, and converts them to seconds later."""

    def now(self) -> Any:
        """Return a stamp of this moment."""

    def seconds(self, stamps: Sequence[Any]) -> list[float]:
        """Convert stamps to seconds since the first of them."""


class HostClock:
    """The host's monotonic clock in nanoseconds, for compute that runs in the calling thread."""

    def now(self) -> int:
        """Return a stamp of this moment."""
        return time.perf_counter_ns()

    def seconds(self, stamps: Sequence[int]) -> list[float]:
        """Turn stamps into seconds since the first of them."""
        return [(stamp - stamps[0]) * 1e-9 for stamp in stamps]


class CudaClock:
    """Events on the current stream, which record when the device reaches them, not the host.

    The host queues kernels ahead of the device, so a host clock would time the queueing. Stamps are read
    after all work is queued; until then nothing here waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event:
        """Return a stamp of this moment in the current stream."""
        make: Any = torch.cuda.Event  # untyped in torch
        event: torch.cuda.Event = make(enable_timing=True, blocking=True)
        # Name the device: the model's device may not be the current one.
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, stamps: Sequence[torch.cuda.Event]) -> list[float]:
        """Wait for the last stamp, and convert all to seconds since the first."""
        stamps[-1].synchronize()
        return [stamps[0].elapsed_time(stamp) * 1e-3 for stamp in stamps]


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
