"""Moves tasks from the queue to executors and their results into storage."""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError

from pace.api.errors import ObjectsUnavailable, WorkerDied
from pace.api.logs import brief
from pace.api.metrics import Metrics
from pace.api.problems import problem_of
from pace.api.questions.all_kinds import KINDS, answer_question
from pace.api.storage.documents import DocumentPlaces
from pace.api.tasks.places import TaskPlaces, WorkAhead, timed
from pace.api.tasks.queue import TaskQueue
from pace.api.tasks.state import ClaimedTask, TaskStatus
from pace.api.tasks.watches import Watches
from pace.api.tracing import Spans
from pace.api.webhooks import Webhooks
from pace.api.workers.executor import Executor
from pace.errors import PaceError

log = structlog.get_logger(__name__)

T = TypeVar("T")

_LONGEST_PAUSE_S = 5.0
_RELEASE_TIMEOUT_S = 5.0


class Dispatcher:
    """Runs the tasks that this service process claims.

    Parameters
    ----------
    executors
        For each kind of task; as many run at once as it has places.
    watches
        Told whenever a task has changed.
    documents
        Storage of inputs and results.
    webhooks
        Told whenever a task has ended, unless it was cancelled.
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
        watches: Watches,
        documents: DocumentPlaces,
        webhooks: Webhooks,
        poll_s: float = 0.5,
    ) -> None:
        self._tasks = tasks
        self._executors = executors
        self._metrics = metrics
        self._spans = spans
        self._timeout_s = timeout_s
        self._renew_every_s = lease_s / 3
        self._poll_s = poll_s
        self._queued = {kind: asyncio.Event() for kind in executors}
        # Whether a task was queued since the queue was empty; only then is a free place of interest.
        self._may_wait = dict.fromkeys(executors, True)
        # Where a request may be claimed as it is accepted.
        self.places = TaskPlaces(executors, tasks.shares, self._freed, timeout_s)
        self._loops: list[asyncio.Task[None]] = []
        self.watches = watches
        self._documents = documents
        self._webhooks = webhooks

    @property
    def num_running(self) -> int:
        """How many tasks this service process runs now."""
        return len(self.places.running())

    def start(self) -> None:
        """Start to claim tasks."""
        claims = (self._claim_tasks(kind) for kind in self._executors)
        loops = [self._renew_leases(), self._look_for_tasks(), *claims]
        self._loops = [asyncio.create_task(loop) for loop in loops]

    def notify(self, kind: str) -> None:
        """Announce a queued task of a kind."""
        self._may_wait[kind] = True
        self._queued[kind].set()

    def begin(self, task: ClaimedTask, ahead: WorkAhead | None = None) -> None:
        """Run a claimed task; `ahead` is work that has already begun on it."""
        started = asyncio.create_task(self._run(task, ahead), name=task.id)
        self.places.take(task, started)
        started.add_done_callback(lambda done: self._ended(task.kind, done))

    def does(self, task_id: str) -> bool:
        """Whether a task runs in this service process, so that its watchers learn its end without polling."""
        return any(running.get_name() == task_id for running in self.places.running())

    def cancel(self, task_id: str) -> None:
        """End a cancelled task if it runs here, by killing its worker process."""
        for running in self.places.running():
            if running.get_name() == task_id:
                running.cancel()

    def stop_claiming(self) -> None:
        """Stop claiming tasks; running tasks continue."""
        self.places.close()
        for claim in self._loops[1:]:
            claim.cancel()

    async def stop(self, drain_s: float) -> None:
        """Stop claiming tasks, wait for running ones, and release those that do not end in time."""
        self.stop_claiming()
        renew, claims = self._loops[:1], self._loops[1:]
        await asyncio.gather(*claims, return_exceptions=True)
        running = self.places.running()
        if running:
            await asyncio.wait(running, timeout=drain_s)
        for task in (*renew, *running):
            task.cancel()
        await asyncio.gather(*renew, *running, return_exceptions=True)
        await self.watches.close()
        if not self._loops:
            return  # never started, perhaps because the database has no tables
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await asyncio.to_thread(self._tasks.release)
        except (OperationalError, InterfaceError, TimeoutError) as error:
            # The leases end by themselves.
            log.warning(
                "release-failed", error=brief(error) if str(error) else "the database does not answer"
            )

    async def _claim_tasks(self, kind: str) -> None:
        queued = self._queued[kind]
        pause_s = self._poll_s
        while True:
            queued.clear()
            task = None
            place = self.places.find(kind)
            if place.free:
                try:
                    names = [task.get_name() for task in self.places.running()]
                    # Those that were passed over wait still.
                    self._may_wait[kind] = place.small_only
                    task = await asyncio.to_thread(
                        self._tasks.claim, kind, names, small_only=place.small_only
                    )
                    self._may_wait[kind] |= task is not None
                    pause_s = self._poll_s
                except Exception as error:
                    # The database may be gone or full for a while; the service must outlast that.
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    log.warning("claim-failed", error=brief(error))
                    await asyncio.sleep(pause_s)
                    continue
            if task is not None:
                self.begin(task)
                continue
            await queued.wait()

    async def _look_for_tasks(self) -> None:
        """Announce the kinds of tasks that other service processes queued, or left when they died."""
        pause_s = self._poll_s
        while True:
            await asyncio.sleep(pause_s)
            names = [task.get_name() for task in self.places.running()]
            try:
                for kind in await asyncio.to_thread(self._tasks.waiting_kinds, names):
                    if kind in self._queued:
                        self.notify(kind)
                pause_s = self._poll_s
            except Exception as error:
                # As above.
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                log.warning("claim-failed", error=brief(error))

    def _freed(self, kind: str) -> None:
        self._queued[kind].set()

    def _ended(self, kind: str, done: asyncio.Task[None]) -> None:
        self.places.leave(kind, done)
        if self._may_wait[kind]:
            self._queued[kind].set()
        if not done.cancelled() and (error := done.exception()) is not None:
            # The lease ends and the task is claimed again.
            log.error("task-failed", task=done.get_name(), exc_info=error)

    async def _run(self, task: ClaimedTask, ahead: WorkAhead | None = None) -> None:
        structlog.contextvars.clear_contextvars()
        if task.request_id is not None:
            structlog.contextvars.bind_contextvars(request_id=task.request_id)
        kind = KINDS[task.kind]
        if task.attempts == 1:
            waited_s = (datetime.now(UTC) - task.created_at).total_seconds()
            self._metrics.observe_wait(task.kind, max(0.0, waited_s))
        running: Any = asyncio.current_task()
        waits = partial(self.places.wait, task.kind, running)
        try:
            if task.object_key is not None:
                task = await _persist(partial(self._documents.fetch, task), waits)
                self.places.go_on(task.kind, running)
            about = {"pace.task.attempt": task.attempts, "pace.profile.gradients": task.num_gradients}
            with self._spans.of_task(task.id, kind.work.replace(" ", "-"), **about):
                document, seconds = await self._charged(task, ahead)
            ended: TaskStatus | None = await _persist(partial(self._finish, task, document), waits)
            # Before anyone is answered: what was answered is in the log, even if the process dies then.
            log.info(kind.done_event, task=task.id, tenant=task.tenant, solve_s=seconds)
            self._metrics.observe_answer(kind, task.num_gradients, seconds)
            if ended is not None:
                self.watches.end(task.tenant, ended)
                self._webhooks.send("task.done", task.id, **_about(task))
        except WorkerDied as error:
            # The profile may be innocent: something else may have killed the process.
            again = await _persist(partial(self._tasks.retry_or_fail, task, error), waits)
            problem = problem_of(error)
            log.warning("worker-died", task=task.id, retried=again, problem=problem.model_dump())
            if not again:
                self._webhooks.send("task.failed", task.id, **_about(task), problem=problem.model_dump())
        except PaceError as error:
            problem = problem_of(error)
            self._metrics.count_failure(problem.type)
            log.warning("question-failed", task=task.id, tenant=task.tenant, problem=problem.model_dump())
            await _persist(partial(self._tasks.fail, task, error), waits)
            self._webhooks.send("task.failed", task.id, **_about(task), problem=problem.model_dump())
        finally:
            self.watches.refresh(task.tenant, task.id)

    async def _charged(self, task: ClaimedTask, ahead: WorkAhead | None) -> tuple[bytes, float]:
        """Do a task's work and charge its tenant; while a task waits for storage, no worker is busy."""
        started = time.perf_counter() if ahead is None else ahead.started
        try:
            return await (timed(self._work(task)) if ahead is None else ahead.solving)
        finally:
            worked_s = time.perf_counter() - started
            self._tasks.shares.charge(task.tenant, worked_s)
            self._metrics.tenants.count_work(task.tenant, task.kind, worked_s)

    async def _work(self, task: ClaimedTask) -> bytes:
        kind = KINDS[task.kind]
        document: bytes = await self._executors[task.kind].run(
            answer_question,
            task.kind,
            task.document,
            task.options,
            timeout_s=self._timeout_s,
            progress=None if task.num_total is None else self._progress_of(task),
            gives_way=task.large or kind.long,
        )
        return document

    def _finish(self, task: ClaimedTask, document: bytes) -> TaskStatus | None:
        # An upload is of one attempt: the sweep takes what a row has not named for long.
        return self._tasks.finish(task, self._documents.place(document))

    def _progress_of(self, task: ClaimedTask) -> Callable[[int], None]:
        loop = asyncio.get_running_loop()

        def record(num_done: int) -> None:
            # Called from the executor's thread.
            try:
                wanted = self._tasks.progress(task.id, num_done)
            except (OperationalError, InterfaceError) as error:
                log.warning("progress-not-stored", task=task.id, error=brief(error))
                return
            if not wanted:
                loop.call_soon_threadsafe(self.cancel, task.id)
            loop.call_soon_threadsafe(self.watches.refresh, task.tenant, task.id)

        return record

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._renew_every_s)
            running = [task.get_name() for task in self.places.running()]
            if running:
                try:
                    for task_id in await asyncio.to_thread(self._tasks.renew, running):
                        self.cancel(task_id)
                except Exception as error:
                    # As above; a lease that is not renewed in time is taken by another service.
                    log.warning("renew-failed", error=brief(error))


def _about(task: ClaimedTask) -> dict[str, str]:
    return {"task": task.id, "kind": task.kind, "tenant": task.tenant}


async def _persist(store: Callable[[], T], waits: Callable[[], None]) -> T:
    """Store a result or fetch an input; repeat until the database and object storage accept it.

    `waits` is called as soon as they do not.
    """
    pause_s = 0.5
    while True:
        try:
            return await asyncio.to_thread(store)
        except (OperationalError, InterfaceError, ObjectsUnavailable) as error:
            waits()
            log.warning("result-not-stored", error=brief(error), retry_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
