"""Functions of torch that a program kept before the runtime replaced them: found, and replaced as well."""

import collections
import ctypes
import functools
import gc
import sys
import types
from collections.abc import Iterable
from typing import Any

# Containers within containers that cannot be changed, up to one that can.
_DEPTH = 4


def holders_of(functions: tuple[Any, ...]) -> list[Any]:
    """Return what refers to functions of torch and is not torch's; to be asked before they are patched."""
    # The collector finds no references in what a program froze. Nothing is frozen again: it would take what
    # the program made since, such as the model, which would then live for as long as the process.
    gc.unfreeze()
    return [holder for holder in gc.get_referrers(*functions) if not _is_torchs(holder)]


def replace_in(holders: Iterable[Any], replaced: list[tuple[Any, Any]]) -> None:
    """Replace functions where user code has kept them, as by ``from torch import tensor``.

    That is in the namespaces of modules and classes, objects' attributes, containers, closures, defaults,
    ``functools.partial``, and the variables of functions and generators that have begun.
    """
    _Replacer(replaced).replace(holders)


class _Replacer:
    def __init__(self, replaced: list[tuple[Any, Any]]) -> None:
        self._made = {id(own): made for own, made in replaced}
        self._kept = [own for own, _ in replaced]  # so that nothing else gets their ids

    def replace(self, holders: Iterable[Any]) -> None:
        for holder in holders:
            self._replace_in(holder, _DEPTH)
        for kind in [each for each in gc.get_objects() if issubclass(type(each), type)]:
            if str(kind.__module__).partition(".")[0] != "torch":
                self._replace_attributes(kind)
        for frame in sys._current_frames().values():
            at: types.FrameType | None = frame
            while at is not None:
                self._replace_variables(at)
                at = at.f_back

    def _of(self, value: Any) -> Any:
        return self._made.get(id(value), value)

    def _replace_in(self, holder: Any, depth: int) -> None:
        if isinstance(holder, dict):
            self._replace_values(holder)
        elif isinstance(holder, list | collections.deque):
            for place, value in enumerate(holder):
                holder[place] = self._of(value)
        elif isinstance(holder, set):
            self._replace_members(holder)
        elif isinstance(holder, tuple | frozenset):
            self._replace_whole(holder, depth)
        elif isinstance(holder, types.CellType):
            holder.cell_contents = self._of(holder.cell_contents)
        elif isinstance(holder, types.FunctionType):
            holder.__defaults__ = self._of(holder.__defaults__)
        elif isinstance(holder, functools.partial):
            state: Any = holder.__reduce__()[2]
            holder.__setstate__((*map(self._of, state[:2]), *state[2:]))  # type: ignore[attr-defined]
        elif isinstance(holder, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
            names = ("gi_frame", "cr_frame", "ag_frame")
            frame = next((getattr(holder, name) for name in names if hasattr(holder, name)), None)
            if frame is not None:
                self._replace_variables(frame)
        elif isinstance(attributes := getattr(holder, "__dict__", None), dict):
            self._replace_values(attributes)

    def _replace_values(self, values: dict[Any, Any]) -> None:
        for key, value in list(values.items()):
            if id(value) in self._made:
                values[key] = self._of(value)

    def _replace_attributes(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            if id(value) in self._made:
                setattr(kind, name, self._of(value))

    def _replace_members(self, members: set[Any]) -> None:
        if not _is_in_torch(members, 2):
            for member in [each for each in members if id(each) in self._made]:
                members.discard(member)
                members.add(self._of(member))

    def _replace_whole(self, holder: Any, depth: int) -> None:
        """Put another in the place of a container that cannot be changed, wherever it is."""
        if depth == 0 or id(holder) in self._made or _is_in_torch(holder, 2):
            return
        base = tuple if isinstance(holder, tuple) else frozenset
        # Without a constructor of the program's own, which may want other arguments.
        self._made[id(holder)] = base.__new__(type(holder), map(self._of, holder))
        self._kept.append(holder)
        for owner in gc.get_referrers(holder):
            if owner is not self._kept and not _is_torchs(owner):
                self._replace_in(owner, depth - 1)

    def _replace_variables(self, frame: types.FrameType) -> None:
        if _is_torchs(frame.f_globals):
            return
        variables, changed = frame.f_locals, False  # asked for again, it would be made anew
        for name, value in list(variables.items()):
            if id(value) in self._made:
                variables[name] = self._of(value)
                changed = True
        if changed:  # before Python 3.13, what was changed is a copy
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _is_torchs(holder: Any) -> bool:
    """Whether torch or the runtime itself has something, to tell its functions from others."""
    if isinstance(holder, dict):
        name = holder.get("__name__", holder.get("__module__", ""))
    elif isinstance(holder, tuple):
        return len(holder) == 2 and isinstance(holder[1], str) and holder[1].startswith("aten::")
    else:
        name = getattr(holder, "__module__", "")
    return isinstance(name, str) and name.partition(".")[0] in ("torch", "pace")


def _is_in_torch(container: Any, depth: int) -> bool:
    """Whether something of torch, a module's dictionary say, holds a container that has no name."""
    owners = [owner for owner in gc.get_referrers(container) if not isinstance(owner, types.FrameType)]
    return any(
        _is_torchs(owner) or (depth > 1 and isinstance(owner, dict | list) and _is_in_torch(owner, depth - 1))
        for owner in owners
    )
