"""DistributedDataParallel as the carrier of a model whose gradients the runtime sums.

Torch's reducer sums nothing in a backward pass that it was not prepared for: that is how ``no_sync`` works. So
the carrier gets a stand-in for its reducer, which prepares nothing and notes what each forward pass would have
prepared. All else is DistributedDataParallel's own: what it does before and after the model's forward pass,
its broadcast of buffers, its ``no_sync``, its ``state_dict``.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Slot
from pace.runtime.gates.gradient_gates import local_gradient


class Carrier:
    """A DistributedDataParallel whose reducer stands aside, from ``stand_aside`` to ``close``.

    Attributes
    ----------
    quiet
        Whether the latest forward pass was in ``no_sync``: gradients of its backward pass stay on this rank.
    """

    def __init__(self, parallel: DistributedDataParallel) -> None:
        self._parallel = weakref.ref(parallel)
        self._reducer: Any = parallel.reducer
        # Whether torch's own first backward pass of a static graph is still to come.
        self._delayed = getattr(parallel, "_static_graph_delay_allreduce_enqueued", None)
        self.quiet = not parallel.require_backward_grad_sync

    def stand_aside(self) -> None:
        """Have torch's reducer sum nothing from now on."""
        parallel = self._parallel()
        if parallel is not None:
            _guard(parallel).aside = True
            parallel.reducer = _Aside(self._reducer, self)  # type: ignore[assignment]  # that is the trick

    def note_forward(self, *, prepared: bool = False) -> None:
        """Note whether gradients of the forward pass that begins, or is prepared for, are to be summed."""
        parallel = self._parallel()
        if parallel is not None:
            self.quiet = not (prepared or parallel.require_backward_grad_sync)

    def carries(self, parallel: DistributedDataParallel) -> bool:
        """Whether this is the carrier."""
        return parallel is self._parallel()

    def close(self) -> None:
        """Give DistributedDataParallel its reducer back."""
        parallel = self._parallel()
        if parallel is None or parallel.reducer is self._reducer:
            return
        parallel.reducer = self._reducer
        _guard(parallel).aside = False
        if self._delayed is not None:
            parallel._static_graph_delay_allreduce_enqueued = self._delayed


def refuse_local_step(slots: Iterable[Slot]) -> None:
    """Refuse an update from gradients of this rank alone.

    Raises
    ------
    InvalidUse
        When there are some.
    """
    if any(local_gradient(slot.parameter) is not None for slot in slots):
        raise InvalidUse(
            "step() after a backward pass in no_sync(): DistributedDataParallel would update from this rank's"
            " own gradients, and ranks would no longer have the same weights. Run the last forward and"
            " backward pass before step() outside of no_sync()"
        )


def refuse_reducing(carrier: Carrier | None) -> None:
    """Refuse a forward pass inside a DistributedDataParallel that sums gradients itself.

    Raises
    ------
    InvalidUse
        When there is one.
    """
    active = DistributedDataParallel._active_ddp_module
    if active is not None and (carrier is None or not carrier.carries(active)):
        raise InvalidUse(
            "the model is inside DistributedDataParallel, which would reduce gradients a second time:"
            " use the model itself, or pace.runtime.ddp.attach"
        )


def refuse_unfit(parallel: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what the runtime would train otherwise than DistributedDataParallel does.

    Raises
    ------
    InvalidUse
        Says what, and what to do.
    """
    state = vars(parallel)
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
        "a communication hook is registered, which would not be called: for half precision on the wire give"
        " compression=": bool(state.get("_comm_hooks")),
        "a communication hook for buffers is registered, which may wait for torch's own sums": (
            "buffer_hook" in state
        ),
        "an optimizer is applied in the backward pass": (
            any(hasattr(parameter, "_in_backward_optimizers") for parameter in parallel.parameters())
        ),
        "it sums gradients of parameters that the optimizer does not update, as others may:"
        f" {', '.join(others[:5])}; freeze them by requires_grad_(False), or have one optimizer for all": (
            bool(others)
        ),
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise InvalidUse(f"DistributedDataParallel: {'; '.join(found)}")
    _guard(parallel)


class _Guard:
    """What the communication hook of a reducer knows; a hook cannot be taken off again."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.aside = False

    def sum_bucket(self, bucket: Any) -> Any:
        """Average a bucket as torch does; an error while the runtime sums gradients."""
        if self.aside:
            raise InvalidUse(
                "DistributedDataParallel began to sum gradients that the runtime sums: attach before a forward"
                " pass, not between it and its backward pass"
            )
        tensor = bucket.buffer()
        tensor.div_(dist.get_world_size(self.group))
        work: Any = dist.all_reduce(tensor, group=self.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


_guards: "weakref.WeakKeyDictionary[DistributedDataParallel, _Guard]" = weakref.WeakKeyDictionary()


def _guard(parallel: DistributedDataParallel) -> _Guard:
    """Have torch's reducer ask us, should it sum a bucket all the same."""
    guard = _guards.get(parallel)
    if guard is None:
        guard = _Guard(parallel.process_group)
        try:
            dist._register_comm_hook(parallel.reducer, guard, _sum_bucket)
        except RuntimeError as error:
            raise InvalidUse(f"DistributedDataParallel has a communication hook already: {error}") from error
        _guards[parallel] = guard
    return guard


def _sum_bucket(guard: _Guard, bucket: Any) -> Any:
    return guard.sum_bucket(bucket)


class _Aside:
    """Stands in for a reducer: all but preparing for a backward pass is the reducer's own."""

    def __init__(self, reducer: Any, carrier: Carrier) -> None:
        self._reducer = reducer
        self._carrier = carrier

    def prepare_for_forward(self) -> None:
        """Nothing to count."""

    def prepare_for_backward(self, _outputs: Any) -> None:
        """Prepare for no sums of torch's own."""
        self._carrier.note_forward(prepared=True)

    def _rebuild_buckets(self) -> bool:
        # Called as every forward pass begins that may have a backward pass.
        self._carrier.note_forward()
        return False

    def _delay_all_reduce(self) -> None:
        """Nothing is summed at the end of a static graph's first backward pass."""

    def _set_forward_pass_work_handle(self, *_arguments: Any) -> None:
        raise InvalidUse(
            "join(): ranks with fewer batches than others are not supported with PACE: give every rank as many,"
            " or close() PACE's wrapper before"
        )

    def _install_post_backward_futures(self, *_arguments: Any) -> None:
        raise InvalidUse("a communication hook for buffers is not supported with PACE")

    def _update_process_group(self, *_arguments: Any) -> None:
        raise InvalidUse("the process group cannot be changed while PACE is attached: close() it before")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)
