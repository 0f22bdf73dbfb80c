"""PACE under DistributedDataParallel, for jobs and frameworks that wrap the model in it."""

import contextlib
from collections.abc import Iterator
from typing import Unpack

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.entry_point import TrainingOptions, prepare, refuse_unknown_arguments
from pace.runtime.event_log import log
from pace.runtime.gates.data_parallel import DataParallelWrapper, refuse_unfit
from pace.runtime.optimizer.wrapped_model_optimizer import WrappedModelOptimizer, wrapper_of
from pace.runtime.options import AllReduce, Plan, Replanning, Tune
from pace.runtime.torch import connect

__all__ = ["AllReduce", "AttachedOptimizer", "Plan", "Replanning", "Tune", "attach", "attached"]


def attach(
    ddp_model: nn.Module,
    optimizer: torch.optim.Optimizer,
    **training: Unpack[TrainingOptions],
) -> "AttachedOptimizer":
    """Let PACE sum the gradients of a model in DistributedDataParallel and update it without a barrier.

    The training loop stays unchanged. It keeps the same model and optimizer, but the optimizer's ``step`` and
    ``zero_grad`` become PACE's. Every rank must make the same call, before a forward pass.

    Parameters
    ----------
    ddp_model
        The model in DistributedDataParallel, compiled by ``torch.compile`` or not.
    optimizer
        The optimizer of all parameters that require gradients.
    plan, communication, mode, timeout_s
        The options of ``pace.runtime.torch.DistributedOptimizer``; `communication` is ``AllReduce(...)``.

    Returns
    -------
    The wrapper, for ``report()``, ``synchronize()`` and ``close()``. The loop may use it instead of the
    optimizer, and need not keep it.

    Raises
    ------
    InvalidOptions, InvalidUse
        If the arguments, the optimizer or the model do not fit; the message has the reason.
    ScheduleMismatch
        If the schedule is for another model or number of ranks, or ranks have different ones.
    """
    refuse_unknown_arguments(attach, training)
    inner = getattr(ddp_model, "_orig_mod", ddp_model)
    if not isinstance(inner, DistributedDataParallel):
        raise InvalidOptions(
            f"ddp_model is of type {type(inner).__name__}; a torch DistributedDataParallel is needed:"
            " for a model without one use pace.runtime.torch.DistributedOptimizer"
        )
    if attached(inner) is not None:
        raise InvalidUse("PACE is already attached to this model: close() that wrapper first")
    if inner is not ddp_model and training.get("mode") == "check":
        raise InvalidOptions(
            'mode is "check", but the model was compiled around DistributedDataParallel, so no update can be'
            ' pending: use mode="barrier", which needs no check'
        )
    if inner is not ddp_model and training.get("mode") != "barrier":
        log.warning(
            "pace.barrier_mode",
            reason="the model was compiled around DistributedDataParallel, so PACE cannot see which"
            " parameters its code uses",
        )
        training["mode"] = "barrier"
    return AttachedOptimizer(optimizer, inner, training)


def attached(ddp_model: nn.Module) -> "AttachedOptimizer | None":
    """Return the wrapper of a model to which PACE is attached, else None."""
    wrapper = wrapper_of(ddp_model)
    return wrapper if isinstance(wrapper, AttachedOptimizer) else None


class AttachedOptimizer(WrappedModelOptimizer):
    """The wrapper that ``attach`` returns; it lives as long as the model, or until ``close()``."""

    _remedy_of_waits = (
        "sharded updates wait less: leave out DistributedDataParallel, and pass"
        ' communication=AllReduce(sharding="auto") to DistributedOptimizer'
    )

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parallel: DistributedDataParallel,
        training: TrainingOptions,
    ) -> None:
        self._closed = True  # until it is complete
        model_wrapper = DataParallelWrapper(parallel)
        model: nn.Module = parallel.module
        transport = connect(model, training, parallel.process_group)

        def checked() -> tuple[WrapperOptions, PlanSource]:
            refuse_unfit(parallel, optimizer)
            return prepare(transport, training)

        super().__init__(optimizer, parallel, model, model_wrapper, transport=transport, prepare=checked)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """As DistributedDataParallel's ``no_sync``: the forward passes inside count."""
        parallel = self._whole()
        if not isinstance(parallel, DistributedDataParallel):
            raise InvalidUse("the model no longer exists: keep a reference to it")
        with parallel.no_sync():
            yield
