"""How a process becomes one of a host's, and how a rank on a host joins the others.

``enter`` and the calls below it change the caller, which was forked for it and has one thread. Ranks join
over torch.distributed with Gloo, or over Horovod with Gloo. Rank 0 first opens what the others join
(``serve``), and everyone is told its port.
"""

import contextlib
import ctypes
import datetime
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.network.hosts import INTERFACE, Host
from benchmarks.harness.network.names import NAMESPACES

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of <malloc.h>
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


def keep_freed_memory() -> None:
    """Tell malloc to give no memory back to the kernel.

    Otherwise, each iteration maps its activations anew. The kernel then takes 10 to 25 % of the time to clear
    them, and more or less of it at random. The allocators that torch's tuning guide advises keep memory, too.
    """
    for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 << 20)):
        _libc.mallopt(option, value)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


# Ranks that are stopped for minutes between rounds must not count as dead.
PATIENCE_S = 3600


def serve(rank: int, on: Sequence[Host], backend: str, port: int) -> int:
    """Open what the others join, on rank 0, and return its port: `port`, or for Horovod a free one."""
    if backend != "horovod":
        return port
    return serve_horovod(on) if rank == 0 else 0


def join(rank: int, on: Sequence[Host], backend: str, port: int) -> None:
    """Join the others over a backend; for Horovod as a job with PACE does."""
    if backend != "horovod":
        join_torch(rank, on, port)
        return
    import pace.runtime.horovod

    join_horovod(rank, on, port, pace.runtime.horovod.init)


def join_torch(rank: int, on: Sequence[Host], port: int) -> None:
    """Join the default process group; rank 0 keeps the store on `port` of its host."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    timeout = datetime.timedelta(seconds=PATIENCE_S)
    store = TCPStore(on[0].address, port, len(on), rank == 0, timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(on), timeout=timeout)


def serve_horovod(on: Sequence[Host]) -> int:
    """Start Horovod's rendezvous in this process and return its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port: int = server.start()
    names = ",".join(f"{host.name}:1" for host in on)
    server.init(get_host_assignments(parse_hosts(names), len(on), len(on)))
    return port


def join_horovod(rank: int, on: Sequence[Host], port: int, init: Any) -> None:
    """Call `init`, ``hvd.init`` or PACE's, with one process on each host, as under ``horovodrun``."""
    os.environ.update(
        {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(len(on)),
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_CROSS_RANK": str(rank),
            "HOROVOD_CROSS_SIZE": str(len(on)),
            "HOROVOD_HOSTNAME": on[rank].name,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": on[0].address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_IFACE": INTERFACE,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(PATIENCE_S),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
        }
    )
    init()
