"""Threads of servers rest while their process is forked: so a child copies no lock that they hold."""

import weakref
from typing import Any

# Each is held by a thread that adds or replies.
_locks: "weakref.WeakSet[Any]" = weakref.WeakSet()
_held: list[Any] = []


def rest_in_forks(lock: Any) -> None:
    """Make threads that work under a (reentrant) lock rest during forks."""
    _locks.add(lock)


def rest() -> None:
    """Wait for work under way, and let none begin until ``go_on``, in this thread."""
    for lock in list(_locks):
        lock.acquire()
        _held.append(lock)


def go_on() -> None:
    """Let work begin again; in the process that forked and in the forked one."""
    while _held:
        _held.pop().release()
