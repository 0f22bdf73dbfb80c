"""The one list of what the runtime puts into torch's place, and how it is put there.

Every patch calls torch's own function and stays for as long as the process lives: others may have put
functions of theirs around it since. Patches that depend on a wrapper ask who is alive when they are called.
"""

import functools
import gc
import importlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

PLACES: dict[str, str] = {
    "torch.autograd:_engine_run_backward": "tells when the outermost backward pass ends",
    "torch.jit._recursive:create_script_module": "tells which parameters compiled modules share",
    "torch._dynamo.eval_frame:install_generation_tagging_init": "tells when a compiled function begins",
    "torch._C:ScriptFunction.__call__": "waits for updates of its arguments, as all below",
    "torch._C:_to_dlpack": "reads the tensor that it is given",
    "torch:to_dlpack": "reads the tensor that it is given",
    "torch.utils.dlpack:to_dlpack": "reads the tensor that it is given",
    "torch:tensor": "copies",
    "torch:as_tensor": "copies or shares memory",
    "torch:asarray": "copies or shares memory",
    "torch:Tensor.__new__": "shares memory",
    "torch:Tensor.new_tensor": "copies",
    "torch:Tensor.as_subclass": "shares memory",
    "torch:sparse_coo_tensor": "copies",
    "torch:sparse_compressed_tensor": "copies",
    "torch:sparse_csr_tensor": "copies",
    "torch:sparse_csc_tensor": "copies",
    "torch:sparse_bsr_tensor": "copies",
    "torch:sparse_bsc_tensor": "copies",
    "torch._C:_set_default_tensor_type": "takes what stands for the legacy constructors",
}
"""Where (``module:name``), and what for. The legacy constructors (``torch.FloatTensor``) come in addition."""

_done: set[str] = set()


def patch(place: str, make: Callable[[Any], Any]) -> Any:
    """Put ``make(own)`` in the place of torch's own function, once a process.

    Returns
    -------
    Torch's own, where it was there and not replaced before; modules that are not loaded are left alone.
    """
    assert place in PLACES, place
    module, _, path = place.partition(":")
    owner: Any = sys.modules.get(module)
    if place in _done or owner is None:
        return None
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each, None)
    own = getattr(owner, name, None)
    if own is None:
        return None
    _done.add(place)
    made = make(own)
    setattr(owner, name, made)
    return own


def patch_legacy_constructors(make: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    """Put ``make(own)`` in the place of ``torch.FloatTensor`` and the like; return pairs of both."""
    made: list[tuple[Any, Any]] = []
    for own in torch_legacy_constructors():
        module, _, name = str(own).split("'")[1].rpartition(".")
        owner = importlib.import_module(module)
        if getattr(owner, name, None) is own:
            made.append((own, make(own)))
            setattr(owner, name, made[-1][1])
    return made


def torch_legacy_constructors() -> list[Any]:
    """Return the types of torch that make tensors of one dtype and device."""
    torch: Any = importlib.import_module("torch")
    return sorted(torch._tensor_classes, key=str)


def torchs_own(places: Iterable[str]) -> tuple[Any, ...]:
    """Return what is in some places that are not patched yet, and the legacy constructors."""
    found = []
    for place in places:
        module, _, name = place.partition(":")
        if place not in _done and "." not in name:
            found.append(getattr(sys.modules.get(module), name, None))
    return (*(each for each in found if each is not None), *torch_legacy_constructors())


def holders_of(functions: tuple[Any, ...]) -> list[Any]:
    """Return what refers to functions of torch and is not torch's; to be asked before they are patched."""
    # The collector finds no references in what a program froze. Nothing is frozen again: it would take what
    # the program made since, such as the model, which would then live for as long as the process.
    gc.unfreeze()
    return [holder for holder in gc.get_referrers(*functions) if not _is_torchs(holder)]


def replace_in(holders: Iterable[Any], replaced: list[tuple[Any, Any]]) -> None:
    """Replace functions where user code has kept them, as by ``from torch import tensor``.

    That is in the namespaces of modules and classes, objects' attributes, lists, dictionaries, closures,
    defaults and ``functools.partial``; not in tuples and sets.
    """
    found = {id(own): made for own, made in replaced}
    for holder in holders:
        if isinstance(holder, dict):
            _replace_values(holder, found)
        elif isinstance(holder, list):
            holder[:] = [found.get(id(value), value) for value in holder]
        elif isinstance(holder, types.CellType):
            holder.cell_contents = found[id(holder.cell_contents)]
        elif isinstance(holder, functools.partial) and id(holder.func) in found:
            state = holder.__reduce__()[2]
            holder.__setstate__((found[id(holder.func)], *state[1:]))  # type: ignore[attr-defined]
        elif isinstance(holder, tuple):
            _replace_in_defaults(holder, found)
        elif isinstance(attributes := getattr(holder, "__dict__", None), dict):
            _replace_values(attributes, found)
    for kind in [each for each in gc.get_objects() if issubclass(type(each), type)]:
        if str(kind.__module__).partition(".")[0] == "torch":
            continue
        for name, value in list(vars(kind).items()):
            if id(value) in found:
                setattr(kind, name, found[id(value)])


def _replace_values(values: dict[Any, Any], found: dict[int, Any]) -> None:
    for key, value in list(values.items()):
        if id(value) in found:
            values[key] = found[id(value)]


def _replace_in_defaults(values: tuple[Any, ...], found: dict[int, Any]) -> None:
    for owner in gc.get_referrers(values):
        if isinstance(owner, types.FunctionType) and owner.__defaults__ is values and not _is_torchs(owner):
            owner.__defaults__ = tuple(found.get(id(value), value) for value in values)


def _is_torchs(holder: Any) -> bool:
    """Whether torch or the runtime itself has something, to tell its functions from others."""
    if isinstance(holder, dict):
        name = holder.get("__name__", holder.get("__module__", ""))
    else:
        name = getattr(holder, "__module__", "")
    return isinstance(name, str) and name.partition(".")[0] in ("torch", "pace")
