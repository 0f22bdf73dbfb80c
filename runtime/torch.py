"""``DistributedOptimizer`` for torch.distributed."""

from functools import partial
from typing import Unpack

import torch
import torch.distributed as dist
from torch import nn

from pace.runtime.entry_point import (
    TrainingOptions,
    connecting_timeout_s,
    prepare,
    refuse_unknown_arguments,
)
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.options import AllReduce, Communication, GradientOp, Plan, Replanning, Tune
from pace.runtime.transports.gloo import GlooTransport

__all__ = [
    "AllReduce",
    "DistributedOptimizer",
    "Plan",
    "Replanning",
    "Tune",
]


class DistributedOptimizer(WrappedOptimizer):
    """Wraps a torch optimizer: sums gradients over all ranks by a schedule, without a barrier.

    Wrap the optimizer after the model is on its device and ``init_process_group`` was called. Do not wrap the
    model in DistributedDataParallel. Every rank must make the same call.

    Parameters
    ----------
    optimizer, model
        Your optimizer, and the module whose parameters it updates.
    plan
        What training follows: ``Plan(...)``, a schedule or a service that has it, or ``Tune(...)``, a search
        while it trains. Default: a simple plan, or the service's.
    communication
        What sums gradients: ``AllReduce()`` (default), or ``ParameterServers()`` or ``Mixed()`` of
        ``pace_servers.runtime``.
    mode
        When updates are applied. "overlap": before the parameter's next use. "barrier": in ``step()``, after
        all gradients have arrived. "check": as "overlap", but a use of a pending parameter that no guard sees
        is an error. "auto" (default): all ranks keep the fastest of plain operation, barrier and overlap.
    timeout_s
        Seconds without an answer of a peer after which an error is raised; 300 by default.
    op
        What happens to the ranks' gradients: "average" (default) or "sum".
    backward_passes_per_step
        Number of backward passes whose gradients are summed before they are sent; default: 1.
    max_grad_norm
        Norm to which all gradients together are clipped in every ``step()``; default: no clipping. A step
        whose norm is not finite changes nothing.
    broadcast_parameters
        Whether rank 0's parameters and buffers replace different ones of other ranks at the start (default).
        If False, a difference is an error.
    process_group
        Ranks that train together; default: all.

    Raises
    ------
    ScheduleMismatch
        If the schedule is for another model or number of ranks, or ranks have different ones.
    InvalidOptions, InvalidUse
        If the arguments or the optimizer do not fit, or weights differ and are not to be overwritten.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        op: GradientOp = "average",
        backward_passes_per_step: int = 1,
        max_grad_norm: float | None = None,
        broadcast_parameters: bool = True,
        process_group: dist.ProcessGroup | None = None,
        **training: Unpack[TrainingOptions],
    ) -> None:
        refuse_unknown_arguments(DistributedOptimizer, training)
        transport = connect(model, training, process_group)
        with released_on_failure(transport):
            super().__init__(
                optimizer,
                model,
                transport=transport,
                prepare=partial(
                    prepare,
                    transport,
                    training,
                    op=op,
                    backward_passes_per_step=backward_passes_per_step,
                    max_grad_norm=max_grad_norm,
                    broadcast_parameters=broadcast_parameters,
                ),
            )


def connect(
    model: nn.Module, training: TrainingOptions, process_group: dist.ProcessGroup | None
) -> GlooTransport:
    """Open the transport for a communication; collective: every rank must call it."""
    given = training.get("communication")
    over = given if isinstance(given, Communication) else AllReduce()
    return over.connect(model, training.get("plan"), connecting_timeout_s(training), process_group)
