"""PACE with Hugging Face Accelerate: one call after ``prepare()``.

Needs Accelerate (``pip install 'pace-scheduler[accelerate]'``).
"""

from typing import Unpack

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer, patch_optimizer_step
except ImportError as error:
    raise ImportError(
        "pace.runtime.accelerate needs Accelerate: pip install 'pace-scheduler[accelerate]'", name=error.name
    ) from error

from pace.errors import InvalidOptions
from pace.runtime.argument_checks import require_instance
from pace.runtime.ddp import AttachedOptimizer
from pace.runtime.ddp import attach as attach_to_ddp
from pace.runtime.entry_point import TrainingOptions, refuse_unknown_arguments
from pace.runtime.event_log import log
from pace.runtime.options import AllReduce, Plan, Replanning, Tune

__all__ = ["AllReduce", "Plan", "Replanning", "Tune", "attach"]


def attach(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    **training: Unpack[TrainingOptions],
) -> AttachedOptimizer | None:
    """Let PACE sum the gradients of a model that ``accelerator.prepare()`` returned.

    Parameters
    ----------
    model, optimizer
        What ``prepare()`` returned. The loop keeps using them.
    plan, communication, mode, timeout_s
        The options of ``pace.runtime.ddp.attach``.

    Returns
    -------
    The wrapper, for ``report()`` and ``close()``; None in a job of one process, which has nothing to sum.

    Raises
    ------
    InvalidOptions
        If the optimizer was not prepared, or the model is not in DistributedDataParallel.
    """
    refuse_unknown_arguments(attach, training)
    require_instance("accelerator", accelerator, Accelerator, "an Accelerator")
    if accelerator.num_processes == 1:
        log.info(
            "pace.not_attached",
            reason="the job has one process, so there is nothing to sum: torchrun starts several",
        )
        return None
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise InvalidOptions(
            f"optimizer is of type {type(optimizer).__name__}; what accelerator.prepare() returned is needed:"
            " call attach() after prepare()"
        )
    if not isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel):
        raise InvalidOptions(
            f"model is of type {type(model).__name__}; the DistributedDataParallel that accelerator.prepare()"
            " returned is needed"
        )
    wrapper = attach_to_ddp(model, optimizer.optimizer, **training)
    if optimizer.scaler is not None:
        # Accelerate puts its own step() in the optimizer's place for a moment, and what it found there back.
        optimizer._optimizer_original_step_method = optimizer.optimizer.step
        optimizer._optimizer_patched_step_method = patch_optimizer_step(optimizer, optimizer.optimizer.step)
    return wrapper
