"""The worker processes of one service: for bodies, for tasks, and for computations within requests."""

import asyncio
import math
from collections.abc import Mapping

from pace.api.metrics import Metrics
from pace.api.questions.all_kinds import KINDS
from pace.api.settings import Settings
from pace.api.workers.executor import Executor
from pace.api.workers.fork_server import load_for_workers
from pace.api.workers.kernels import load_first_kernels, load_kernels
from pace.api.workers.pool import WorkerPool

NUM_COMPUTERS = 2


class WorkerPools:
    """All pools of one service; none is started.

    Attributes
    ----------
    readers
        Parse bodies.
    executors
        Do tasks, by kind.
    computers
        Draw and simulate within requests. They start with the first of these, because many services never do.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._at_start = settings.start_workers == "at-start"
        self._has_own = settings.executor == "processes"
        self._started = False
        self.readers = WorkerPool("reading the body", settings.reader_processes, settings.read_memory_bytes)
        self.executors: Mapping[str, Executor] = _executors(settings)
        self.computers = WorkerPool("the computation", NUM_COMPUTERS, settings.solve_memory_bytes)
        self._tell(metrics)

    def _tell(self, metrics: Metrics) -> None:
        metrics.gauge(
            "pace_solvers_alive",
            "Solver processes that are alive; NaN before they are needed",
            lambda: self._num_alive(self.executors["schedule"]),
        )
        metrics.gauge(
            "pace_readers_alive",
            "Reader processes that are alive; NaN before they are needed",
            lambda: self._num_alive(self.readers),
        )
        pools: dict[str, object] = {"reader": self.readers, "computer": self.computers, **self.executors}
        local = {name: pool for name, pool in pools.items() if isinstance(pool, WorkerPool)}
        metrics.family(
            "pace_worker_restarts",
            "Worker processes that were replaced, by pool",
            "pool",
            lambda: {name: pool.num_restarts for name, pool in local.items()},
            counts=True,
        )
        metrics.family(
            "pace_workers_memory_bytes",
            "Resident memory of the worker processes in bytes, by pool",
            "pool",
            lambda: {name: pool.memory_bytes for name, pool in local.items()},
        )

    def start_with_service(self) -> None:
        """Start what does not wait for the first request: a Dask cluster is there anyway.

        Processes of the service's own are forked with the first request, from one that loads their code now.
        """
        if self._at_start or not self._has_own:
            self.start()
        load_for_workers()

    def start(self) -> None:
        """Start processes in the background, those of long tasks with the first of these. Idempotent."""
        if self._started:
            return
        self._started = True
        self.readers.start()
        for name, executor in self.executors.items():
            if not KINDS[name].long:
                executor.start()

    def missing(self) -> str | None:
        """Return what has no process though it should; None if nothing.

        Processes that start once they are needed may be missing until one was ready, or could not start.
        """
        for name, pool in (("solver", self.executors["schedule"]), ("reader", self.readers)):
            tried = not isinstance(pool, WorkerPool) or pool.was_tried
            if (self._at_start or tried) and not pool.num_alive:
                return name
        return None

    def _num_alive(self, executor: Executor) -> float:
        if isinstance(executor, WorkerPool) and not executor.started:
            return math.nan
        return executor.num_alive

    async def close(self) -> None:
        """End all processes."""
        for executor in (*self.executors.values(), self.readers, self.computers):
            await asyncio.to_thread(executor.close)


def _executors(settings: Settings) -> dict[str, Executor]:
    """Return an executor for every kind of task; none is started."""
    memory_bytes = settings.solve_memory_bytes
    if settings.executor == "processes":
        return {
            name: WorkerPool(
                kind.purpose,
                settings.what_if_processes if kind.long else settings.solver_processes,
                memory_bytes,
                # The time that this takes is not charged to the first task.
                prepare=load_kernels if kind.long else load_first_kernels,
            )
            for name, kind in KINDS.items()
        }
    from pace.api.workers.dask_executor import DaskBridge, DaskExecutor

    bridge = DaskBridge(settings.executor.removeprefix("dask+"))
    return {
        name: DaskExecutor(
            bridge,
            kind.purpose,
            memory_bytes,
            priority=0 if kind.long else 1,
            most=settings.what_if_processes if kind.long else None,
        )
        for name, kind in KINDS.items()
    }
