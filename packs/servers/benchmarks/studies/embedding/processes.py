"""Processes of a contender, and ports for them."""

import importlib
import multiprocessing
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# What servers and workers need, with the compiler, which the first optimizer of a process loads.
_LOADED_ONCE = (
    "torch._dynamo",
    "torch.distributed.optim",
    "torch.distributed.rpc",
    "pace_servers.embedding",
    "pace_servers.runtime.server",
    "benchmarks.studies.embedding.models",
)


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Start a process of its own, a fork of this one, which loads torch; return it, and what it tells."""
    for module in _LOADED_ONCE:
        importlib.import_module(module)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, mine


def new_store() -> str:
    """Return a path at which ranks of torch meet."""
    return str(Path(tempfile.mkdtemp()) / "store")


def free_ports(count: int) -> list[int]:
    """Return ports of this machine's loopback that nobody listens at."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
