"""Capture on a device that runs behind its host: what marks cost the host is in no op of the profile."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pace.runtime.profiler import Capture
from tests.runtime.capture.captures import ALLREDUCE

LAUNCH_S = 8e-6
STAMP_S = 4e-6
HOOK_S = 16e-6
LAYERS = 40


class SimulatedDevice:
    """A host and its device in simulated time: the host queues stamps and kernels, and waits for none.

    Attributes
    ----------
    runs_behind
        See ``Clock``.
    """

    def __init__(self, *, runs_behind: bool) -> None:
        self.runs_behind = runs_behind
        self._host_s, self._device_s = 3.0, 0.0  # their clocks have different zeros

    def compute(self, host_s: float, kernel_s: float) -> None:
        """Queue a kernel, for which the host needs `host_s`."""
        self._host_s += host_s
        self._device_s = max(self._device_s, self._host_s - 3.0 + LAUNCH_S) + kernel_s

    def now(self) -> float:
        """See ``Clock``."""
        self.compute(STAMP_S, 0.0)
        return self._device_s

    def seconds(self, stamps: Sequence[float]) -> list[float]:
        """See ``Clock``."""
        return [stamp - stamps[0] for stamp in stamps]

    def reserve(self, count: int) -> None:
        """See ``Clock``."""

    def synchronize(self) -> None:
        """Make the host wait for the device, as a loop does that reads its loss."""
        self._host_s = max(self._host_s, self._device_s + 3.0)

    def finish_hook(self) -> int:
        """Return the host's time in ns, which a hook reads last; then the host goes on with its work."""
        read_ns = round(self._host_s * 1e9)
        self._host_s += HOOK_S
        return read_ns


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, layer: "Layer") -> torch.Tensor:
        context.layer = layer
        layer.device.compute(*layer.forward_s)
        return x * 1.0

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        layer = context.layer
        layer.device.compute(*layer.backward_s)
        return gradients[0] * 1.0, None


class Layer(nn.Module):
    """Takes the host and the device so many seconds in each pass."""

    def __init__(
        self, device: SimulatedDevice, forward_s: tuple[float, float], backward_s: tuple[float, float]
    ) -> None:
        super().__init__()
        self.device, self.forward_s, self.backward_s = device, forward_s, backward_s
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale the input."""
        found: torch.Tensor = _Work.apply(x * self.scale, self)  # type: ignore[no-untyped-call]  # torch's
        return found


CaptureLoop = Callable[[bool], tuple[Capture, list[Layer]]]


@pytest.fixture
def capture_loop(monkeypatch: pytest.MonkeyPatch) -> CaptureLoop:
    """Return what captures a loop whose host is slow in the forward pass, and its device in the backward."""

    def capture(runs_behind: bool) -> tuple[Capture, list[Layer]]:
        device = SimulatedDevice(runs_behind=runs_behind)
        monkeypatch.setattr("pace.runtime.capture.recorder.clock_for", lambda _model: device)
        monkeypatch.setattr("pace.runtime.capture.trace.perf_counter_ns", device.finish_hook)
        draw = np.random.default_rng(3)
        layers = [
            Layer(device, (draw.uniform(60e-6, 140e-6), 10e-6), (30e-6, draw.uniform(200e-6, 600e-6)))
            for _ in range(LAYERS)
        ]
        model = nn.Sequential(*layers)
        with Capture(model, iterations=3, warmup=1) as found:
            while not found.finished:
                model(torch.ones(3)).sum().backward()
                device.synchronize()
                found.step()
        return found, layers

    return capture


def test_ops_last_as_long_as_without_marks(capture_loop: CaptureLoop) -> None:
    """The host waits for no mark in the profile, nor does the device where it is busy anyway."""
    capture, layers = capture_loop(True)
    assert capture.report.overhead > 0.05
    assert capture.report.error == pytest.approx(0.0, abs=1e-6)
    profile = capture.profile("simulated", workers=2, allreduce=ALLREDUCE)
    took_s = {op.name: op.duration_s for op in profile.ops}
    forward_s = sum(duration_s for name, duration_s in took_s.items() if name.startswith("fwd/"))
    assert forward_s == pytest.approx(sum(layer.forward_s[0] for layer in layers), rel=0.02)
    for number, layer in enumerate(layers[1:-1], start=1):
        assert took_s[f"fwd/{number}"] == pytest.approx(layer.forward_s[0], abs=10e-6)
        assert took_s[f"bwd/{number}"] == pytest.approx(layer.backward_s[1], rel=0.02)


def test_compute_in_the_calling_thread_keeps_what_was_measured(capture_loop: CaptureLoop) -> None:
    """A clock that does not run behind cannot tell marks from work, so nothing is taken away."""
    capture, _ = capture_loop(False)
    report = capture.report
    assert report.error == pytest.approx(report.overhead, rel=0.05)
    assert report.error > 0.05
