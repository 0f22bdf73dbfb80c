"""Loads modules and compiled functions for workers, once, in the process that forks them.

Modules are loaded when the service is ready, and what was not compiled is compiled then, by a process of low
priority, which ends. Compiled functions take 80 MB, so they wait for the first request: the first worker
reads its body, while what most schedules need is loaded for the second. The rest follows while no fork is
asked for, part by part, as far as it was compiled before. If a part was not, a process of low priority
compiles all, for all workers. Then this process goes on. Imported by any other process, this module does
nothing.
"""

import contextlib
import os
import signal
import sys
import threading
from multiprocessing import forkserver
from types import FrameType

import pace.api.questions.all_kinds
import pace.api.workers.worker_process  # noqa: F401 - both loaded, not used
from pace.api.workers.kernels import (
    all_are_loaded,
    load_first_kernels,
    load_kernels,
    load_next_if_compiled,
)
from pace.gc_pause import freeze_what_is_loaded
from pace.solver import compiled

# After the second fork: until the first request is answered, on a slow machine too.
_FIRST_PAUSE_S = 2.0
_PAUSE_S = 0.1
_LOOK_EVERY_S = 0.5
# Ignored by a process that does not expect it, should the one that expects it be gone.
_COMPILED = signal.SIGURG

_server = os.getpid()
_num_forks = 0
_has_compiled = False


def _load_before_second_fork() -> None:
    """Load what most schedules need. The first worker reads a body meanwhile."""
    global _num_forks
    if os.getpid() != _server:
        return
    _num_forks += 1
    if _num_forks == 2:
        # A worker that cannot go without it tries again and tells its pool what went wrong.
        with contextlib.suppress(Exception):
            load_first_kernels()
            load_next_if_compiled()
        freeze_what_is_loaded()
        signal.setitimer(signal.ITIMER_REAL, _FIRST_PAUSE_S)


def _load_more(number: int, frame: FrameType | None) -> None:
    """Load one more part between two forks. Python calls this in the main thread, for a timer or a signal."""
    global _has_compiled
    del number
    if os.getpid() != _server or _num_forks < 2 or all_are_loaded():
        return
    if not _waits_for_requests(frame):
        signal.setitimer(signal.ITIMER_REAL, _FIRST_PAUSE_S)
    elif load_next_if_compiled():
        freeze_what_is_loaded()
        signal.setitimer(signal.ITIMER_REAL, _PAUSE_S)
    elif not _has_compiled:
        _has_compiled = True
        _compile_in_background()


def _waits_for_requests(frame: FrameType | None) -> bool:
    """Whether this process was interrupted while it waited to be asked for a fork."""
    names: list[str | None] = []
    while frame is not None and len(names) < 2:
        names.append(frame.f_globals.get("__name__"))
        frame = frame.f_back
    return names == ["selectors", forkserver.__name__]


def _compile_in_background() -> None:
    """Compile all in a process of low priority, which ends with this one and tells it when it is done."""
    try:
        if child := os.fork():
            os.waitpid(child, 0)  # this process reads the exit statuses of workers only
            return
    except OSError:  # no process can be started now
        return
    try:
        if not os.fork():
            signal.set_wakeup_fd(-1)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # who connects to the server waits for it alone
            os.nice(19)
            threading.Thread(target=_end_with, args=(_server,), daemon=True).start()
            # Whoever compiled what comes first compiled the rest after it.
            if _num_forks or not load_next_if_compiled():
                load_kernels()
                os.kill(_server, _COMPILED)
    finally:
        os._exit(0)


def _end_with(process: int) -> None:
    wait = threading.Event()
    with contextlib.suppress(ProcessLookupError):
        while not wait.wait(_LOOK_EVERY_S):
            os.kill(process, 0)
    os._exit(0)


def _is_preloaded_by_fork_server() -> bool:
    """Whether it is the server of forks that imports this module, and not a program that looks at it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != forkserver.__name__:
        frame = frame.f_back
    return frame is not None


def _preload() -> None:
    if not compiled.is_kept:
        with contextlib.suppress(Exception):  # as below
            load_kernels()
    freeze_what_is_loaded()
    if not all_are_loaded():
        _compile_in_background()
        signal.signal(signal.SIGALRM, _load_more)
        signal.signal(_COMPILED, _load_more)
        os.register_at_fork(before=_load_before_second_fork)


if _is_preloaded_by_fork_server():
    _preload()
