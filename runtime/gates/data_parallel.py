"""DistributedDataParallel around a model whose gradients the runtime sums.

In DistributedDataParallel only the reducer handles gradients. While the runtime sums them, a stand-in
replaces the reducer. It sums nothing, but records the forward passes whose gradients torch would have summed:
those outside of ``no_sync``. Everything else stays that of DistributedDataParallel: its work around the
model's forward pass, the broadcast of buffers, ``no_sync`` and ``state_dict``.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Slot
from pace.runtime.engine.plan import MEBIBYTE, Buckets, ddp_buckets


class DataParallelWrapper:
    """A DistributedDataParallel without a reducer, from ``stand_aside`` to ``close``.

    Attributes
    ----------
    quiet
        Whether the latest forward pass was in ``no_sync``, so that gradients of its backward pass are not
        summed.
    """

    quiet_passes = "in no_sync()"
    kinds: frozenset[str] = frozenset()
    swaps_parameters = False

    wrapper: Any = None

    def __init__(self, parallel: DistributedDataParallel) -> None:
        self._parallel = weakref.ref(parallel)
        self.quiet = not parallel.require_backward_grad_sync

    def stand_aside(self) -> None:
        """Remove the reducer, with the memory of its buckets."""
        parallel: Any = self._parallel()
        parallel.reducer._remove_autograd_hooks()
        parallel.logger = _Log(parallel.logger._get_ddp_logging_data())  # the other one keeps the reducer
        parallel.reducer = _Aside(self)

    def note_forward(self, *, prepared: bool = False) -> None:
        """Record whether gradients of the forward pass that begins, or is prepared, are to be summed."""
        parallel = self._parallel()
        if parallel is not None:
            self.quiet = not (prepared or parallel.require_backward_grad_sync)

    def wraps(self, parallel: DistributedDataParallel) -> bool:
        """Return whether this is the given DistributedDataParallel."""
        return parallel is self._parallel()

    def buckets(self, parameters: Mapping[str, nn.Parameter]) -> Buckets:  # noqa: ARG002
        """Return DistributedDataParallel's own rule, with the user's limits; see ``ModelWrapper``."""
        parallel: Any = self._parallel()
        first = [MEBIBYTE] if parallel.bucket_bytes_cap_default else []
        caps = getattr(parallel, "bucket_bytes_cap_list", None)  # since torch 2.13
        return functools.partial(ddp_buckets, limits=caps or [*first, parallel.bucket_bytes_cap])

    def watch(self, slots: Mapping[nn.Parameter, Slot], use: Callable[[Iterable[Slot]], None]) -> bool:  # noqa: ARG002
        """DistributedDataParallel uses no parameter itself; see ``ModelWrapper``."""
        return False

    def sharing(self) -> list[torch.Tensor]:
        """DistributedDataParallel keeps parameters, and nothing of theirs; see ``ModelWrapper``."""
        return []

    def close(self) -> None:
        """Give DistributedDataParallel a reducer again, as if it was just created or loaded from a file."""
        parallel: Any = self._parallel()
        if parallel is None or not isinstance(parallel.reducer, _Aside):
            return
        parameters, sparse = parallel._build_params_for_reducer()
        names = parallel._build_debug_param_to_name_mapping(parameters)
        parallel._has_rebuilt_buckets = False
        parallel._ddp_init_helper(parameters, sparse, names, parallel.static_graph)
        if parallel.static_graph:
            parallel._static_graph_delay_allreduce_enqueued = False
            parallel.reducer._set_static_graph()
            parallel.logger._set_static_graph()


def refuse_unfit(parallel: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Check that the runtime trains this model and optimizer as DistributedDataParallel does.

    Raises
    ------
    InvalidUse
        If it does not; the message says why and what to do.
    """
    state = vars(parallel)
    logged: dict[str, Any] = parallel._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # in torch
    updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    others = [
        name
        for name, parameter in parallel.module.named_parameters()
        if parameter.requires_grad and parameter not in updated
    ]
    reasons = {
        "mixed_precision= keeps gradients of another dtype than the parameters: use torch.autocast": (
            state.get("mixed_precision") is not None
        ),
        "delay_all_reduce_named_params= sums gradients itself: leave it out": (
            bool(state.get("_delay_all_reduce_params"))
        ),
        "parameters or buffers are ignored, which belong to each rank alone: leave them in": (
            bool(state.get("parameters_to_ignore"))
        ),
        'torch._dynamo.config.optimize_ddp is "python_reducer", which sums gradients itself': (
            bool(state.get("_use_python_reducer"))
        ),
        f"a communication hook is registered, which would not be called: {_COMPRESSING}": (
            bool(state.get("_comm_hooks")) or bool(logged.get("comm_hook"))
        ),
        "a communication hook for buffers is registered, which may wait for torch's own sums": (
            "buffer_hook" in state
        ),
        f"the model is in join(): {_UNEVEN}": parallel._join_config.enable,
        "an optimizer is applied in the backward pass": (
            any(hasattr(parameter, "_in_backward_optimizers") for parameter in parallel.parameters())
        ),
        "it sums gradients of parameters that are not in the optimizer:"
        f" {', '.join(others[:5])}. If they are not trained, freeze them by requires_grad_(False). Else put"
        " them into this optimizer. If you need two optimizers, leave DistributedDataParallel out and wrap"
        " each in pace.runtime.torch.DistributedOptimizer": bool(others),
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise InvalidUse(f"DistributedDataParallel: {'; '.join(found)}")


_COMPRESSING = 'for half precision on the wire give communication=AllReduce(compression="fp16")'

_UNEVEN = (
    "ranks with fewer batches than others are not supported with PACE: give every rank as many, or close()"
    " PACE's wrapper before"
)


class _Log:
    """Stands in for the object in which torch logs data of a reducer."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def set_runtime_stats_and_log(self) -> None:
        """Do nothing: there are no statistics of a reducer."""

    def set_error_and_log(self, _error: str) -> None:
        """Do nothing: the caller raises the error."""

    def _set_comm_hook_name(self, _name: str) -> None:
        raise InvalidUse(
            f"a communication hook would not be called while PACE is attached: {_COMPRESSING}, or close()"
            " PACE's wrapper before"
        )

    def _get_ddp_logging_data(self) -> Any:
        return self._data

    def _set_static_graph(self) -> None:
        """See ``ModelWrapper.close``."""

    def _set_uneven_input_join(self) -> None:
        raise InvalidUse(f"join(): {_UNEVEN}")


class _Aside:
    """Stands in for a reducer."""

    def __init__(self, model_wrapper: DataParallelWrapper) -> None:
        self._model_wrapper = model_wrapper

    def prepare_for_forward(self) -> None:
        """Do nothing: there is no reducer to prepare."""

    def prepare_for_backward(self, _outputs: Any) -> None:
        """Do not prepare sums by torch; record the forward pass."""
        self._model_wrapper.note_forward(prepared=True)

    def _rebuild_buckets(self) -> bool:
        # Called at the start of every forward pass that may have a backward pass.
        self._model_wrapper.note_forward()
        return False

    def _delay_all_reduce(self) -> None:
        """Do nothing: no sums are made at the end of a static graph's first backward pass."""

    def _set_static_graph(self) -> None:
        """See ``ModelWrapper.close``."""

    def _remove_autograd_hooks(self) -> None:
        """Do nothing: there are no hooks."""

    def _check_reducer_finalized(self) -> None:
        """Do nothing: no sums are in progress here."""

    def _install_post_backward_futures(self, *_arguments: Any) -> None:
        raise InvalidUse("a communication hook for buffers is not supported with PACE")

    def _reset_state(self, *_arguments: Any) -> None:
        raise InvalidUse("the process group cannot be changed while PACE is attached: close() it before")
