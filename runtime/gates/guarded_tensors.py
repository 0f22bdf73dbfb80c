"""Tensors that Python code can use only once they are current, through any reference.

While a tensor is guarded, its Python class is a subclass of its own class with ``__torch_function__``. So
every function, method and property of torch asks the tensor's guard first, in any thread, and through any
list, dictionary, transform or hook that holds the tensor. Properties that only describe a tensor (shape,
dtype, hooks) do not ask. The guard makes the tensor current and calls ``unguard``. Then the class is as
before, and uses of the tensor cost nothing.

A subclass of tensors, such as DTensor, may keep its values in other tensors, which are attributes or come
from methods that torch does not announce. So each attribute that the subclass defines asks, too.

Three kinds of use are not noticed: through other tensors that share the memory (``memory_watch`` looks for
those), by functions of torch that ignore ``__torch_function__`` (see ``function_watch``), and by C++ code
that gets the tensor without a function of torch (gates on modules notice most of these).
"""

import inspect
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

Guard = Callable[[torch.Tensor], None]
"""Makes a tensor current and removes its guard, or raises."""

without_guards = torch._C.DisableTorchFunctionSubclass
"""A context in which this thread uses guarded tensors without asking."""

_guards: dict[int, Mapping[int, Guard]] = {}
_guarded_classes: dict[type, type] = {}

_PROPERTIES = (
    "_backward_hooks",
    "device",
    "dtype",
    "grad",
    "grad_fn",
    "is_cpu",
    "is_cuda",
    "is_leaf",
    "is_meta",
    "is_nested",
    "is_quantized",
    "is_sparse",
    "is_sparse_csr",
    "itemsize",
    "layout",
    "name",
    "names",
    "nbytes",
    "ndim",
    "output_nr",
    "requires_grad",
    "retains_grad",
    "shape",
)
_METHODS = (
    "__len__",
    "dim",
    "element_size",
    "get_device",
    "has_names",
    "is_complex",
    "is_contiguous",
    "is_floating_point",
    "is_inference",
    "is_same_size",
    "is_signed",
    "ndimension",
    "nelement",
    "numel",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "size",
    "storage_offset",
    "stride",
)


def _descriptions() -> frozenset[Any]:
    found: set[Any] = {torch.is_complex, torch.is_floating_point, torch.numel}
    for name in _PROPERTIES:
        attribute = getattr(torch.Tensor, name, None)
        for part in ("__get__", "__set__", "__delete__"):
            if hasattr(attribute, part):
                found.add(getattr(attribute, part))
    found.update(getattr(torch.Tensor, name) for name in _METHODS if hasattr(torch.Tensor, name))
    return frozenset(found)


_DESCRIPTIONS = _descriptions()
_PLAIN = (torch.Tensor, nn.Parameter)
_OF_DTENSOR = ("_spec", "device_mesh", "placements")
_OF_CLASSES = ("__new__", "__init__", "__init_subclass__", "__torch_function__", "__torch_dispatch__")
_NAMES = frozenset([*_PROPERTIES, *_METHODS, *_OF_DTENSOR, *_OF_CLASSES, "_is_param"])
"""Attributes that do not ask, even if a subclass of tensors defines them."""


def guard(tensor: torch.Tensor, by: Guard) -> None:
    """Call `by` before each use of a tensor, until ``unguard``."""
    key = id(tensor)
    _guards[key] = {key: by}
    weakref.finalize(tensor, _guards.pop, key, None).atexit = False
    _switch([tensor])


def unguard(tensor: torch.Tensor) -> None:
    """Remove a tensor's guard, if it has one."""
    _guards.pop(id(tensor), None)
    unguard_all([tensor])


def guard_all(tensors: Iterable[torch.Tensor], guards: Mapping[int, Guard]) -> None:
    """Call a guard before each use of any of these tensors, until ``unguard_all``.

    Parameters
    ----------
    guards
        The guard of each tensor, by its ``id()``; valid until ``forget_guards``.
    """
    _guards[id(guards)] = guards
    _switch(tensors)


def unguard_all(tensors: Iterable[torch.Tensor]) -> None:
    """Remove the guards of these tensors, if they have any."""
    kind_of_class = _kinds.get
    for tensor in tensors:
        kind = kind_of_class(type(tensor))
        if kind is not None:
            tensor.__class__ = kind


def forget_guards(guards: Mapping[int, Guard]) -> bool:
    """Remove these guards from all their tensors; return whether no tensor has a guard any more."""
    _guards.pop(id(guards), None)
    return not _guards


def _switch(tensors: Iterable[torch.Tensor]) -> None:
    # Their guards are registered by now: a thread that finds this class without a guard removes it.
    guarded_class = _guarded_classes.get
    for tensor in tensors:
        kind = type(tensor)
        tensor.__class__ = guarded_class(kind) or _guarded_class(tensor)


def _guard_of(tensor: torch.Tensor) -> Guard | None:
    key = id(tensor)
    for guards in list(_guards.values()):
        if key in guards:
            return guards[key]
    return None


