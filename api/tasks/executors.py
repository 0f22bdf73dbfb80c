"""Creates the executors of all kinds of tasks from the settings."""

from pace.api.questions.registry import KINDS
from pace.api.settings import Settings
from pace.api.workers.executor import Executor
from pace.api.workers.kernels import load_first_kernels, load_kernels
from pace.api.workers.pool import WorkerPool


def make_executors(settings: Settings) -> dict[str, Executor]:
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
