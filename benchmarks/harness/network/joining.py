"""How a rank on a host joins the others: torch.distributed over Gloo, or Horovod over Gloo.

Rank 0 first opens what the others join (``serve``) and everyone is told its port.
"""

import datetime
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.network.hosts import INTERFACE, Host

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
