"""PACE under DistributedDataParallel: for jobs, and frameworks, that wrap the model in it themselves."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.control.options import Mode, WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.event_log import log
from pace.runtime.gates.data_parallel import Carrier, refuse_unfit
from pace.runtime.gates.gated_param_groups import gate_param_groups
from pace.runtime.gates.gated_state import gate_state, ungate_state
from pace.runtime.gates.routed_calls import route
from pace.runtime.optimizer.live_wrappers import weakly
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.replanning import Replanning
from pace.runtime.torch import WrapperArguments
from pace.runtime.transports.compression import Compression
from pace.runtime.transports.transport import Order

__all__ = ["AttachedOptimizer", "attach", "attached"]


def attach(
    ddp_model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    schedule: Schedule | str | Path | None = None,
    service: str | None = None,
    job: str | None = None,
    api_key: str | None = None,
    credit_bytes: int | None = None,
    compression: Compression = "none",
    mode: Mode = "auto",
    order: Order = "auto",
    timeout_s: float = 300.0,
    replanning: Replanning | None = None,
) -> "AttachedOptimizer":
    """Have PACE sum the gradients of a model in DistributedDataParallel, and update it without a barrier.

    The training loop stays as it is: it goes on with the same model and the same optimizer, whose ``step``
    and ``zero_grad`` are PACE's from now on. Every rank must call it alike, before a forward pass.

    Parameters
    ----------
    ddp_model
        The DistributedDataParallel, or what ``torch.compile`` made of it.
    optimizer
        Updates all parameters that want gradients.
    schedule, service, job, api_key, credit_bytes, compression, mode, order, timeout_s, replanning
        As for ``pace.runtime.torch.DistributedOptimizer``.

    Returns
    -------
    The wrapper, for ``report()``, ``synchronize()`` and ``close()``. The loop may use it in the optimizer's
    place, and need not keep it.

    Raises
    ------
    InvalidOptions, InvalidUse
        When the arguments, the optimizer or the model do not fit: the message has the reason.
    ScheduleMismatch
        When the schedule was made for another model or world, or the ranks differ.
    """
    inner = getattr(ddp_model, "_orig_mod", ddp_model)
    if not isinstance(inner, DistributedDataParallel):
        raise InvalidOptions(
            f"ddp_model is of type {type(inner).__name__}; a torch DistributedDataParallel is needed:"
            " for a model without one use pace.runtime.torch.DistributedOptimizer"
        )
    if attached(inner) is not None:
        raise InvalidUse("PACE is attached to this model already: close() the wrapper before")
    if inner is not ddp_model and mode != "barrier":
        log.warning(
            "pace.barrier_mode",
            reason="the model was compiled around DistributedDataParallel, so what it uses cannot be seen:"
            " compile the model and wrap the result in DistributedDataParallel for mode='overlap'",
        )
        mode = "barrier"
    arguments = WrapperArguments(
        schedule=schedule,
        service=service,
        job=job,
        api_key=api_key,
        credit_bytes=credit_bytes,
        compression=compression,
        mode=mode,
        order=order,
        timeout_s=timeout_s,
        replanning=replanning,
        process_group=inner.process_group,
        broadcast_parameters=False,
        own_buffers=True,
    )
    return AttachedOptimizer(optimizer, inner, arguments)


def attached(ddp_model: nn.Module) -> "AttachedOptimizer | None":
    """Return the wrapper of a model that PACE is attached to; None without one."""
    inner = getattr(ddp_model, "_orig_mod", ddp_model)
    return _wrappers.get(inner) if isinstance(inner, nn.Module) else None


class AttachedOptimizer(WrappedOptimizer):
    """What ``attach`` returns; it lives as long as the model, or until ``close()``."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parallel: DistributedDataParallel,
        arguments: WrapperArguments,
    ) -> None:
        self._closed = True  # until it is complete
        self._stepping = False
        self._undo: list[Callable[[], Any]] = []
        self._carrier = carrier = Carrier(parallel)
        self._parallel = weakref.ref(parallel)
        model: nn.Module = parallel.module
        transport = arguments.connect(model)
        prepare = arguments.preparation(transport)

        def fitting() -> tuple[WrapperOptions, PlanSource]:
            refuse_unfit(parallel, optimizer)
            return prepare()

        with released_on_failure(transport):
            super().__init__(optimizer, model, transport=transport, prepare=fitting)
        # Last: until here the loop's own calls have no effect on the runtime.
        carrier.stand_aside()
        gate = _Gating(self)
        gate(optimizer)
        self._undo = [
            carrier.close,
            route(optimizer, "step", _while_open(self, "step")),
            route(optimizer, "zero_grad", _while_open(self, "zero_grad")),
            lambda: ungate_state(optimizer),
            optimizer.register_load_state_dict_post_hook(gate).remove,
        ]
        _wrappers[parallel] = self

    @property
    def busy(self) -> bool:
        """Whether calls of the optimizer's methods are the wrapper's own, or it is closed."""
        return self._stepping or self._closed

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one optimizer step; see ``WrappedOptimizer``.

        Raises
        ------
        InvalidUse
            Also after a backward pass in ``no_sync()``, whose gradients no rank has sent.
        """
        self._stepping = True
        try:
            return super().step(closure)
        finally:
            self._stepping = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """DistributedDataParallel's own ``no_sync``, where forward passes count."""
        parallel = self._parallel()
        if parallel is None:
            raise InvalidUse("the model is gone")
        with parallel.no_sync():
            yield

    def _close(self, *, linger: bool, reason: str | None = None, drain: bool = True) -> None:
        try:
            super()._close(linger=linger, reason=reason, drain=drain)
        finally:
            undo, self._undo = self._undo, []
            for each in reversed(undo):
                each()
            parallel = self._parallel()
            if parallel is not None and _wrappers.get(parallel) is self:
                del _wrappers[parallel]


def _while_open(wrapper: AttachedOptimizer, name: str) -> Callable[..., Any]:
    """Return what calls a wrapper's method in the place of the optimizer's own, as long as it is open."""
    reference = weakref.ref(wrapper)

    def call(own: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        alive = reference()
        method = own if alive is None or alive.busy else getattr(alive, name)
        return method(*arguments, **named)

    return call


class _Gating:
    """Has parameter groups and state, which ``load_state_dict`` replaces, wait for updates."""

    def __init__(self, wrapper: AttachedOptimizer) -> None:
        self._finish = weakly(wrapper.finish_updates)

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        gate_param_groups(optimizer, self._finish)
        gate_state(optimizer, self._finish)


# Wrappers live as long as their models, whoever keeps what ``attach`` returned.
_wrappers: "weakref.WeakKeyDictionary[nn.Module, AttachedOptimizer]" = weakref.WeakKeyDictionary()
