"""``DistributedOptimizer`` for Horovod, and the ``init`` that prepares Horovod for it."""

import functools
import inspect
import itertools
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Unpack

import horovod.torch as hvd
import torch
from torch import nn

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.argument_checks import refusal, require_bool, require_instance, require_whole
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.entry_point import TrainingOptions, connecting_timeout_s, prepare, refuse_unknown_arguments
from pace.runtime.event_log import log
from pace.runtime.gates.patches import HOROVOD_STARTS, patch
from pace.runtime.optimizer.group_update import TwinOptimizer
from pace.runtime.optimizer.live_wrappers import live
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.options import AllReduce, GradientOp, Plan, Replanning, Tune
from pace.runtime.transports.compression import Compression
from pace.runtime.transports.device import device_of
from pace.runtime.transports.horovod import HorovodTransport, open_store

__all__ = ["AllReduce", "DistributedOptimizer", "Plan", "Replanning", "Tune", "init"]


# Of wrappers in the order of their creation.
_numbers = itertools.count()

# Horovod would fuse segments that wait together into one operation, and undo the schedule.
_SETTINGS = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_DISABLE_GROUP_FUSION": "1"}

# By function and ranks: a rank may be in process sets that others are not in.
_calls_so_far: defaultdict[tuple[Any, ...], Iterator[int]] = defaultdict(itertools.count)


def init(*arguments: Any, **options: Any) -> None:
    """Call ``hvd.init`` with the settings that the runtime needs; use it instead of ``hvd.init``.

    Raises
    ------
    InvalidUse
        If Horovod is already initialized with other settings, which it reads only once.
    """
    name_collectives()
    patch("horovod.torch:join", _finishing)
    patch("horovod.torch:remove_process_set", _closing)
    patch("horovod.torch:shutdown", _closing)
    if hvd.is_initialized():
        _refuse_wrong_settings()
        open_store(anew=False)
        return
    for name, value in _SETTINGS.items():
        os.environ[name] = value
    hvd.init(*arguments, **options)
    number_anew()
    open_store(anew=True)


def _finishing(own: Any) -> Any:
    @functools.wraps(own)
    def join(*arguments: Any, **named: Any) -> Any:
        for wrapper in _open_wrappers(None):  # Horovod would add zeros to the sums that are still to be sent
            wrapper.finish_updates()
        return own(*arguments, **named)

    return join


def _closing(own: Any) -> Any:
    @functools.wraps(own)
    def end(process_set: Any = None) -> Any:
        try:
            for wrapper in _open_wrappers(process_set):
                wrapper.__exit__(sys.exc_info()[0])
        finally:
            ended = own() if process_set is None else own(process_set)
        return ended

    return end


def _open_wrappers(process_set: Any) -> list["DistributedOptimizer"]:
    """Return the open wrappers of a process set; None: of all. In the same order on all ranks."""
    found = [each for each in live if isinstance(each, DistributedOptimizer)]
    mine = [each for each in found if process_set in (None, each.process_set)]
    return sorted(mine, key=lambda each: each.number)


def _refuse_wrong_settings() -> None:
    wrong = [f"{name}={value}" for name, value in _SETTINGS.items() if os.environ.get(name) != value]
    if wrong:
        raise InvalidUse(
            f"Horovod was initialized without {' and '.join(wrong)}, so it would fuse and reorder segments:"
            " call pace.runtime.horovod.init() instead of hvd.init()"
        )


