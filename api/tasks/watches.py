"""Watches tasks for requests that wait for them or follow their progress."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from pace.api.logs import brief
from pace.api.storage.threads import DatabaseThreads
from pace.api.tasks.queue import TaskQueue
from pace.api.tasks.state import TaskStatus

log = structlog.get_logger(__name__)


class Watches:
    """Reads a task's status once for all its watchers: a thousand workers may wait for the same task.

    Parameters
    ----------
    poll_s
        Seconds between two reads of the status, because another service process may run the task.
    """

    def __init__(self, tasks: TaskQueue, threads: DatabaseThreads, poll_s: float = 0.5) -> None:
        self._tasks = tasks
        self._threads = threads
        self._poll_s = poll_s
        self._waiting: set[asyncio.Timeout] = set()
        self._released = False
        self._watches: dict[tuple[str, str], _Watch] = {}

    async def wait(
        self, tenant: str, task_id: str, timeout_s: float, *, told: bool = False
    ) -> TaskStatus | None:
        """Wait until a task is finished, but at most `wait_s` seconds; return its status then.

        Parameters
        ----------
        told
            Whether this process runs the task, so that its end is known without polling.
        """
        watch = self._watch(tenant, task_id, look=not told)
        try:
            async with asyncio.timeout(0 if self._released else timeout_s) as limit:
                self._waiting.add(limit)
                try:
                    return await asyncio.shield(watch.runner)
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            return await self._threads.run(self._tasks.status, tenant, task_id)

    async def changes(self, tenant: str, task_id: str) -> AsyncIterator[TaskStatus]:
        """Yield a task's status at once and after every change, until it is finished or deleted."""
        watch = self._watch(tenant, task_id)
        watch.wake.set()
        told = None
        while True:
            changed = watch.changed
            if watch.status is not None and watch.status != told:
                told = watch.status
                yield told  # the task may end meanwhile: look again
            elif watch.runner.done():
                return
            else:
                await changed.wait()

    def refresh(self, tenant: str, task_id: str) -> None:
        """Read a task's status again because it has changed."""
        watch = self._watches.get((tenant, task_id))
        if watch is not None:
            watch.wake.set()

    def end(self, tenant: str, status: TaskStatus) -> None:
        """Set the final status of a task, so that no watcher has to read it."""
        watch = self._watches.get((tenant, status.id))
        if watch is not None:
            watch.ended = status
            watch.wake.set()

    def release(self) -> None:
        """End all present and future waits, as if their time were over."""
        self._released = True
        now = asyncio.get_running_loop().time()
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(now)

    async def close(self) -> None:
        """End all waits."""
        runners = [watch.runner for watch in self._watches.values()]
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    def _watch(self, tenant: str, task_id: str, *, look: bool = True) -> "_Watch":
        watch = self._watches.get((tenant, task_id))
        if watch is None:
            watch = self._watches[tenant, task_id] = _Watch()
            watch.runner = asyncio.create_task(self._run(watch, tenant, task_id, look=look))
            watch.runner.add_done_callback(lambda done: self._ended(tenant, task_id, done))
        return watch

    def _ended(self, tenant: str, task_id: str, done: "asyncio.Task[TaskStatus | None]") -> None:
        self._watches.pop((tenant, task_id)).changed.set()
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("watch-ended", task=task_id, error=brief(error))

    async def _run(self, watch: "_Watch", tenant: str, task_id: str, *, look: bool) -> TaskStatus | None:
        while True:
            if look:
                status = watch.ended or await self._threads.run(self._tasks.status, tenant, task_id)
                status = watch.ended or status  # told meanwhile
                if status != watch.status:
                    watch.status = status
                    watch.changed.set()
                    watch.changed = asyncio.Event()
                if status is None or not status.live:
                    return status
            look = True
            with contextlib.suppress(TimeoutError):
                # Not wait_for: Python 3.11's swallows a cancellation that comes with what it waits for.
                async with asyncio.timeout(self._poll_s):
                    await watch.wake.wait()
            watch.wake.clear()


class _Watch:
    runner: "asyncio.Task[TaskStatus | None]"

    def __init__(self) -> None:
        self.status: TaskStatus | None = None
        self.ended: TaskStatus | None = None
        self.wake = asyncio.Event()
        self.changed = asyncio.Event()
