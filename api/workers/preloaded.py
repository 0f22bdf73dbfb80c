"""Loads modules and compiles functions for workers, once, in the process that forks them."""

import contextlib
import os
import threading

import pace.api.workers.worker_process  # noqa: F401 - loaded, not used
from pace.api.workers.kernels import load_kernels, load_kernels_within
from pace.gc_pause import freeze_what_is_loaded
from pace.solver import compiled

# Enough to load everything that was compiled before, on a slow machine too.
_LOAD_S = 10.0
_LOOK_EVERY_S = 0.5


def _compile_in_background() -> None:
    """Compile the rest in a process of low priority, for all workers: it ends with this process."""
    server = os.getpid()
    if child := os.fork():
        os.waitpid(child, 0)  # this process reads the exit statuses of workers only
        return
    try:
        if not os.fork():
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # who connects to the server waits for it alone
            os.nice(19)
            threading.Thread(target=_end_with, args=(server,), daemon=True).start()
            load_kernels()
    finally:
        os._exit(0)


def _end_with(process: int) -> None:
    wait = threading.Event()
    with contextlib.suppress(ProcessLookupError):
        while not wait.wait(_LOOK_EVERY_S):
            os.kill(process, 0)
    os._exit(0)


# A worker that cannot go without it tries again and tells its pool what went wrong.
with contextlib.suppress(Exception):
    if not load_kernels_within(_LOAD_S):
        if compiled.is_kept:
            _compile_in_background()
        else:
            load_kernels()

freeze_what_is_loaded()
