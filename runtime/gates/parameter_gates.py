"""Notices which parameters a model is about to use, just before it uses them.

A gate around a module's dict of parameters notices when a parameter is read from the module, before any
computation: by the module itself, or by another one (tied weights, or attention that reads the weight of its
output projection without calling it). All other uses of a parameter are noticed by its guard
(``guarded_tensors``), except by compiled code, which neither notices: a model that has some needs a barrier.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from pace.runtime.engine.buffers import Slot
from pace.runtime.gates.model_wrapper import ModelWrapper

Use = Callable[[Iterable[Slot]], None]


class Attention:
    """Whether gates have anything to do; most of the time they do not.

    Attributes
    ----------
    needed
        Whether updates are pending, or uses are being learned.
    """

    __slots__ = ("needed",)

    def __init__(self) -> None:
        self.needed = True


class GatedParameters(dict[str, nn.Parameter | None]):
    """A module's parameters; reading one first makes it current. Listing them does not: guards do."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter | None],
        slots: Mapping[str, Slot],
        attention: Attention,
        use: Use,
    ) -> None:
        super().__init__(parameters)
        self._slots = {name: (slot,) for name, slot in slots.items()}
        self._attention = attention
        self._use = use

    def __getitem__(self, name: str) -> nn.Parameter | None:
        found = dict.__getitem__(self, name)
        if self._attention.needed:
            slots = self._slots.get(name)
            if slots is not None and slots[0].parameter is found:
                self._use(slots)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles of the module are separate modules, so they get a plain dict.
        return dict, (list(self.items()),)


class ForwardWatch:
    """Gates on a model and a hook before its forward pass, until ``close``.

    Parameters
    ----------
    slots
        The slots of the parameters to watch. Without any, only the model's forward pass is watched.
    attention
        Tells whether `use` must be called.
    use
        Called with the slots of parameters that are about to be used.
    enter
        Called before the outermost module's forward.
    model_wrapper
        The framework's wrapper, which may use parameters before the model does.

    Attributes
    ----------
    announced
        Whether `model_wrapper` announces every use in the model's forward pass, also by compiled code.
    hidden
        What may use parameters without any gate or guard noticing; None without any such thing.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Mapping[nn.Parameter, Slot],
        *,
        attention: Attention,
        use: Use,
        enter: Callable[[], None],
        model_wrapper: ModelWrapper | None = None,
    ) -> None:
        self._attention = attention
        self._use = use
        self._model_wrapper = model_wrapper
        self._gated: list[tuple[nn.Module, GatedParameters]] = []
        self._handles: list[Any] = []
        if not isinstance(model, torch.jit.ScriptModule):  # which takes no hooks
            self._handles.append(model.register_forward_pre_hook(_EnterHook(enter)))
        self.announced = model_wrapper is not None and model_wrapper.watch(slots, self._announce)
        self.hidden = _hidden_in(model, compiled=not self.announced)
        for module in model.modules():
            own = {
                name: slots[parameter]
                for name, parameter in module._parameters.items()
                if parameter is not None and parameter in slots
            }
            if own and type(module._parameters) is dict:
                # Compiled modules get gates too, for code outside of them that reads their parameters.
                gated = GatedParameters(module._parameters, own, attention, use)
                module._parameters = gated
                self._gated.append((module, gated))

    def _announce(self, slots: Iterable[Slot]) -> None:
        if self._attention.needed:
            self._use(slots)

    def close(self) -> None:
        """Remove the hook and the gates."""
        if self._model_wrapper is not None:
            self._model_wrapper.watch({}, self._announce)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module, gated in self._gated:
            if module._parameters is gated:
                module._parameters = dict(gated)
        self._gated.clear()


class _EnterHook:
    """Runs before the outermost module; does nothing in a copied one."""

    def __init__(self, enter: Callable[[], None]) -> None:
        self._enter = enter

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        self._enter()

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


def take_off_hooks(module: nn.Module) -> None:
    """Remove the runtime's hooks from a module that is about to be scripted, as hooks cannot be scripted."""
    for each in module.modules():
        hooks = each._forward_pre_hooks
        for key in [
            key for key, hook in hooks.items() if hook is _do_nothing or isinstance(hook, _EnterHook)
        ]:
            del hooks[key]


def _no_hook() -> Callable[[nn.Module, Any], None]:
    return _do_nothing


def _do_nothing(_module: nn.Module, _inputs: Any) -> None:
    return None


def _hidden_in(model: nn.Module, *, compiled: bool) -> str | None:
    """Return which compiler's code in a model may use parameters; None if there is no such code."""
    modules = list(model.modules())
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        return "torch.jit"
    if compiled and any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in modules
    ):
        return "torch.compile"
    return None
