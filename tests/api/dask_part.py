"""Starts schedulers and workers of Dask as forks of a process that has loaded Dask and what workers need."""

import importlib
import os
from pathlib import Path

from tests.api.process import start_worker_server
from tests.fork_server import ForkedProcess, ForkServer

_SERVER = ForkServer(__name__)


def start_part(module: str, *options: str, output: Path) -> ForkedProcess:
    """Start what ``python -m distributed.cli.MODULE`` starts; it writes to `output`."""
    return _SERVER.fork([module, *options], output=output, environment=os.environ)


def load() -> None:
    """Load Dask, and what a worker's own processes need."""
    import distributed.cli.dask_scheduler
    import distributed.cli.dask_worker  # noqa: F401 - loaded, not used

    import pace.api.workers.dask_worker
    import pace.api.workers.preloaded  # noqa: F401 - likewise


def run(arguments: list[str]) -> int:
    """Be that part of a cluster."""
    import dask

    module, *options = arguments
    dask.config.set({"distributed.worker.daemon": False})
    if module == "dask_worker":
        start_worker_server()
    importlib.import_module(f"distributed.cli.{module}").main(options)
    return 0
