"""Runs tasks on a Dask cluster, for ``pace.api.workers.dask_bridge`` only. Needs ``pace-scheduler[dask]``.

The cluster's workers do as this service would: a process of their own for each task, killed beyond its
limits (``pace.api.workers.dask_worker``). Dask gives a task whose worker is lost to another worker; a lost
scheduler ends all that it had, and the queue in the database has them done again.
"""

import contextlib
import os
import threading
import uuid
from collections.abc import Callable
from typing import Any

import structlog
from distributed import CancelledError as DaskCancelled
from distributed import Client, Future, KilledWorker
from distributed import TimeoutError as DaskTimeout
from distributed.comm.core import CommClosedError

from pace.api.errors import WorkerDied
from pace.api.workers import dask_worker
from pace.api.workers.executor import Progress
from pace.version import __version__

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 1.0
_CONNECT_TIMEOUT_S = 5.0
_LOST = (KilledWorker, DaskCancelled, CommClosedError, DaskTimeout, OSError)


class DaskCluster:
    """A connection to a scheduler, made again whenever it is lost.

    Parameters
    ----------
    address
        Address of the scheduler, such as ``tcp://scheduler:8786``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.topic = f"pace-{uuid.uuid4().hex}"
        self._num_threads = 0
        self._client: Client | None = None
        self._listeners: dict[str, Progress] = {}
        self._ended = threading.Event()
        self._minder: threading.Thread | None = None

    def start(self) -> None:
        """Connect, in the background."""
        if self._minder is None:
            self._minder = threading.Thread(target=self._mind, name="pace-dask", daemon=True)
            self._minder.start()

    def close(self) -> None:
        """Disconnect from the cluster, which drops its running jobs."""
        self._ended.set()
        if self._minder is not None:
            self._minder.join()
            self._minder = None

    @property
    def num_threads(self) -> int:
        """Number of the workers' threads; 0 as soon as the connection is lost."""
        client = self._client
        return 0 if client is None or client.status != "running" else self._num_threads

    @property
    def client(self) -> Client:
        """The connection, or None."""
        client = self._client
        if client is None or client.status != "running":
            raise CommClosedError(f"no connection to {self.address}")
        return client

    def doubt(self) -> None:
        """Report 0 threads until the scheduler answers again."""
        self._num_threads = 0

    def listen(self, job: str, progress: Progress) -> None:
        """Call `progress` with a job's messages, until ``stop_listening``."""
        self._listeners[job] = progress

    def stop_listening(self, job: str) -> None:
        """Stop calling `progress`."""
        self._listeners.pop(job, None)

    def _mind(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S if self._client is not None else 0.1):
            try:
                if self._client is None or self._client.status != "running":
                    self._disconnect()
                    self._client = self._connect()
                    log.info("dask-connected", scheduler=self.address)
                workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
                self._num_threads = sum(worker["nthreads"] for worker in workers)
            except Exception as error:  # of any of Dask's layers: connect anew
                self._disconnect()
                log.warning("dask-unreachable", scheduler=self.address, error=str(error))
                self._ended.wait(_LOOK_EVERY_S)
        self._disconnect()

    def _connect(self) -> Client:
        client = Client(
            self.address, timeout=_CONNECT_TIMEOUT_S, set_as_default=False, name=f"pace-{os.getpid()}"
        )
        client.subscribe_topic(self.topic, self._hear)
        return client

    def _disconnect(self) -> None:
        self._num_threads = 0
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close(timeout=_CONNECT_TIMEOUT_S)

    def _hear(self, event: tuple[float, Any]) -> None:
        job, value = event[1]
        progress = self._listeners.get(job)
        if progress is not None:
            progress(value)


class DaskJobs:
    """The running jobs of a cluster."""

    def __init__(self, cluster: DaskCluster) -> None:
        self._cluster = cluster

    def run(
        self,
        job: str,
        ended: threading.Event,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        purpose: str,
        timeout_s: float,
        memory_bytes: int,
        priority: int,
        progress: Progress | None,
    ) -> Any:
        """Call a function on the cluster and return what it returns; blocks, until `ended` at the latest."""
        if progress is not None:
            self._cluster.listen(job, progress)
        limits = dask_worker.Limits(timeout_s=timeout_s, memory_bytes=memory_bytes)
        try:
            client = self._cluster.client
            future = client.submit(
                dask_worker.work,
                *(job, __version__, purpose, function, arguments, limits),
                None if progress is None else self._cluster.topic,
                key=f"pace-{job}",
                priority=priority,
                pure=False,
            )
            succeeded, value = self._wait(client, future, job, ended)
        except _LOST as error:
            self._cluster.doubt()
            detail = f"the cluster lost {purpose}: {type(error).__name__}"
            raise WorkerDied(detail) from None
        finally:
            self._cluster.stop_listening(job)
        if succeeded:
            return value
        raise value

    def _wait(self, client: Client, future: "Future[Any]", job: str, ended: threading.Event) -> Any:
        # Looked at now and then: a lost scheduler need not end the future, nor cancelling the function.
        while not ended.is_set():
            try:
                return future.result(timeout=0.5)
            except DaskTimeout:
                if client.status != "running":
                    raise
        future.cancel()
        client.run(dask_worker.cancel, job, on_error="ignore")
        raise DaskCancelled(job)
