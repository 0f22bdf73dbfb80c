"""``DistributedOptimizer`` for torch.distributed, and ``asynchronous`` for training without a barrier."""

from functools import partial
from typing import Unpack

import torch
import torch.distributed as dist
from torch import nn

from pace.errors import InvalidOptions
from pace.runtime.argument_checks import refusal
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.entry_point import (
    TrainingOptions,
    complete_servers,
    connecting_timeout_s,
    prepare,
    refuse_unknown_arguments,
)
from pace.runtime.optimizer.asynchronous_optimizer import AsynchronousOptimizer
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.options import AllReduce, GradientOp, Mixed, ParameterServers, Plan, Replanning, Tune
from pace.runtime.servers.transport.push_pull import MixedTransport, PushPullTransport
from pace.runtime.transports.cuda import CudaTransport
from pace.runtime.transports.device import device_of
from pace.runtime.transports.gloo import GlooTransport
from pace.wire.streams import NOTSENT_BYTES

__all__ = [
    "AllReduce",
    "AsynchronousOptimizer",
    "DistributedOptimizer",
    "Mixed",
    "ParameterServers",
    "Plan",
    "Replanning",
    "Tune",
    "asynchronous",
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
        How gradients are summed: ``AllReduce()`` (default), ``ParameterServers()`` or ``Mixed()``.
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


def asynchronous(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    staleness: int | None = None,
    op: GradientOp = "average",
    broadcast_parameters: bool = True,
    process_group: dist.ProcessGroup | None = None,
    **training: Unpack[TrainingOptions],
) -> AsynchronousOptimizer:
    """Wrap a torch optimizer for asynchronous training; parameter servers hold the weights.

    The weights differ from those of synchronous training; see ``AsynchronousOptimizer`` for what is
    guaranteed.

    Parameters
    ----------
    staleness
        Number of steps that a rank may be ahead of the slowest one before it waits; None for no limit.
    communication
        ``ParameterServers()`` (default).
    optimizer, model, plan, timeout_s, op, broadcast_parameters, process_group
        The arguments of ``DistributedOptimizer``; there is no `mode`.

    Raises
    ------
    ScheduleMismatch, InvalidOptions, InvalidUse
        In the cases of ``DistributedOptimizer``.
    """
    refuse_unknown_arguments(asynchronous, training)
    over = training.setdefault("communication", ParameterServers())
    transport = _connect_to_servers(
        model, training, over if isinstance(over, ParameterServers) else ParameterServers(), process_group
    )

    def checked() -> tuple[WrapperOptions, PlanSource]:
        if staleness is not None and (type(staleness) is not int or not 0 <= staleness < 1 << 31):
            raise refusal("staleness", staleness, "a whole number of at least 0, or None,")
        if type(over) is not ParameterServers:
            raise InvalidOptions(
                f"communication is {over!r}, but asynchronous() keeps the weights on parameter servers:"
                " ParameterServers() is needed"
            )
        if "mode" in training:
            raise InvalidOptions("mode says when synchronous updates are applied: leave it out")
        return prepare(transport, training, op=op, broadcast_parameters=broadcast_parameters)

    with released_on_failure(transport):
        return AsynchronousOptimizer(
            optimizer, model, transport=transport, prepare=checked, staleness=staleness
        )


def connect(
    model: nn.Module, training: TrainingOptions, process_group: dist.ProcessGroup | None
) -> GlooTransport:
    """Open the transport for a communication; collective: every rank must call it."""
    over = training.get("communication")
    if isinstance(over, ParameterServers):
        return _connect_to_servers(model, training, over, process_group)
    return connect_all_reduces(model, training, process_group)


def connect_all_reduces(
    model: nn.Module, training: TrainingOptions, process_group: dist.ProcessGroup | None
) -> GlooTransport:
    """Open a transport for all-reduces; collective: every rank must call it."""
    device, waiting_s = device_of(model), connecting_timeout_s(training)
    if device is None:
        return GlooTransport(timeout_s=waiting_s, process_group=process_group)
    return CudaTransport(device, timeout_s=waiting_s, process_group=process_group)


def _connect_to_servers(
    model: nn.Module,
    training: TrainingOptions,
    over: ParameterServers,
    process_group: dist.ProcessGroup | None,
) -> PushPullTransport:
    plan = training.get("plan")
    credit = plan.credit_bytes if isinstance(plan, Plan) else None
    kind = MixedTransport if isinstance(over, Mixed) else PushPullTransport
    return kind(
        partial(complete_servers, over, model),
        timeout_s=connecting_timeout_s(training),
        process_group=process_group,
        notsent_bytes=max(credit, 1) if credit is not None and credit < 1 << 31 else NOTSENT_BYTES,
    )