class DistributedOptimizer(WrappedOptimizer):
    """Wraps a torch optimizer: all-reduces its gradients over Horovod by a schedule, without a barrier.

    Takes Horovod's arguments in Horovod's order, so that ``hvd.DistributedOptimizer(optimizer, ...)``
    becomes ``pace.runtime.horovod.DistributedOptimizer(optimizer, ..., model=model)``. See
    ``pace.runtime.torch.DistributedOptimizer`` for the parameters that are not listed here; `communication`
    is ``AllReduce()``.

    Parameters
    ----------
    named_parameters
        Ignored for names, which come from the model. As in Horovod, an error if a parameter of the optimizer
        is missing.
    compression
        ``hvd.Compression.none`` or ``.fp16``, or "none" or "fp16".
    op
        ``hvd.Average`` or ``hvd.Sum``, or "average" or "sum".
    gradient_predivide_factor
        Splits the average: gradients are divided by this factor before the sum, and the sum is multiplied by
        the factor over the number of ranks. None divides by the number of ranks before the sum, so that sums
        in half precision do not overflow. Horovod's default is 1.
    num_groups, groups
        Ignored with one log event, because the schedule decides what is fused.
    sparse_as_dense
        Sparse gradients are always sent dense.
    process_set
        The processes that train together; all of them, and no others, must wrap an optimizer for it.

    Raises
    ------
    InvalidUse
        If Horovod was not initialized by ``pace.runtime.horovod.init``.
    InvalidOptions
        If the runtime does not support an argument; the message says what to use instead.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        compression: Any = "none",
        backward_passes_per_step: int = 1,
        op: Any = "average",
        gradient_predivide_factor: float | None = None,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = True,
        process_set: Any = hvd.global_process_set,
        *,
        model: nn.Module,
        broadcast_parameters: bool = True,
        max_grad_norm: float | None = None,
        **training: Unpack[TrainingOptions],
    ) -> None:
        refuse_unknown_arguments(DistributedOptimizer, training)
        if not hvd.is_initialized():
            raise InvalidUse("call pace.runtime.horovod.init() before DistributedOptimizer(...)")
        _refuse_wrong_settings()
        _refuse_wrapped_by_horovod(optimizer)
        _refuse_foreign(process_set)
        transport = HorovodTransport(
            process_set, timeout_s=connecting_timeout_s(training), device=device_of(model)
        )

        def checked() -> tuple[WrapperOptions, PlanSource]:
            if named_parameters is not None:
                _refuse_unnamed(optimizer, named_parameters)
            _refuse_what_horovod_cannot_sum(model)
            training["communication"] = _all_reduce(training.get("communication", AllReduce()), compression)
            options, source = prepare(
                transport,
                training,
                op=_op(op),
                backward_passes_per_step=backward_passes_per_step,
                gradient_predivide_factor=gradient_predivide_factor,
                broadcast_parameters=broadcast_parameters,
                max_grad_norm=max_grad_norm,
            )
            transport.scale = _scale(options, transport.size)
            if _asks_for_groups(num_groups, groups) and transport.rank == 0:
                log.info("pace.groups_superseded", by="the schedule, which says what is fused")
            require_bool("sparse_as_dense", sparse_as_dense)
            return options, source

        with released_on_failure(transport):
            super().__init__(optimizer, model, transport=transport, prepare=checked)
        self.process_set = process_set
        self.number = next(_numbers)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one optimizer step; see ``WrappedOptimizer``.

        ``hvd.broadcast_optimizer_state`` calls it on ranks without state, to have one to overwrite. They get
        the state of a new optimizer, and parameters stay as they are.
        """
        # It calls step() only where there is no state: later steps read no stack.
        if vars(self.optimizer)["state"] or not _in_state_broadcast():
            return super().step(closure)
        self.zero_grad()
        update = TwinOptimizer(self.optimizer)
        for parameter, owner in update.owners().items():
            if parameter.requires_grad:
                self.optimizer.state[parameter] = update.blank_state(parameter, owner)
        return None

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are expected before ``step()``; call it between steps."""
        require_whole("passes", passes, least=1)
        self.synchronize()
        self.backward_passes_per_step = passes
        self._usage.expect(passes)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's whole state; see ``WrappedOptimizer``.

        Raises
        ------
        InvalidUse
            In ``hvd.broadcast_optimizer_state`` with sharded updates, where no rank keeps the whole state.
        """
        if self._plan.shards and _in_state_broadcast():
            raise InvalidUse(
                "hvd.broadcast_optimizer_state cannot set sharded state, of which no rank has all: load the"
                " checkpoint by load_state_dict() on every rank, or use AllReduce(sharding='off')"
            )
        return super().state_dict()


