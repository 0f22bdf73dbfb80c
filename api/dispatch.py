"""Moves tasks from the queue to executors and their results into storage."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError

from pace.api.executor import Executor
from pace.api.metrics import Metrics
from pace.api.problems import Refused, WorkerDied
from pace.api.task_state import ClaimedTask
from pace.api.tasks import TaskQueue
from pace.api.tracing import Spans
from pace.api.watch import Watches
from pace.api.work import answer_what_if, solve

log = structlog.get_logger(__name__)

P = ParamSpec("P")

_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """How tasks of one kind are done: where, by which function, and whether it tells of progress."""

    executor: Executor
    function: Callable[..., bytes]
    tells: bool


class Dispatcher:
    """Runs the tasks that this service process claims.

    Parameters
    ----------
    executors
        For each kind of task; as many run at once as it has places.
    poll_s
        How often to look for tasks that other service processes queued.
    """

    def __init__(
        self,
        tasks: TaskQueue,
        executors: Mapping[str, Executor],
        *,
        metrics: Metrics,
        spans: Spans,
        timeout_s: float,
        lease_s: float,
        poll_s: float = 0.5,
    ) -> None:
        self._tasks = tasks
        self._lanes = {
            "schedule": Lane(executor=executors["schedule"], function=solve, tells=False),
            "what-if": Lane(executor=executors["what-if"], function=answer_what_if, tells=True),
        }
        self._metrics = metrics
        self._spans = spans
        self._timeout_s = timeout_s
        self._renew_every_s = lease_s / 3
        self._poll_s = poll_s
        self._queued = {kind: asyncio.Event() for kind in self._lanes}
        # By kind; each is named after its task.
        self._running: dict[str, set[asyncio.Task[None]]] = {kind: set() for kind in self._lanes}
        # Places that may be taken by a task that is just being accepted.
        self._kept = dict.fromkeys(self._lanes, 0)
        self._stopping = False
        self._loops: list[asyncio.Task[None]] = []
        self.watches = Watches(tasks)

    @property
    def num_running(self) -> int:
        """How many tasks this service process runs now."""
        return sum(map(len, self._running.values()))

    def start(self) -> None:
        """Begin to claim tasks."""
        loops = [self._renew_leases(), *(self._claim_tasks(kind) for kind in self._lanes)]
        self._loops = [asyncio.create_task(loop) for loop in loops]

    def notify(self, kind: str) -> None:
        """Say that a task of this kind was queued."""
        self._queued[kind].set()

    @contextlib.contextmanager
    def place(self, kind: str) -> Iterator[bool]:
        """Keep a place for a task that may be claimed inside; yields whether there is one."""
        free = not self._stopping and self._num_taken(kind) < self._lanes[kind].executor.size
        self._kept[kind] += free
        try:
            yield free
        finally:
            self._kept[kind] -= free

    def _num_taken(self, kind: str) -> int:
        return len(self._running[kind]) + self._kept[kind]

    def begin(self, task: ClaimedTask) -> None:
        """Do a task that was claimed."""
        started = asyncio.create_task(self._run(task, self._lanes[task.kind]), name=task.id)
        self._running[task.kind].add(started)
        started.add_done_callback(lambda done: self._ended(task.kind, done))

    def cancel(self, task_id: str) -> None:
        """End a cancelled task if it runs here: the process that works on it is killed."""
        for running in self._all_running():
            if running.get_name() == task_id:
                running.cancel()

    async def stop(self, drain_s: float) -> None:
        """Claim nothing more, let running tasks end, give back those that do not in time."""
        self._stopping = True
        renew, *claims = self._loops
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
        running = self._all_running()
        if running:
            await asyncio.wait(running, timeout=drain_s)
        for task in (renew, *running):
            task.cancel()
        await asyncio.gather(renew, *running, return_exceptions=True)
        await self.watches.close()
        try:
            await asyncio.to_thread(self._tasks.release)
        except (OperationalError, InterfaceError) as error:
            # The leases end by themselves.
            log.warning("release-failed", error=str(error.orig))

    def _all_running(self) -> list[asyncio.Task[None]]:
        return [task for running in self._running.values() for task in running]

    async def _claim_tasks(self, kind: str) -> None:
        executor, queued = self._lanes[kind].executor, self._queued[kind]
        pause_s = self._poll_s
        while True:
            queued.clear()
            task = None
            if self._num_taken(kind) < executor.size:
                try:
                    names = [task.get_name() for task in self._all_running()]
                    task = await asyncio.to_thread(self._tasks.claim, kind, names)
                    pause_s = self._poll_s
                except Exception as error:
                    # The database may be gone or full for a while; the service must outlast that.
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    log.warning("claim-failed", error=str(error))
            if task is not None:
                self.begin(task)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await queued.wait()

    def _ended(self, kind: str, done: asyncio.Task[None]) -> None:
        self._running[kind].discard(done)
        self._queued[kind].set()
        if not done.cancelled() and (error := done.exception()) is not None:
            # The lease ends and the task is claimed again.
            log.error("task-failed", task=done.get_name(), exc_info=error)

    async def _run(self, task: ClaimedTask, lane: Lane) -> None:
        started = time.perf_counter()
        try:
            with self._spans.of_task(task):
                document = await lane.executor.run(
                    lane.function,
                    task.profile_document,
                    task.options,
                    timeout_s=self._timeout_s,
                    progress=self._note_progress(task) if lane.tells else None,
                )
            seconds = time.perf_counter() - started
            await _persist(self._tasks.finish, task, document)
            self._metrics.observe_task(task.kind, task.num_gradients, seconds)
            event = "solved" if task.kind == "schedule" else "what-if-answered"
            log.info(event, task=task.id, tenant=task.tenant, solve_s=seconds)
        except WorkerDied as error:
            # The profile need not be at fault: whoever killed the process may have wanted another.
            again = await _persist(self._tasks.retry_or_fail, task, error.problem)
            log.warning("worker-died", task=task.id, again=again, problem=error.problem.model_dump())
        except Refused as error:
            self._metrics.count_failure(error.problem.type)
            log.warning("not-solved", task=task.id, tenant=task.tenant, problem=error.problem.model_dump())
            await _persist(self._tasks.fail, task, error.problem)
        finally:
            self.watches.look(task.tenant, task.id)

    def _note_progress(self, task: ClaimedTask) -> Callable[[int], None]:
        loop = asyncio.get_running_loop()

        def note(num_done: int) -> None:
            # Called from the executor's thread.
            try:
                wanted = self._tasks.progress(task.id, num_done)
            except (OperationalError, InterfaceError) as error:
                log.warning("progress-not-stored", task=task.id, error=str(error.orig))
                return
            if not wanted:
                loop.call_soon_threadsafe(self.cancel, task.id)
            loop.call_soon_threadsafe(self.watches.look, task.tenant, task.id)

        return note

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._renew_every_s)
            running = [task.get_name() for task in self._all_running()]
            if running:
                try:
                    for task_id in await asyncio.to_thread(self._tasks.renew, running):
                        self.cancel(task_id)
                except Exception as error:
                    # As above; a lease that is not renewed in time is taken by another service.
                    log.warning("renew-failed", error=str(error))


async def _persist(store: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> Any:
    """Store what was worked for, however long the database is gone or its disk full."""
    pause_s = 0.5
    while True:
        try:
            return await asyncio.to_thread(store, *arguments, **named)
        except (OperationalError, InterfaceError) as error:
            log.warning("not-stored-yet", error=str(error.orig), again_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
