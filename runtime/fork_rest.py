"""Pauses the threads of servers while their process forks, so that the child copies no held lock."""

import weakref
from typing import Any

# The locks; threads that add or reply hold one.
_locks: "weakref.WeakSet[Any]" = weakref.WeakSet()
_held: list[Any] = []


def rest_in_forks(lock: Any) -> None:
    """Make threads that work under a (reentrant) lock rest during forks."""
    _locks.add(lock)


def rest() -> None:
    """Wait for work in progress, and let none begin until this thread calls ``go_on``."""
    for lock in list(_locks):
        lock.acquire()
        _held.append(lock)


def go_on() -> None:
    """Let work begin again, in the process that forked and in its child."""
    while _held:
        _held.pop().release()
