"""Makes functions of torch that read tensors without ``__torch_function__`` ask the guards first."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from pace.runtime.gates.patches.kept_functions import holders_of, replace_in
from pace.runtime.gates.patches.places import PLACES, patch, patch_legacy_constructors, torchs_own

Ask = Callable[[tuple[Any, ...], dict[str, Any]], None]

_DEFAULT_TYPE = "torch._C:_set_default_tensor_type"
_MODULES = ("torch:", "torch._C:", "torch._functorch.", "torch.utils.dlpack:")
_PLACES = [place for place in PLACES if place.startswith(_MODULES)]


def have_them_ask(ask: Ask) -> None:
    """Replace these functions of torch by ones that first call `ask` with their arguments; call it once."""
    holders = holders_of(torchs_own(_PLACES))
    replaced: list[tuple[Any, Any]] = []

    def asking(own: Any) -> Any:
        replaced.append((own, _asking(own, ask)))
        return replaced[-1][1]

    for place in _PLACES:
        if place == "torch:Tensor.__new__":
            patch(place, lambda own: staticmethod(_asking(own, ask)))
        elif place != _DEFAULT_TYPE:
            patch(place, asking)
    constructors = patch_legacy_constructors(lambda own: _legacy(own, ask))
    owns = {made: own for own, made in constructors}
    patch(_DEFAULT_TYPE, lambda own: lambda kind: own(owns.get(kind, kind)))
    _tell_compiler(replaced)
    replace_in(holders, replaced + constructors)


def _tell_compiler(replaced: Iterable[tuple[Any, Any]]) -> None:
    """Have ``torch.jit`` compile calls of what was made as calls of torch's own functions."""
    # A table that is not there yet will be made of what torch's modules have then.
    operators: Any = torch.jit._builtins._builtin_table or {}
    for own, made in replaced:
        if id(own) in operators:
            operators[id(made)] = operators[id(own)]


def _asking(own: Any, ask: Ask) -> Any:
    @functools.wraps(own)
    def asking(*arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():  # what is compiled begins with current parameters
            ask(arguments, named)
        return own(*arguments, **named)

    return asking


def _legacy(own: Any, ask: Ask) -> type:
    """Return a type that replaces one of torch's legacy constructors, which cannot be subclassed."""

    class Legacy(type):
        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            ask(arguments, named)
            return own(*arguments, **named)

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, own)

        def __getattr__(cls, name: str) -> Any:
            return getattr(own, name)

        def __repr__(cls) -> str:
            return repr(own)

    # Torch goes by this name where it is given a type, as in ``tensor.type(torch.DoubleTensor)``.
    return Legacy(repr(own).split("'")[1], (), {"__doc__": own.__doc__})
