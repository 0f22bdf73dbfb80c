"""Captures the profile of a training job: ``Capture`` around its loop, ``measure_allreduce`` on its network.

::

    with Capture(model, optimizer) as capture:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_function(model(inputs), targets).backward()
            optimizer.step()
            if capture.step():
                break
    measured = measure_allreduce(torch_network(), largest_bytes=gradient_bytes(model))
    profile = capture.profile("my-model", workers=8, allreduce=measured.document)

Iterations run alternately with hooks (their intervals give the ops' durations) and without (what the
durations must add up to); ``Capture.report`` holds both. No gradient may be sent meanwhile: give the
model and the optimizer as they are before a wrapper for distributed training takes them.
"""

import copy
import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch.nn.parallel import DistributedDataParallel

from pace.documents.collective_costs import AllReduce, HalfCost
from pace.documents.load import Load
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.runtime.capture.allreduce_cost import (
    AllReduceMeasurement,
    gradient_bytes,
    horovod_network,
    measure_allreduce,
    torch_network,
)
from pace.runtime.capture.contention import Contention, measure_contention
from pace.runtime.capture.recorder import CaptureReport, Recorder, scaled, warn_if_inexact
from pace.runtime.capture.window import Granularity

__all__ = [
    "AllReduceMeasurement",
    "Capture",
    "CaptureReport",
    "Contention",
    "gradient_bytes",
    "horovod_network",
    "measure_allreduce",
    "measure_contention",
    "torch_network",
]


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
        if hasattr(optimizer, "synchronize"):
            raise InvalidOptions(
                f"{type(optimizer).__name__} sends gradients: capture before wrapping the optimizer"
            )
        self._wrapper = model if isinstance(model, DistributedDataParallel) else None
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        assert isinstance(inner, torch.nn.Module)
        self._model = inner
        self._optimizer = optimizer
        self._recorder = Recorder(inner, iterations=iterations, warmup=warmup, granularity=granularity)
        self._contexts = ExitStack()

    def __enter__(self) -> Self:
        self._contexts.callback(_restore, *_snapshot(self._model, self._optimizer))
        if self._wrapper is not None:
            self._contexts.enter_context(self._wrapper.no_sync())
        self._recorder.begin()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._recorder.stop()  # the loop may have ended early, inside a traced iteration
        self._contexts.close()

    @property
    def finished(self) -> bool:
        """Whether all iterations have been captured."""
        return self._recorder.finished

    def step(self) -> bool:
        """End an iteration; return whether capture has all that it needs."""
        if not self.finished:
            self._recorder.end()
            if not self.finished:
                self._recorder.begin()
        return self.finished

    @property
    def report(self) -> CaptureReport:
        """The profile's compute time against plain iterations, and what capturing cost."""
        return self._recorder.report

    def profile(
        self,
        name: str,
        *,
        workers: int,
        allreduce: AllReduce,
        reduce_scatter: HalfCost | None = None,
        all_gather: HalfCost | None = None,
        compute_slowdown: float = 1.0,
        load: Load | None = None,
        iteration_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Profile:
        """Build the profile.

        Parameters
        ----------
        name
            The profile's name.
        workers
            How many workers will train.
        allreduce
            What an all-reduce between them costs; see ``measure_allreduce``.
        reduce_scatter, all_gather
            What its halves cost, where they were measured; see ``torch_network``.
        compute_slowdown
            How much slower compute runs beside all-reduces; see ``measure_contention``.
        load
            How much longer all-reduces take while compute runs (``Contention.load``).
        iteration_s
            Seconds in which the slowest rank computes an iteration (``Contention.iteration_s``). All
            durations are scaled to add up to it. Without it, they are those of this rank; if ranks are slow
            in turn, iterations take longer than predicted.
        metadata
            Added to what is recorded about the capture itself.

        Raises
        ------
        InvalidProfile
            If the loop ended before all iterations were captured, or most were not alike.
        InvalidOptions
            If `iteration_s` is no time.

        Notes
        -----
        The profile's `update` says whether the loop looked at all gradients before the optimizer's step in
        the last iteration of the warm-up, as clipping by the global norm and a GradScaler do.

        Logs a warning when the profile's compute time is more than 10 % off the plain iterations.
        """
        profile = self._recorder.profile(
            name,
            workers=workers,
            allreduce=allreduce,
            reduce_scatter=reduce_scatter,
            all_gather=all_gather,
            compute_slowdown=compute_slowdown,
            load=load,
            metadata=metadata,
        )
        warn_if_inexact(profile)
        if iteration_s is None:
            return profile
        if not 0 < iteration_s < math.inf:
            raise InvalidOptions(f"iteration_s={iteration_s}: expected seconds, more than 0")
        return scaled(profile, iteration_s / sum(op.duration_s for op in profile.ops))


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
