"""Captures the profile of a training job around the user's own training loop.

::

    with Capture(model, optimizer) as capture:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_function(model(inputs), targets).backward()
            optimizer.step()
            if capture.step():
                break
    profile = capture.profile("my-model", workers=8, allreduce=measure_allreduce(transport).document)

Iterations run alternately with hooks (their intervals give the ops' durations) and without (what the
durations must add up to); ``Capture.report`` holds both. No gradient may be sent meanwhile: give the
model and the optimizer as they are before a wrapper for distributed training takes them.
"""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import structlog
import torch
from torch.nn.parallel import DistributedDataParallel

from pace.allreduce import AllReduce
from pace.errors import InvalidOptions, InvalidProfile
from pace.profile import DType, Gradient, Profile
from pace.runtime.clock import clock_for
from pace.runtime.trace import Trace, Tracer
from pace.runtime.window import Granularity, Window, lay_out, middle_half
from pace.version import __version__

INEXACT = 0.1

log = structlog.get_logger("pace.runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """How far a captured profile can be trusted.

    Attributes
    ----------
    profile_s
        The profile's compute time: the sum of its ops' durations.
    plain_iteration_s
        Mean of the iterations without hooks, in between the captured ones; of their middle half by time.
    captured_iteration_s
        The same of those that ran with hooks, time that belongs to no op included.
    num_iterations
        Captured iterations that the durations come from.
    num_dropped
        Captured iterations that did other work than the first and were left out.
    """

    profile_s: float
    plain_iteration_s: float
    captured_iteration_s: float
    num_iterations: int
    num_dropped: int

    @property
    def error(self) -> float:
        """The profile's compute time against the plain iteration: 0.02 is 2 % too long."""
        return self.profile_s / self.plain_iteration_s - 1

    @property
    def overhead(self) -> float:
        """What capturing adds to an iteration while it lasts: 0.05 is 5 %."""
        return self.captured_iteration_s / self.plain_iteration_s - 1

    def __str__(self) -> str:
        dropped = f", {self.num_dropped} dropped" if self.num_dropped else ""
        return (
            f"plain iteration {self.plain_iteration_s * 1e3:.2f} ms, profile {self.profile_s * 1e3:.2f} ms "
            f"({self.error:+.1%}); capturing costs {self.overhead:+.1%}; "
            f"{self.num_iterations} iterations captured{dropped}"
        )


class Capture:
    """Captures a profile while a training loop runs; a context manager.

    Training goes on from where it was when the context was entered: parameters, buffers, the
    optimizer's state and the random generators are put back when it ends.

    Parameters
    ----------
    model
        On the CPU or on one CUDA device. ``DistributedDataParallel`` is looked through, and sends
        nothing while the context lasts. Capture before ``torch.compile``, which hooks take apart.
    optimizer
        Its state is put back at the end; None if the loop has none.
    iterations
        How many iterations to capture, and as many plain ones in between.
    warmup
        How many iterations to let pass first.
    granularity
        "module": an op for every module that computes something, and one for whatever a containing
        module computes between two of them. "operator": an op for every function of torch that the
        forward pass calls and for every node of the autograd graph; costs more time to capture.

    Raises
    ------
    InvalidOptions
        If the model is compiled, sharded or on several devices, or the optimizer sends gradients itself.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        iterations: int = 20,
        warmup: int = 3,
        granularity: Granularity = "module",
    ) -> None:
        if iterations < 1 or warmup < 1:
            raise InvalidOptions(f"iterations={iterations} and warmup={warmup}: each must be at least 1")
        if hasattr(optimizer, "synchronize"):
            raise InvalidOptions(
                f"{type(optimizer).__name__} sends gradients: capture before wrapping the optimizer"
            )
        self._wrapper = model if isinstance(model, DistributedDataParallel) else None
        if hasattr(model, "_orig_mod"):
            raise InvalidOptions(
                "the model is compiled: capture it before torch.compile, which hooks take apart"
            )
        if any(hasattr(parameter, "placements") for parameter in model.parameters()):
            raise InvalidOptions("the model's parameters are sharded: capture is for whole models")
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        assert isinstance(inner, torch.nn.Module)
        self._model = inner
        self._optimizer = optimizer
        self._granularity: Granularity = granularity
        self._clock = clock_for(self._model)
        self._tracer = Tracer(self._model, self._clock, operators=granularity == "operator")
        self._num_warmup = warmup
        self._num_iterations = iterations
        self._contexts = ExitStack()
        self._iteration = 0
        self._tracing = False
        self._window: Window | None = None
        self._traces: list[Trace] = []
        self._plain: list[tuple[Any, Any]] = []
        self._started: Any = None

    def __enter__(self) -> Self:
        self._contexts.callback(_restore, *_snapshot(self._model, self._optimizer))
        if self._wrapper is not None:
            self._contexts.enter_context(self._wrapper.no_sync())
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tracing:  # the loop ended early, inside a traced iteration
            self._tracer.stop()
            self._tracing = False
        self._contexts.close()

    @property
    def finished(self) -> bool:
        """Whether all iterations have been captured."""
        return self._iteration > self._num_warmup + 2 * self._num_iterations

    def step(self) -> bool:
        """End an iteration; return whether capture has all that it needs."""
        if self.finished:
            return True
        self._end()
        self._iteration += 1
        if not self.finished:
            self._begin()
        return self.finished

    def _begin(self) -> None:
        # Warm-up, one full trace, then captured and plain iterations in turn, so that both see the
        # same machine: a clock rate or a neighbour that changes slowly disturbs both alike.
        number = self._iteration - self._num_warmup
        self._tracing = number == 0 or (number > 0 and number % 2 == 1)
        if self._tracing:
            self._tracer.start(None if self._window is None else self._window.nodes_to_mark)
        else:
            self._started = self._clock.now()

    def _end(self) -> None:
        if not self._tracing:
            ended = self._clock.now()
            if self._iteration > self._num_warmup:
                self._plain.append((self._started, ended))
            return
        self._tracing = False
        trace = self._tracer.stop()
        if self._window is None:
            self._window = lay_out(trace, self._model, self._granularity)
        else:
            self._traces.append(trace)

    @property
    def report(self) -> CaptureReport:
        """The profile's compute time against plain iterations, and what capturing cost."""
        window, intervals_s = self._measurement()
        ops = window.measured(intervals_s)
        return CaptureReport(
            profile_s=sum(op.duration_s for op in ops),
            plain_iteration_s=_typical(np.array([self._clock.seconds(pair)[1] for pair in self._plain])),
            captured_iteration_s=_typical(intervals_s.sum(axis=1)),
            num_iterations=len(intervals_s),
            num_dropped=len(self._traces) - len(intervals_s),
        )

    def profile(
        self, name: str, *, workers: int, allreduce: AllReduce, metadata: Mapping[str, Any] | None = None
    ) -> Profile:
        """Build the profile.

        Parameters
        ----------
        name
            The profile's name.
        workers
            How many workers will train.
        allreduce
            What an all-reduce between them costs; see ``pace.runtime.allreduce_cost``.
        metadata
            Added to what is recorded about the capture itself.

        Raises
        ------
        InvalidProfile
            If the loop ended before all iterations were captured, or most were not alike.

        Notes
        -----
        Logs a warning when the profile's compute time is more than 10 % off the plain iterations.
        """
        window, intervals_s = self._measurement()
        ops = window.measured(intervals_s)
        report = self.report
        if abs(report.error) > INEXACT:
            log.warning("pace.capture_inexact", profile=name, report=str(report))
        parameters = dict(self._model.named_parameters())
        last_backward = [op.name for op in ops if op.name.startswith("bwd/")]
        # All-reduce carries a parameter that got no gradient as well: that it gets none is known last.
        producers = window.producers | dict.fromkeys(
            window.unused, last_backward[-1] if last_backward else ""
        )
        return Profile(
            name=name,
            workers=workers,
            ops=tuple(ops),
            gradients=tuple(
                Gradient(
                    name=gradient,
                    size_bytes=parameters[gradient].numel() * parameters[gradient].element_size(),
                    dtype=_dtype(gradient, parameters[gradient]),
                    producer=producer,
                )
                for gradient, producer in producers.items()
                if producer
            ),
            allreduce=allreduce,
            metadata={
                "source": "measured",
                "captured_by": f"pace {__version__}, torch {torch.__version__}",
                "device": _device_name(self._model),
                "granularity": self._granularity,
                "iterations": report.num_iterations,
                "plain_iteration_s": report.plain_iteration_s,
                "capture_error": report.error,
                "capture_overhead": report.overhead,
                "unused_parameters": list(window.unused),
                **(metadata or {}),
            },
        )

    def _measurement(self) -> tuple[Window, npt.NDArray[np.float64]]:
        if not self.finished or self._window is None:
            needed = self._num_warmup + 1 + 2 * self._num_iterations
            raise InvalidProfile(f"capture ended after {self._iteration} of {needed} iterations")
        like = [trace for trace in self._traces if tuple(trace.places) == self._window.places]
        if 2 * len(like) < len(self._traces):
            raise InvalidProfile(
                f"{len(self._traces) - len(like)} of {len(self._traces)} iterations did other work than the "
                "first one: a profile needs iterations that are alike"
            )
        stamps = [self._clock.seconds([mark.stamp for mark in trace.marks]) for trace in like]
        return self._window, np.diff(np.array(stamps), axis=1)


def _typical(totals_s: npt.NDArray[np.float64]) -> float:
    return float(totals_s[middle_half(totals_s)].mean())


def _dtype(name: str, parameter: torch.nn.Parameter) -> DType:
    dtype = str(parameter.dtype).removeprefix("torch.")
    known = {"float64", "float32", "float16", "bfloat16"}
    if dtype not in known:
        raise InvalidProfile(
            f'gradient "{name}" has dtype {dtype}; expected one of {", ".join(sorted(known))}'
        )
    return dtype  # type: ignore[return-value]  # mypy does not narrow a str by a set of literals


def _device_name(model: torch.nn.Module) -> str:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads"


def _snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> tuple[Any, ...]:
    return (
        model,
        {name: value.detach().clone() for name, value in _tensors(model)},
        optimizer,
        copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None,
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    )


def _restore(
    model: torch.nn.Module,
    tensors: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer | None,
    state: dict[str, Any] | None,
    cpu_generator: torch.Tensor,
    cuda_generators: list[torch.Tensor],
) -> None:
    with torch.no_grad():
        for name, value in _tensors(model):
            value.copy_(tensors[name])
    for parameter in model.parameters():
        parameter.grad = None
    if optimizer is not None and state is not None:
        optimizer.load_state_dict(state)
    torch.set_rng_state(cpu_generator)
    if cuda_generators:
        torch.cuda.set_rng_state_all(cuda_generators)


def _tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
