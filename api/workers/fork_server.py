"""The process that forks workers, as a fork of the service: it has what the service has imported already.

It is forked before the service has threads or connections. It sleeps until the service is ready or the first
worker is wanted; then it loads what workers need. Should it end, multiprocessing starts another as a program
of its own, which imports everything anew.
"""

import multiprocessing.util
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from multiprocessing import forkserver, resource_tracker

from pace.gc_pause import freeze_what_is_loaded

# What it imports before it forks the first worker.
PRELOADED = ("pace.api.workers.preloaded",)

# The end of a pipe that the service closes to let the process load; none if it need not sleep.
_wakes: list[int] = []


def start_fork_server() -> None:
    """Start the process, unless it runs. The caller has one thread, and no socket.

    Only on Linux: system libraries of macOS do not survive a fork. Where it cannot be started, the first
    worker starts another.
    """
    if sys.platform != "linux":
        return
    resource_tracker.ensure_running()
    freeze_what_is_loaded()
    # multiprocessing has no other way to say how the process is started.
    names = vars(multiprocessing.util)
    spawn = names["spawnv_passfds"]
    sleeps, wakes = os.pipe()
    _wakes.append(wakes)
    names["spawnv_passfds"] = partial(_fork, sleeps)
    try:
        forkserver.ensure_running()
    except OSError:
        pass  # the first worker tries again, and says so if that fails, too
    finally:
        names["spawnv_passfds"] = spawn
        os.close(sleeps)


def load_for_workers() -> None:
    """Let the process load what workers need, before the first is wanted. Idempotent."""
    while _wakes:
        os.close(_wakes.pop())


def _fork(sleeps: int, _python: bytes, _command: Sequence[str], passed: Sequence[int]) -> int:
    """Return the id of the new process, which has the two descriptors of the server and no others."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the service decides when to end
        listener, alive = passed
        first = 3
        for kept in (*sorted((*passed, sleeps)), os.sysconf("SC_OPEN_MAX")):
            os.closerange(first, kept)
            first = kept + 1
        if alive not in select.select([listener, alive, sleeps], [], [])[0]:
            os.close(sleeps)
            forkserver.main(listener, alive, PRELOADED)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)
