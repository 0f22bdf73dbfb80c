"""Where tasks run: for each kind an executor, as the settings ask."""

from pace.api.settings import Settings
from pace.api.tasks.kinds import KINDS
from pace.api.workers.executor import Executor
from pace.api.workers.kernels import load_kernels
from pace.api.workers.pool import WorkerPool
from pace.client.documents import TaskKindName


def make_executors(settings: Settings) -> dict[TaskKindName, Executor]:
    """Return an executor for every kind of task; none is started."""
    memory_bytes = settings.solve_memory_bytes
    if settings.executor == "processes":
        return {
            name: WorkerPool(kind.purpose, kind.num_processes(settings), memory_bytes, prepare=load_kernels)
            for name, kind in KINDS.items()
        }
    from pace.api.workers.dask_executor import DaskBridge, DaskExecutor

    bridge = DaskBridge(settings.executor.removeprefix("dask+"))
    return {
        name: DaskExecutor(
            bridge, kind.purpose, memory_bytes, priority=kind.priority, most=kind.num_on_cluster(settings)
        )
        for name, kind in KINDS.items()
    }
