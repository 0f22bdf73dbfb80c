"""A wrapper around a model and an optimizer that stay the loop's own, as frameworks hold both themselves.

The optimizer's ``step``, ``zero_grad`` and state are the wrapper's until ``close()``, whoever calls them.
"""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from pace.runtime.gates.model_wrapper import ModelWrapper
from pace.runtime.gates.optimizer_methods import route
from pace.runtime.optimizer.start import Prepare, released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.transports.transport import Transport


class StandingAside(ModelWrapper, Protocol):
    """A wrapper that leaves sums to the runtime from ``stand_aside`` to ``close``.

    Attributes
    ----------
    wrapper
        PACE's optimizer. What is put into the model keeps it alive.
    """

    wrapper: Any

    def stand_aside(self) -> None:
        """Sum no gradients from now on."""

    def close(self) -> None:
        """Be as before; idempotent."""


class WrappedModelOptimizer(WrappedOptimizer):
    """Lives as long as the model, or until ``close()``.

    Parameters
    ----------
    whole
        What the user knows as the model: the wrapper around it, if that is a module.
    model
        Whose parameters are trained.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        whole: nn.Module,
        model: nn.Module,
        model_wrapper: StandingAside,
        *,
        transport: Transport,
        prepare: Prepare,
    ) -> None:
        self._closed = True  # until it is complete
        self._stepping = False
        self._undo: list[Callable[[], Any]] = []
        self._model_wrapper = self._standing_aside = model_wrapper
        self._whole = weakref.ref(whole)
        with released_on_failure(transport):
            super().__init__(optimizer, model, transport=transport, prepare=prepare)
        # Last: until here the loop's own calls have no effect on the runtime.
        model_wrapper.stand_aside()
        self._undo = [
            model_wrapper.close,
            route(optimizer, "step", _while_open(self, "step")),
            route(optimizer, "zero_grad", _while_open(self, "zero_grad")),
        ]
        self._routed_step = optimizer.step
        model_wrapper.wrapper = self
        _wrappers[whole] = weakref.ref(self)

    def _step_is_replaced(self) -> bool:
        """Never since it was wrapped: who replaces ``step`` now has the wrapper's, and calls it."""
        return False

    def _own_step(self, *closure: Callable[[], Any]) -> Any:
        """Take the optimizer's step as it was when it was wrapped: what was put around it since called us."""
        return self._routed_step(*closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients; see ``WrappedOptimizer``."""
        self._rounds.zero(set_to_none=set_to_none)
        self._planned.clear_frozen()

    @property
    def closed(self) -> bool:
        """Whether the model and the optimizer are the loop's alone again."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether calls of the optimizer's methods are the wrapper's own, or it is closed."""
        return self._stepping or self._closed

    @property
    def parameters_changed(self) -> bool:
        """Whether parameters were added to the optimizer, or thawed, since it was wrapped."""
        return self._planned.changed

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one optimizer step; see ``WrappedOptimizer``.

        Raises
        ------
        InvalidUse
            Also after a backward pass whose gradients no rank was to send.
        """
        self._stepping = True
        try:
            return super().step(closure)
        finally:
            self._stepping = False

    def _close(self, *, linger: bool, reason: str | None = None, drain: bool = True) -> None:
        try:
            super()._close(linger=linger, reason=reason, drain=drain)
        finally:
            undo, self._undo = self._undo, []
            with contextlib.ExitStack() as releases:
                for each in undo:
                    releases.callback(each)
            self._standing_aside.wrapper = None


def wrapper_of(model: object) -> WrappedModelOptimizer | None:
    """Return the wrapper of a model, compiled or not; None without one."""
    inner = getattr(model, "_orig_mod", model)
    found = _wrappers.get(inner) if isinstance(inner, nn.Module) else None
    wrapper = None if found is None else found()
    return None if wrapper is None or wrapper.closed else wrapper


def _while_open(wrapper: WrappedModelOptimizer, name: str) -> Callable[..., Any]:
    """Return what calls a wrapper's method in the place of the optimizer's own, as long as it is open."""
    reference = weakref.ref(wrapper)

    def call(own: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        alive = reference()
        method = own if alive is None or alive.busy else getattr(alive, name)
        return method(*arguments, **named)

    return call


# Weakly, as a wrapper may refer to the model: models keep their wrappers, whoever keeps what was returned.
_wrappers: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[WrappedModelOptimizer]]" = (
    weakref.WeakKeyDictionary()
)
