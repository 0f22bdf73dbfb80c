"""Finds out which parameters a model is about to use, just before it uses them.

A gate around a module's dict of parameters notices a parameter as it is read from the module, before anything
is computed with it: by the module itself, or by another one (tied weights, attention that reads its output
projection's weight without calling it). All other ways to a parameter end at its guard
(``guarded_tensors``), but for compiled code, which passes both by.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from pace.runtime.engine.buffers import Slot
from pace.runtime.event_log import log
from pace.runtime.gates.model_wrapper import ModelWrapper

Use = Callable[[Iterable[Slot]], None]


class Attention:
    """Whether gates have anything to do; most of the time they have not.

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
                slots[0].claimed = True
                self._use(slots)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles of the module are modules of their own: they get a plain dict.
        return dict, (list(self.items()),)


class ForwardWatch:
    """Gates on a model and a hook before its forward pass, until ``close``.

    Parameters
    ----------
    slots
        Of the parameters to watch; without any, only the model's forward is.
    attention
        Whether `use` needs to be called.
    use
        Called with the slots of parameters that are about to be used.
    enter
        Called before the outermost module's forward.
    model_wrapper
        May use parameters before the model does.

    Attributes
    ----------
    unseen
        Slots whose use cannot be seen: compiled code passes the gates by.
    unreadable
        Those of them that others read without passing a gate, too.
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
        self.unseen: list[Slot] = []
        self.unreadable: list[Slot] = []
        if not isinstance(model, torch.jit.ScriptModule):  # which takes no hooks
            self._handles.append(model.register_forward_pre_hook(_EnterHook(enter)))
        seen = model_wrapper is not None and model_wrapper.watch(slots, self._announce)
        for module in model.modules():
            if seen:
                break
            if isinstance(module, torch._dynamo.OptimizedModule if _dynamo_loaded() else ()):
                self.unseen += [slots[p] for p in module.parameters() if p in slots]
            elif getattr(module, "_compiled_call_impl", None) is not None:
                log.warning(
                    "pace.compiled_in_place",
                    module=type(module).__name__,
                    consequence="right but slow: it is compiled again as updates come and go; give what"
                    " torch.compile(model) returns as the model instead of calling model.compile()",
                )
        for module in model.modules():
            own = {
                name: slots[parameter]
                for name, parameter in module._parameters.items()
                if parameter is not None and parameter in slots
            }
            if isinstance(module, torch.jit.ScriptModule):
                self.unreadable += own.values()
            elif own and type(module._parameters) is dict:
                # What is compiled is gated too, for whoever reads parameters outside of compiled code.
                gated = GatedParameters(module._parameters, own, attention, use)
                module._parameters = gated
                self._gated.append((module, gated))

    def _announce(self, slots: Iterable[Slot]) -> None:
        if self._attention.needed:
            for slot in slots:
                slot.claimed = True
            self._use(slots)

    def close(self) -> None:
        """Take the hook and gates off again."""
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
    """Take our hooks off a module, or a copy of one, that is about to be scripted: they cannot be."""
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


def _dynamo_loaded() -> bool:
    # Looking at torch._dynamo imports it, which takes seconds; unless it is loaded nothing is compiled.
    import sys

    return "torch._dynamo" in sys.modules
