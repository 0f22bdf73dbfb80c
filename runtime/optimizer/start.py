"""How a wrapper starts: ranks check and compare their arguments, then agree on the plan and the weights.

An error on one rank is raised on every rank, before the first step.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse, PaceError
from pace.runtime.argument_checks import require_instance
from pace.runtime.control.agreement import (
    Statement,
    agree_on_plan,
    agree_on_state,
    agree_on_weights,
    describe_state,
    exchange,
    forms_of,
)
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.parameters import gradient_sizes, trained_parameters
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.engine.plan import GradientSize, SendPlan
from pace.runtime.event_log import log
from pace.runtime.gates.gated_state import held_by_others
from pace.runtime.gates.model_wrapper import ModelWrapper
from pace.runtime.optimizer.group_update import why_not_per_group
from pace.runtime.optimizer.shards.shard_memory import why_not_in_shards
from pace.runtime.optimizer.shards.shard_update import why_not_elementwise
from pace.runtime.optimizer.stand_in import StandIn
from pace.runtime.options import AllReduce, ShardingChoice
from pace.runtime.transports.transport import Transport

Prepare = Callable[[], tuple[WrapperOptions, PlanSource]]
"""Checks the arguments of a wrapper; what it raises is raised on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What all ranks agreed on before training.

    Attributes
    ----------
    parameters
        The trained parameters, by name.
    sizes
        The gradients' names, sizes and types, from which the fingerprint is computed.
    barrier_reason
        Why updates cannot be applied group by group on some rank; None if they can.
    sharding
        The chosen option, or "off" if updates cannot be sharded on some rank.
    """

    options: WrapperOptions
    source: PlanSource
    parameters: dict[str, nn.Parameter]
    sizes: list[GradientSize]
    plan: SendPlan
    barrier_reason: str | None
    sharding: ShardingChoice


def start_together(
    transport: Transport,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    prepare: Prepare,
    *,
    model_wrapper: ModelWrapper | None = None,
    sums_gradients: bool = True,
) -> Start:
    """Check the arguments, compare them between ranks, and agree on a plan. Every rank must call it.

    Parameters
    ----------
    model_wrapper
        The framework's wrapper that would sum gradients, for example DistributedDataParallel; None without
        one. It makes weights equal on all ranks and sends buffers.
    sums_gradients
        Whether the optimizer gets the sums of all ranks' gradients, not the rank's own ones.

    Raises
    ------
    InvalidOptions, InvalidUse, InvalidSchedule, ScheduleMismatch
        On every rank, if an argument is wrong on one rank or differs between ranks; the message names the
        ranks.
    CommunicationFailed
        If another rank is gone or does not start within the time-out.
    """

    def describe(
        mine: Statement,
    ) -> tuple[WrapperOptions, PlanSource, dict[str, nn.Parameter], list[GradientSize]]:
        check_trained(optimizer, model)
        parameters = trained_parameters(
            model,
            optimizer,
            allowed=model_wrapper.kinds if model_wrapper else frozenset(),
            sums_gradients=sums_gradients,
        )
        sizes = gradient_sizes(parameters)
        mine.forms = forms_of(model, parameters)
        mine.barrier_reason = why_not_per_group(optimizer)
        options, source = prepare()
        if model_wrapper is not None and options.communication != AllReduce(
            compression=options.communication.compression
        ):
            raise InvalidOptions(
                f"communication is {options.communication}, but gradients of a model that is wrapped, as by"
                " DistributedDataParallel, Lightning or Accelerate, are all-reduced whole: use AllReduce()"
                " without sharding=, or DistributedOptimizer and the model without its wrapper"
            )
        if options.communication.sharding != "off":
            mine.whole_reason = _why_not_sharded(optimizer, model, parameters, options, transport)
        mine.options = options.compared | {"optimizer": type(optimizer).__name__}
        mine.terms = source.terms
        given = source.load(sizes)
        mine.schedule = None if given is None else given.sha256
        return options, source, parameters, sizes

    (options, source, parameters, sizes), statements = exchange(transport, describe)
    source.accept(statements[0].terms)
    if transport.rank == 0:
        log.info(
            "pace.wrapped",
            gradients=len(sizes),
            megabytes=sum(each.size_bytes for each in sizes) / 1e6,
            ranks=transport.size,
            mode=options.mode,
        )
    reasons = [(rank, each.whole_reason) for rank, each in enumerate(statements) if each.whole_reason]
    sharding = _sharding(options.communication.sharding, _join(reasons, len(statements)), rank=transport.rank)
    if sharding != "off":
        transport.open_halves()
    source.shard(sharding)
    plan = agree_on_plan(transport, source.make(sizes))
    agree_on_weights(
        transport,
        model,
        broadcast=options.broadcast_parameters and model_wrapper is None,
        with_buffers=model_wrapper is None,
    )
    if sums_gradients:
        agree_on_state(transport, describe_state(optimizer, parameters))
    reasons = [(rank, each.barrier_reason) for rank, each in enumerate(statements) if each.barrier_reason]
    barrier_reason = _join(reasons, len(statements))
    if barrier_reason is not None and options.mode == "check":
        raise InvalidOptions(
            f'mode is "check", but no update can be pending: {barrier_reason}; use mode="barrier" for this'
            " optimizer, which needs no check"
        )
    return Start(
        options=options,
        source=source,
        parameters=parameters,
        sizes=sizes,
        plan=plan,
        barrier_reason=barrier_reason,
        sharding=sharding,
    )


def _why_not_sharded(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    options: WrapperOptions,
    transport: Transport,
) -> str | None:
    """Return why updates cannot be sharded on this rank, or None if they can."""
    if not transport.has_halves and transport.device is not None:
        return "the model is on a GPU and gradients do not go over NCCL"
    if not transport.has_halves:
        return "gradients go over parameter servers"
    if options.communication.compression != "none":
        return f"compression is {options.communication.compression!r}"
    if held_by_others(optimizer):
        return "the training loop keeps the dictionary of optimizer.state, and no rank would have all of it"
    return why_not_elementwise(optimizer) or why_not_in_shards(parameters, model)


def _sharding(asked: ShardingChoice, reason: str | None, *, rank: int) -> ShardingChoice:
    if asked == "off" or reason is None:
        return asked
    if asked == "on":
        raise InvalidOptions(f"sharding is 'on', but updates cannot be sharded: {reason}; use sharding='off'")
    if rank == 0:
        log.info("pace.not_sharded", reason=reason)
    return "off"


def check_trained(optimizer: Any, model: Any) -> None:
    """Check that the arguments are an optimizer that is not wrapped and an initialized model.

    Raises
    ------
    InvalidOptions
        If one of them has another type.
    InvalidUse
        If the optimizer is wrapped, or parameters of the model have no shapes or values yet.
    """
    if isinstance(optimizer, StandIn):
        raise InvalidUse(
            "the optimizer is already wrapped: wrap the torch optimizer itself, after close() of its wrapper"
        )
    require_instance("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer")
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, torch.optim.Optimizer) and "state" not in vars(optimizer):
        raise InvalidUse(
            f"the optimizer is an {type(optimizer).__name__} around a torch optimizer: give that one, its"
            " attribute optimizer; with Accelerate, call attach() of pace.runtime.accelerate"
        )
    require_instance("model", model, nn.Module, "a torch.nn.Module")
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise InvalidUse(
                f"{name} has no shape yet: give the model a batch before its optimizer is wrapped"
            )
        if parameter.is_meta:
            raise InvalidUse(
                f"{name} has no values yet: call to_empty() and initialize the model before its optimizer is"
                " wrapped"
            )


def _join(reasons: list[tuple[int, str]], size: int) -> str | None:
    if not reasons:
        return None
    rank, reason = reasons[0]
    return reason if len(reasons) == size else f"rank {rank}: {reason}"


@contextlib.contextmanager
def released_on_failure(transport: Transport) -> Iterator[None]:
    """Close a transport if wrapping fails: a caller may catch the error and wrap again."""
    try:
        yield
    except BaseException as error:
        peers = transport.peers
        lost = isinstance(error, CommunicationFailed)
        if peers is not None and not lost:
            peers.close(type(error).__name__)
        # All ranks raise the same error, so nothing is in flight.
        transport.close(failed=lost or not isinstance(error, PaceError))
        if peers is not None:
            if lost:
                peers.linger()
            peers.release()
        raise