def _in_state_broadcast() -> bool:
    """Return whether ``hvd.broadcast_optimizer_state`` is among the callers."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not hvd.broadcast_optimizer_state.__code__:
        frame = frame.f_back
    return frame is not None


def _refuse_wrapped_by_horovod(optimizer: torch.optim.Optimizer) -> None:
    if optimizer.__module__ == hvd.DistributedOptimizer.__module__:
        raise InvalidUse(
            "optimizer is wrapped by hvd.DistributedOptimizer, which sums gradients too: give the torch"
            " optimizer, and use pace.runtime.horovod.DistributedOptimizer instead"
        )


def _refuse_foreign(process_set: Any) -> None:
    if not isinstance(process_set, hvd.ProcessSet):
        raise refusal("process_set", process_set, "a horovod.torch.ProcessSet")
    if process_set.process_set_id is None:
        raise InvalidUse(
            f"{process_set} is not known to Horovod: give it to pace.runtime.horovod.init(process_sets=[...])"
        )
    if not process_set.included():
        raise InvalidUse(
            f"rank {hvd.rank()} is not in {process_set}: only its members wrap an optimizer for it; the"
            " others use the torch optimizer as it is"
        )


def _refuse_unnamed(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]]
) -> None:
    given = _pairs(named_parameters)
    names = [name for name, _ in given]
    if len(set(names)) < len(names):
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        raise InvalidOptions(f"named_parameters names {', '.join(twice[:5])} twice")
    named = {id(parameter) for _, parameter in given}
    missing = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in named]
    if missing:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in missing[:5])
        raise InvalidOptions(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters, of shapes {shapes}: give"
            " model.named_parameters(), or leave it out"
        )


def _pairs(named_parameters: Any) -> list[tuple[str, torch.Tensor]]:
    try:
        return [(str(name), parameter) for name, parameter in named_parameters]
    except (TypeError, ValueError):
        raise InvalidOptions(
            f"named_parameters is of type {type(named_parameters).__name__}; pairs of a name and a parameter"
            " are needed, as model.named_parameters() gives"
        ) from None


def _refuse_what_horovod_cannot_sum(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype is torch.bfloat16:
            raise InvalidOptions(f"{name} is bfloat16, which Horovod cannot sum: use float32 or float16")
        if parameter.requires_grad and parameter.is_cuda and not hvd.nccl_built():
            raise InvalidOptions(
                f"{name} is on a GPU, but this Horovod was built without NCCL: build it with NCCL"
            )


def _scale(options: WrapperOptions, size: int) -> float:
    """Return the factor of sums whose gradients were divided by ``options.divisor``."""
    factor = options.gradient_predivide_factor
    if options.op == "sum" and factor not in (None, 1.0):
        raise InvalidOptions(
            f"gradient_predivide_factor is {factor:g}, which is for averages, and op is a sum: leave it out"
        )
    return 1.0 if factor is None or options.op == "sum" else factor / size


def _asks_for_groups(num_groups: Any, groups: Any) -> bool:
    require_whole("num_groups", num_groups, least=0)
    if groups is not None and not isinstance(groups, list | tuple):
        require_whole("groups", groups, least=0)
    return bool(num_groups) or groups is not None


def _op(op: Any) -> GradientOp:
    if op in ("average", hvd.Average):
        return "average"
    if op in ("sum", hvd.Sum):
        return "sum"
    if op == hvd.Adasum:
        raise InvalidOptions(
            "op is hvd.Adasum, which looks at whole gradients and so cannot be cut into segments: use"
            " hvd.Average or hvd.Sum, or hvd.DistributedOptimizer"
        )
    raise refusal("op", op, "hvd.Average, hvd.Sum, 'average' or 'sum'")


def _all_reduce(communication: Any, compression: Any) -> AllReduce:
    """Return the communication with Horovod's own argument in it."""
    require_instance("communication", communication, AllReduce, "over Horovod an AllReduce()")
    own, asked = _compression(compression), _compression(communication.compression)
    joined: AllReduce = replace(communication, compression=asked if own == "none" else own)
    return joined


def _compression(compression: Any) -> Compression:
    if compression is hvd.Compression.none:
        return "none"
    if compression is hvd.Compression.fp16:
        return "fp16"
    if compression == "bf16":
        raise InvalidOptions("compression is 'bf16': Horovod cannot sum bfloat16; use fp16")
    if compression not in ("none", "fp16"):
        shown = compression.__name__ if isinstance(compression, type) else compression
        raise refusal("compression", shown, "hvd.Compression.none, hvd.Compression.fp16, 'none' or 'fp16'")
    chosen: Compression = compression
    return chosen


def name_collectives() -> None:
    """Name collectives by their number among those of the same kind and ranks. Idempotent."""
    for place in HOROVOD_STARTS:
        patch(place, functools.partial(_naming, place.partition(":")[2]))


def number_anew() -> None:
    """Begin with the first number again: Horovod was initialized just now, maybe with other ranks."""
    _calls_so_far.clear()


def _naming(kind: str, own: Any) -> Any:
    arguments = list(inspect.signature(own).parameters)
    of_name, of_set = arguments.index("name"), arguments.index("process_set")

    @functools.wraps(own)
    def start(*given: Any) -> Any:
        if given[of_name] is not None:
            return own(*given)
        number = next(_calls_so_far[kind, *given[of_set].ranks])
        return own(*given[:of_name], f"pace.unnamed.{kind}.{number}", *given[of_name + 1 :])

    return start
