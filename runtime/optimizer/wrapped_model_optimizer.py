"""A wrapper for frameworks that hold the model and the optimizer themselves and cannot use a new optimizer.

Until ``close()``, calls of the user's optimizer (``step``, ``zero_grad``, state) go to the wrapper.
"""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from pace.runtime.gates.model_wrapper import ModelWrapper
from pace.runtime.gates.optimizer_methods import route, zero_grad_was_replaced
from pace.runtime.optimizer.start import Prepare, released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.transports.transport import Transport


class StandingAside(ModelWrapper, Protocol):
    """A framework's wrapper of the model that does not sum gradients from ``stand_aside`` to ``close``.

    Attributes
    ----------
    wrapper
        PACE's optimizer; this reference keeps it alive as long as the model.
    """

    wrapper: Any

    def stand_aside(self) -> None:
        """Stop summing gradients."""

    def close(self) -> None:
        """Sum gradients again as before. Idempotent."""


class WrappedModelOptimizer(WrappedOptimizer):
    """The wrapper of a model and its optimizer; it lives as long as the model, or until ``close()``.

    Parameters
    ----------
    whole
        The model as the user knows it: the framework's wrapper, if that is a module.
    model
        The module whose parameters are trained.
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
        self._own_zero_grad = zero_grad_was_replaced(optimizer)
        # Last: until here, calls of the training loop do not reach the runtime.
        model_wrapper.stand_aside()
        self._undo = [model_wrapper.close, route(optimizer, "step", _while_open(self, "step"))]
        if not self._own_zero_grad:
            self._undo.append(route(optimizer, "zero_grad", _while_open(self, "zero_grad")))
        self._routed_step = optimizer.step
        model_wrapper.wrapper = self
        _wrappers[whole] = weakref.ref(self)

    def _step_is_replaced(self) -> bool:
        """Return False: code that replaces ``step`` now replaces the wrapper's ``step``, and calls it."""
        return False

    def _own_step(self, *closure: Callable[[], Any]) -> Any:
        """Take the optimizer's step as it was when it was wrapped; a later replacement has called this."""
        return self._routed_step(*closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients; see ``WrappedOptimizer``."""
        if self._own_zero_grad:
            self.optimizer.zero_grad(set_to_none)
            return
        self._rounds.zero(set_to_none=set_to_none)
        self._planned.clear_frozen()

    @property
    def closed(self) -> bool:
        """Whether the wrapper has been closed."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether the wrapper itself is calling methods of the optimizer, or is closed."""
        return self._stepping or self._closed

    @property
    def parameters_changed(self) -> bool:
        """Whether parameters were added to the optimizer, or unfrozen, since it was wrapped."""
        return self._planned.changed

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one optimizer step; see ``WrappedOptimizer``.

        Raises
        ------
        InvalidUse
            Also after a backward pass inside ``no_sync``, whose gradients were not sent.
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
    """Return the wrapper of a model, which may be compiled; None if it has none."""
    inner = getattr(model, "_orig_mod", model)
    found = _wrappers.get(inner) if isinstance(inner, nn.Module) else None
    wrapper = None if found is None else found()
    return None if wrapper is None or wrapper.closed else wrapper


def _while_open(wrapper: WrappedModelOptimizer, name: str) -> Callable[..., Any]:
    """Return a function that calls a wrapper's method instead of the optimizer's, until it is closed."""
    reference = weakref.ref(wrapper)

    def call(own: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        alive = reference()
        method = own if alive is None or alive.busy else getattr(alive, name)
        return method(*arguments, **named)

    return call


# Weak keys, as a wrapper may refer to the model. A model keeps its wrapper, even if the loop does not.
_wrappers: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[WrappedModelOptimizer]]" = (
    weakref.WeakKeyDictionary()
)
