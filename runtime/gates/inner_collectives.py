"""The collectives of ``fully_shard`` itself: they get the wrapper's time-out, and their errors name ranks.

Torch gathers and reduce-scatters a unit in the user's process groups, whose time-out is 30 min by default.
While a model is wrapped, these groups have the wrapper's time-out, unless their own is shorter. This applies
to all calls in them, including those of DTensors. Errors are explained where a unit's own collectives are
called or waited for.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pace.runtime.engine.shard_units import Unit

Failing = Callable[[str], AbstractContextManager[None]]
"""Takes the name of a collective; returns a context that converts its errors to the wrapper's."""


def guard_collectives(units: Iterable[Unit], timeout_s: float, failing: Failing) -> Callable[[], None]:
    """Give the units' collectives a time-out and explained errors; return a function that undoes it."""
    units = list(units)
    undone = contextlib.ExitStack()
    for group in _groups(units):
        undone.callback(_limit(group, timedelta(seconds=timeout_s)))
    for unit in units:
        group, name = unit.group, unit.name or "the outermost module"
        gather, scatter = f"the all-gather of {name}", f"the reduce-scatter of {name}"
        undone.callback(_exchanged(group, "_all_gather_comm", gather, failing))
        undone.callback(_exchanged(group, "_reduce_scatter_comm", scatter, failing))
        for method in ("wait_for_unshard", "finalize_backward"):
            undone.callback(_awaited(group, method, gather, failing))
    return undone.close


def shard_ranks(units: Iterable[Unit]) -> set[int]:
    """Return the ranks of the whole job that take part in the units' collectives."""
    return {rank for group in _groups(units) for rank in dist.get_process_group_ranks(group)}


def _groups(units: Iterable[Unit]) -> list[dist.ProcessGroup]:
    found: dict[int, dist.ProcessGroup] = {}
    for unit in units:
        for mesh in (unit.group.mesh_info, unit.group.post_forward_mesh_info):
            for name in ("shard_process_group", "reduce_scatter_process_group"):
                group = getattr(mesh, name, None)
                if group is not None:
                    found[id(group)] = group
    return list(found.values())


class _Exchange:
    """Replaces torch's object that calls one of a unit's two collectives."""

    def __init__(self, own: Any, what: str, failing: Failing) -> None:
        self.own = own
        self._what = what
        self._failing = failing

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._failing(self._what):
            return self.own(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


class _Awaited:
    """Wraps a method of a unit that waits for a gather."""

    def __init__(self, group: Any, own: Callable[..., None], what: str, failing: Failing) -> None:
        self._group = weakref.ref(group)
        self._own = own
        self._what = what
        self._failing = failing

    def __call__(self, *arguments: Any, **named: Any) -> None:
        work = getattr(getattr(self._group(), "_all_gather_result", None), "all_gather_work", None)
        if isinstance(work, dist.Work):
            with self._failing(self._what):
                work.wait()
        self._own(*arguments, **named)


def _exchanged(group: Any, name: str, what: str, failing: Failing) -> Callable[[], None]:
    own = getattr(group, name)
    exchange = _Exchange(own, what, failing)
    setattr(group, name, exchange)

    def give_back() -> None:
        if getattr(group, name) is exchange:
            setattr(group, name, own)

    return give_back


def _awaited(group: Any, name: str, what: str, failing: Failing) -> Callable[[], None]:
    method = _Awaited(group, getattr(group, name), what, failing)
    setattr(group, name, method)

    def give_back() -> None:
        if vars(group).get(name) is method:
            delattr(group, name)

    return give_back


class _Limits:
    """The time-outs that wrappers set for a process group, and the original ones of its backends."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        backends = [group._get_backend(device) for device in group._device_types]
        self._backends: list[Any] = [each for each in backends if _timeout_of(each) is not None]
        self._own = [_timeout_of(each) for each in self._backends]
        self._given = list(self._own)
        self.asked: list[timedelta] = []

    def apply(self) -> None:
        """Set the shortest time-out."""
        for number, backend in enumerate(self._backends):
            now = _timeout_of(backend)
            if now != self._given[number]:  # the user has changed it meanwhile
                self._own[number] = now
            limit = self._given[number] = min([self._own[number], *self.asked])
            backend._set_default_timeout(limit)


def _timeout_of(backend: Any) -> Any:
    """Return a backend's time-out; None if the backend does not tell it, as some outside of torch."""
    return getattr(getattr(backend, "options", None), "_timeout", None)


# Several wrappers may use the same process group.
_limits: "weakref.WeakKeyDictionary[dist.ProcessGroup, _Limits]" = weakref.WeakKeyDictionary()


def _limit(group: dist.ProcessGroup, timeout: timedelta) -> Callable[[], None]:
    if group not in _limits:
        _limits[group] = _Limits(group)
    limits = _limits[group]
    limits.asked.append(timeout)
    limits.apply()

    def lift() -> None:
        limits.asked.remove(timeout)
        limits.apply()
        if not limits.asked:
            _limits.pop(group, None)

    return lift
