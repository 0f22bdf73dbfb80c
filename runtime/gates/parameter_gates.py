"""Finds out which parameters a model is about to use, just before it uses them.

Two ways, because either alone misses some. A forward pre-hook on every leaf module covers modules
that keep their parameters elsewhere too (an RNN's flat weights). A gate around a module's dict of
parameters covers those read from outside the module that owns them: containers, tied weights,
attention that reads its output projection's weight without calling it, an average over
``model.parameters()``.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

import torch
from torch import nn

from pace.runtime.engine.buffers import Slot
from pace.runtime.event_log import log
from pace.runtime.gates.carrier import Carrier

Use = Callable[[Iterable[Slot]], None]


class Attention:
    """Whether gates and hooks have anything to do; most of the time they have not.

    Attributes
    ----------
    needed
        Whether updates are pending, or uses are being learned.
    """

    __slots__ = ("needed",)

    def __init__(self) -> None:
        self.needed = True


class GatedParameters(dict[str, nn.Parameter | None]):
    """A module's parameters; reading one first makes it current."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter | None],
        slots: Mapping[str, Slot],
        attention: Attention,
        use: Use,
        look: Use,
    ) -> None:
        super().__init__(parameters)
        self._slots = {name: (slot,) for name, slot in slots.items()}
        self._attention = attention
        self._all = tuple(slots.values())
        self._use = use
        self._look = look

    def __getitem__(self, name: str) -> nn.Parameter | None:
        if self._attention.needed:
            slots = self._slots.get(name)
            if slots is not None:
                slots[0].claimed = True
                self._use(slots)
        return dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Read one parameter."""
        return self[name] if name in self else default  # noqa: SIM401  # self.get is this method

    def items(self) -> ItemsView[str, nn.Parameter | None]:  # type: ignore[override]  # a view all the same
        """Read all parameters."""
        self._look(self._all)
        return super().items()

    def values(self) -> ValuesView[nn.Parameter | None]:  # type: ignore[override]
        """Read all parameters."""
        self._look(self._all)
        return super().values()

    def __iter__(self) -> Iterator[str]:
        """List the names; defined here so that ``dict(...)`` and ``{**...}`` read through ``__getitem__``."""
        return super().__iter__()

    def copy(self) -> dict[str, nn.Parameter | None]:
        """Read all parameters into a plain dict."""
        return dict(self.items())

    def pop(self, name: str, *default: Any) -> Any:
        """Take one parameter out."""
        if name in self:
            self[name]
        return super().pop(name, *default)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles of the module are modules of their own: they get a plain dict.
        return dict, (list(self.items()),)


class _PreHook:
    """Makes a module's parameters current before its forward; does nothing in a copied module."""

    def __init__(self, slots: tuple[Slot, ...], attention: Attention, use: Use) -> None:
        self._slots = slots
        self._attention = attention
        self._use = use

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        if self._attention.needed:
            for slot in self._slots:
                slot.announced = True
            self._use(self._slots)

    @property
    def idle(self) -> bool:
        """Whether gates see every use that this hook announces."""
        return all(slot.claimed or not slot.announced for slot in self._slots)

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


def _no_hook() -> Callable[[nn.Module, Any], None]:
    return _do_nothing


def _do_nothing(_module: nn.Module, _inputs: Any) -> None:
    return None


class ForwardWatch:
    """Gates and pre-hooks on a model, until ``close``.

    Parameters
    ----------
    slots
        Of the parameters to watch; without any, only the model's forward is.
    attention
        Whether `use` needs to be called.
    use
        Called with the slots of parameters that are about to be used.
    look
        Called with the slots of parameters that somebody lists, for whatever purpose.
    enter
        Called before the outermost module's forward.
    carrier
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
        look: Use,
        enter: Callable[[], None],
        carrier: Carrier | None = None,
    ) -> None:
        self._attention = attention
        self._use = use
        self._carrier = carrier
        self._gated: list[tuple[nn.Module, GatedParameters]] = []
        self._handles: list[Any] = []
        self._hooks: list[tuple[_PreHook, Any]] = []
        self.unseen: list[Slot] = []
        self.unreadable: list[Slot] = []
        if not isinstance(model, torch.jit.ScriptModule):  # which takes no hooks
            self._handles.append(model.register_forward_pre_hook(_EnterHook(enter)))
        seen = carrier is not None and carrier.watch(slots, self._announce)
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
        unseen = {id(slot) for slot in self.unseen}
        for module in model.modules():
            own = {
                name: slots[parameter]
                for name, parameter in module._parameters.items()
                if parameter is not None and parameter in slots
            }
            if not own:
                continue
            if type(module._parameters) is not dict or isinstance(module, torch.jit.ScriptModule):
                self.unreadable += own.values()
                continue
            # What is compiled is gated too, for whoever reads parameters outside of compiled code.
            gated = GatedParameters(module._parameters, own, attention, use, look)
            module._parameters = gated
            self._gated.append((module, gated))
            plain = {name: slot for name, slot in own.items() if id(slot) not in unseen}
            if plain and not seen and next(module.children(), None) is None:
                hook = _PreHook(tuple(plain.values()), attention, use)
                self._hooks.append((hook, module.register_forward_pre_hook(hook)))

    def drop_idle_hooks(self) -> None:
        """Take off the hooks that turned out to see no more than the gates: each costs every forward pass."""
        for hook, handle in self._hooks:
            if hook.idle:
                handle.remove()
        self._hooks = [(hook, handle) for hook, handle in self._hooks if not hook.idle]

    def _announce(self, slots: Iterable[Slot]) -> None:
        if self._attention.needed:
            for slot in slots:
                slot.announced = True
            self._use(slots)

    def close(self) -> None:
        """Take the hooks and gates off again."""
        if self._carrier is not None:
            self._carrier.watch({}, self._announce)
        for handle in (*self._handles, *(handle for _, handle in self._hooks)):
            handle.remove()
        self._handles.clear()
        self._hooks.clear()
        for module, gated in self._gated:
            if module._parameters is gated:
                module._parameters = dict(dict.items(gated))
        self._gated.clear()


class _EnterHook:
    """Runs before the outermost module; does nothing in a copied one."""

    def __init__(self, enter: Callable[[], None]) -> None:
        self._enter = enter

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        self._enter()

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


def _dynamo_loaded() -> bool:
    # Looking at torch._dynamo imports it, which takes seconds; unless it is loaded nothing is compiled.
    import sys

    return "torch._dynamo" in sys.modules