def guarded(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a guard."""
    return type(tensor) in _kinds


_kinds: dict[type, type] = {}  # the original class of each guarded class


def _guarded_class(tensor: torch.Tensor) -> type:
    """Make the guarded class of a tensor's class."""
    kind: Any = type(tensor)
    names = ("__deepcopy__", "__reduce_ex__", "__reduce__", "as_subclass")
    methods: dict[str, Any] = {name: _AskingAttribute(kind, name) for name in _own_attributes(tensor)}
    methods |= {name: _asking_first(name) for name in names if hasattr(kind, name)}
    made: type = type(kind)(
        kind.__name__,
        (kind,),
        methods
        | {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "__slots__": (),
            "__torch_function__": classmethod(_call),
        },
    )
    _guarded_classes[kind] = _guarded_classes[made] = made
    _kinds[made] = kind
    return made


def _asking_first(name: str) -> Callable[..., Any]:
    def method(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        _ask(tensor)
        return getattr(tensor, name)(*arguments, **named)

    return method


class _AskingAttribute:
    """An attribute of a subclass of tensors, in its guarded class: who reads or sets it asks the guard first.

    ``__getattribute__`` would do the same, and make each operation of an update slower by microseconds.
    """

    __slots__ = ("_kind", "_name", "_own")

    def __init__(self, kind: type, name: str) -> None:
        self._kind = kind
        self._name = name
        self._own: Any = inspect.getattr_static(kind, name, None)

    def __get__(self, tensor: torch.Tensor | None, _class: type | None = None) -> Any:
        if tensor is None:
            return getattr(self._kind, self._name)
        _ask_enabled(tensor)
        values = _INSTANCE.__get__(tensor)
        if self._name in values:
            return values[self._name]
        return self._own.__get__(tensor, self._kind) if hasattr(self._own, "__get__") else self._own

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        _ask_enabled(tensor)
        if hasattr(self._own, "__set__"):
            self._own.__set__(tensor, value)
        else:
            _INSTANCE.__get__(tensor)[self._name] = value

    def __delete__(self, tensor: torch.Tensor) -> None:
        _ask_enabled(tensor)
        if hasattr(self._own, "__delete__"):
            self._own.__delete__(tensor)
        else:
            del _INSTANCE.__get__(tensor)[self._name]


_INSTANCE: Any = vars(torch.Tensor)["__dict__"]  # the descriptor of each tensor's own attributes


def _ask_enabled(tensor: torch.Tensor) -> None:
    if torch._C._is_torch_function_enabled():  # not ``without_guards``
        _ask(tensor)


def _own_attributes(tensor: torch.Tensor) -> set[str]:
    """Return the names of what a tensor's class adds to torch's own, and of the tensors within the tensor."""
    kind = type(tensor)
    if kind in _PLAIN:
        return set()
    found = {"__dict__"}
    for base in kind.__mro__:
        if base not in nn.Parameter.__mro__:
            found |= {
                name
                for name, value in vars(base).items()
                if not name.startswith("__") or isinstance(value, types.FunctionType)
            }
    if hasattr(kind, "__tensor_flatten__"):
        found |= set(tensor.__tensor_flatten__()[0])  # type: ignore[attr-defined]  # of wrapper subclasses
    return found - _NAMES


def _call(_class: type, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Any = None) -> Any:
    """Call a function of torch with guarded tensors: ask their guards first."""
    named = named or {}
    if function in _DESCRIPTIONS:
        with without_guards():
            return function(*arguments, **named)
    if not (_ask_within(arguments) | _ask_within(named.values())):
        for tensor in _types_within(types, arguments, named):
            _ask(tensor)
    return function(*arguments, **named)


def ask_arguments(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Call the guards of all tensors among a function's arguments."""
    if _guards:
        _ask_within(arguments)
        _ask_within(named.values())


def ask_unannounced(function: Any, types: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Call the guards of tensors of which torch does not tell their class that a function uses them."""
    if not _guards or function in _DESCRIPTIONS or any(kind in _kinds for kind in types):
        return
    ask_arguments(arguments, named)
    if in_transform():  # whose tensors have others inside
        for tensor in torch.utils._pytree.tree_leaves((arguments, named)):
            while isinstance(tensor, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(tensor):
                tensor = _functorch.get_unwrapped(tensor)
            ask_arguments((tensor,), {})


def in_transform() -> bool:
    """Return whether a transform of ``torch.func`` runs."""
    # Asking for their stack would create one, which each backward node then copies.
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(_IN_TRANSFORM))


_functorch: Any = torch._C._functorch
_IN_TRANSFORM: Any = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode


def _ask(tensor: torch.Tensor) -> None:
    by = _guard_of(tensor)
    if by is not None:
        by(tensor)
    if type(tensor) in _kinds and _guard_of(tensor) is None:
        unguard(tensor)  # another thread has just made it current


def _ask_within(values: Iterable[Any]) -> bool:
    """Ask the guards of all tensors in nested lists and dictionaries; return whether there were any."""
    found = False
    for value in values:
        if isinstance(value, torch.Tensor):
            if type(value) in _kinds:
                _ask(value)
                found = True
        elif isinstance(value, list | tuple):
            found |= _ask_within(value)
        elif isinstance(value, dict):
            found |= _ask_within(value.values())
    return found


def _types_within(
    types: Iterable[type], arguments: tuple[Any, ...], named: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the guarded tensors in containers that only torch can open; none if all have become current.

    Since torch looked at their types, another thread may have made them current, or Dynamo's compilation of
    the code that answers torch.
    """
    looked_for = {kind for each in types if each in _kinds for kind in (each, _kinds[each])}
    leaves = torch.utils._pytree.tree_leaves((arguments, named))
    found = [leaf for leaf in leaves if type(leaf) in looked_for]
    if not found:
        raise RuntimeError("a tensor whose update is pending lies where PACE does not find it")
    return found
