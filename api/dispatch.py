"""Moves tasks from the queue to worker processes and wakes those who wait for them."""

import asyncio
import contextlib
import time

import structlog

from pace.api.metrics import Metrics
from pace.api.problems import Refused, WorkerDied
from pace.api.tasks import ClaimedTask, TaskQueue, TaskStatus
from pace.api.work import solve
from pace.api.workers import WorkerPool

log = structlog.get_logger(__name__)


class Dispatcher:
    """Runs the tasks that this service process claims.

    Parameters
    ----------
    solvers
        As many tasks run at once as it has processes.
    poll_s
        How often to look for tasks and results of other service processes.
    """

    def __init__(
        self,
        tasks: TaskQueue,
        solvers: WorkerPool,
        *,
        metrics: Metrics,
        solve_timeout_s: float,
        lease_s: float,
        poll_s: float = 0.5,
    ) -> None:
        self._tasks = tasks
        self._solvers = solvers
        self._metrics = metrics
        self._solve_timeout_s = solve_timeout_s
        self._renew_every_s = lease_s / 3
        self._poll_s = poll_s
        self._queued = asyncio.Event()
        self._watches: dict[str, asyncio.Task[TaskStatus | None]] = {}
        self._finished: dict[str, asyncio.Event] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []

    @property
    def num_running(self) -> int:
        """How many tasks this service process runs now."""
        return len(self._running)

    def start(self) -> None:
        """Begin to claim tasks."""
        self._loops = [asyncio.create_task(self._claim_tasks()), asyncio.create_task(self._renew_leases())]

    def notify(self) -> None:
        """Say that a task was queued."""
        self._queued.set()

    async def wait(self, tenant: str, task_id: str, timeout_s: float) -> TaskStatus | None:
        """Wait until a task is done or failed, at most so long; return how far it is then."""
        watch = self._watches.get(task_id)
        if watch is None:
            # One watch for all who wait: a thousand workers may ask for the same schedule at once.
            watch = self._watches[task_id] = asyncio.create_task(self._watch(tenant, task_id))
            watch.add_done_callback(lambda _: self._watches.pop(task_id))
        try:
            return await asyncio.wait_for(asyncio.shield(watch), timeout_s)
        except TimeoutError:
            return await asyncio.to_thread(self._tasks.status, tenant, task_id)

    async def _watch(self, tenant: str, task_id: str) -> TaskStatus | None:
        finished = self._finished[task_id] = asyncio.Event()
        try:
            while True:
                # Polled as well: another service process may be the one that runs it.
                status = await asyncio.to_thread(self._tasks.status, tenant, task_id)
                if status is None or status.state in ("done", "failed"):
                    return status
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(finished.wait(), self._poll_s)
        finally:
            del self._finished[task_id]

    async def stop(self, drain_s: float) -> None:
        """Claim nothing more, let running tasks end, give back those that do not in time."""
        claim, renew = self._loops
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)
        if self._running:
            await asyncio.wait(self._running, timeout=drain_s)
        for task in (*self._running, *self._watches.values()):
            task.cancel()
        renew.cancel()
        await asyncio.gather(renew, *self._running, return_exceptions=True)
        await asyncio.to_thread(self._tasks.release)

    async def _claim_tasks(self) -> None:
        while True:
            self._queued.clear()
            task = None
            if len(self._running) < self._solvers.size:
                try:
                    task = await asyncio.to_thread(self._tasks.claim)
                except Exception:
                    # The database may be gone for a while; the service must outlast that.
                    log.exception("claim-failed")
            if task is not None:
                running = asyncio.create_task(self._run(task))
                self._running.add(running)
                running.add_done_callback(self._ended)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queued.wait(), self._poll_s)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._queued.set()

    async def _run(self, task: ClaimedTask) -> None:
        started = time.perf_counter()
        try:
            document = await self._solvers.run(
                solve, task.profile_document, task.options, timeout_s=self._solve_timeout_s
            )
            solve_s = time.perf_counter() - started
            await asyncio.to_thread(self._tasks.finish, task, document)
            self._metrics.observe_solve(task.num_gradients, solve_s)
            log.info("solved", task=task.id, tenant=task.tenant, solve_s=solve_s)
        except WorkerDied as error:
            # The profile need not be at fault: whoever killed the process may have wanted another.
            again = await asyncio.to_thread(self._tasks.retry_or_fail, task, error.problem)
            log.warning("worker-died", task=task.id, again=again, problem=error.problem.model_dump())
        except Refused as error:
            self._metrics.count_failure(error.problem.type)
            log.warning("not-solved", task=task.id, tenant=task.tenant, problem=error.problem.model_dump())
            await asyncio.to_thread(self._tasks.fail, task, error.problem)
        except Exception:
            # The lease ends and the task is claimed again.
            log.exception("task-not-stored", task=task.id)
        finally:
            if task.id in self._finished:
                self._finished[task.id].set()

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._renew_every_s)
            if self._running:
                try:
                    await asyncio.to_thread(self._tasks.renew)
                except Exception:
                    log.exception("renew-failed")
