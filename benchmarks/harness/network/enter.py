"""How a process becomes one of a host's: its network, its name, its own /etc/hosts.

Calls that change the caller: for a process that was forked for it and has one thread.
"""

import contextlib
import ctypes
import os
import signal
import socket

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.names import NAMESPACES

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29

_libc = ctypes.CDLL(None, use_errno=True)


def enter(host: Host) -> None:
    """Move the calling process to `host`; Horovod looks its own name up, so that changes too."""
    network = os.open(NAMESPACES / host.namespace, os.O_RDONLY)
    try:
        _call("setns", network, _CLONE_NEWNET)
    finally:
        os.close(network)
    _call("unshare", _CLONE_NEWNS | _CLONE_NEWUTS)
    # Mounts made here must not show outside.
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)
    _call("mount", os.fsencode(host.hosts_file), b"/etc/hosts", None, ctypes.c_ulong(_MS_BIND), None)
    socket.sethostname(host.name)


def die_with_parent() -> None:
    """Tell the kernel to kill the calling process when its parent process dies."""
    _call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def sleep_precisely() -> None:
    """Ask for timers of the calling thread, and of those it starts, without the usual 50 us of slack."""
    _call("prctl", _PR_SET_TIMERSLACK, ctypes.c_ulong(1))


def run_undisturbed() -> None:
    """Go before every ordinary program of the machine, as far as the kernel allows.

    Ranks stand for machines of their own. At ordinary priority each message of a ring all-reduce may wait for
    another program's time slice, some milliseconds; ranks sleep most of the time and leave the rest alone.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
