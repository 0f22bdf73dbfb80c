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
    """Replaces functions, holder by holder.

    Who holds a container that cannot be changed is asked for all such containers of a depth at once: each
    question goes through every object of the process, of which a program may have millions.
    """

    def __init__(self, replaced: list[tuple[Any, Any]]) -> None:
        self._made = {id(own): made for own, made in replaced}
        self._kept = [own for own, _ in replaced]  # so that nothing else gets their ids
        self._unnamed: list[Any] = []  # containers that change only with, or if not of torch, their owners

    def replace(self, holders: Iterable[Any]) -> None:
        for holder in holders:
            self._replace_in(holder)
        for _ in range(_DEPTH):
            containers, self._unnamed = self._unnamed, []
            self._replace_unnamed(containers)
        for kind in [each for each in gc.get_objects() if issubclass(type(each), type)]:
            if str(kind.__module__).partition(".")[0] != "torch":
                self._replace_attributes(kind)
        for frame in sys._current_frames().values():
            at: types.FrameType | None = frame
            while at is not None:
                self._replace_variables(at)
                at = at.f_back

    def _of(self, value: Any) -> Any:
        while id(value) in self._made:  # what was made for a tuple may have been made again
            value = self._made[id(value)]
        return value

    def _replace_in(self, holder: Any) -> None:
        if isinstance(holder, dict):
            self._replace_values(holder)
        elif isinstance(holder, list | collections.deque):
            for place, value in enumerate(holder):
                holder[place] = self._of(value)
        elif isinstance(holder, set | tuple | frozenset):
            self._unnamed.append(holder)
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

    def _replace_unnamed(self, containers: list[Any]) -> None:
        """Change sets, and replace tuples and frozen sets, unless torch itself holds them."""
        containers = list({id(each): each for each in containers if id(each) not in self._made}.values())
        owners = _owners_of(containers, {id(self._kept), id(self._made)})
        named = [each for found in owners.values() for each in found if isinstance(each, dict | list)]
        above = _owners_of(named, {id(each) for each in owners.values()})
        free = {
            id(holder): holder
            for holder in containers
            if not any(
                _is_torchs(each) or any(map(_is_torchs, above.get(id(each), ())))
                for each in owners[id(holder)]
            )
        }
        for holder in free.values():
            if isinstance(holder, set):
                for member in [each for each in holder if id(each) in self._made]:
                    holder.discard(member)
                    holder.add(self._of(member))
            else:
                self._remake(holder, free)
        for holder in free.values():
            for owner in owners[id(holder)]:
                if not isinstance(holder, set) and not _is_torchs(owner):
                    self._replace_in(owner)

    def _remake(self, holder: Any, free: dict[int, Any]) -> None:
        """Make another of a tuple or frozen set, after those within it."""
        for member in holder:
            if id(member) in free and id(member) not in self._made and not isinstance(member, set):
                self._remake(member, free)
        if id(holder) not in self._made:
            base = tuple if isinstance(holder, tuple) else frozenset
            # Without a constructor of the program's own, which may want other arguments.
            self._made[id(holder)] = base.__new__(type(holder), map(self._of, holder))
            self._kept.append(holder)

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


def _owners_of(containers: list[Any], without: set[int]) -> dict[int, list[Any]]:
    """Return what refers to each container, by its id, other than frames and objects with these ids."""
    owners: dict[int, list[Any]] = {id(each): [] for each in containers}
    if not owners:
        return owners
    without = without | {id(containers)}
    for owner in gc.get_referrers(*containers):
        if not isinstance(owner, types.FrameType) and id(owner) not in without:
            for container in {id(each) for each in gc.get_referents(owner)} & owners.keys():
                owners[container].append(owner)
    return owners
