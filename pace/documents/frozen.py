"""Dicts and lists that refuse to change, for documents whose hash is kept."""

import math
from typing import Any, NoReturn


def _refuse(*_arguments: object, **_named: object) -> NoReturn:
    raise TypeError("documents do not change: make a copy, or a new document with replace()")


class FrozenDict(dict[str, Any]):
    """A dict that refuses to change; equal to a plain one of the same items."""

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return type(self), (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses to change; equal to a plain one of the same items."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = _refuse
    pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return type(self), (list(self),)


def frozen(value: Any) -> Any:
    """Return a value of JSON whose dicts and lists, at every depth, refuse to change.

    Raises
    ------
    ValueError
        For NaN and infinite numbers, which JSON does not have.
    """
    if isinstance(value, dict):
        return FrozenDict({name: frozen(item) for name, item in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(item) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be written as a JSON number")
    return value
