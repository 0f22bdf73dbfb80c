"""Counts places of executors: taken, reserved for questions being accepted, or used for work ahead."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from pace.api.fairness.task_shares import TaskShares
from pace.api.questions.all_kinds import KINDS, answer_question
from pace.api.questions.kind import Question, ReceivedProfile
from pace.api.tasks.solve_size import is_small
from pace.api.tasks.state import ClaimedTask
from pace.api.workers.executor import Executor
from pace.api.workers.pool import WorkerPool

# More results are not kept in memory until they can be stored.
_MOST_WAITING = 16


@dataclass(slots=True, kw_only=True)
class WorkerPlace:
    """Whether a place is free, and whether only for a small task.

    `ahead` is work that has already begun on the task.
    """

    free: bool
    small_only: bool
    ahead: "WorkAhead | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAhead:
    """Work on a tenant's request that is still being accepted.

    `solving` returns the result and the seconds that it took; `started` is of the performance counter.
    """

    tenant: str
    solving: asyncio.Task[tuple[bytes, float]]
    started: float


class TaskPlaces:
    """Counts places by kind of task.

    Parameters
    ----------
    executors
        For each kind of task; as many tasks run at once as it has places.
    shares
        Charged with work ahead that is not used.
    freed
        Called with the kind when a reserved place is free again.
    timeout_s
        For work that is begun ahead.
    """

    def __init__(
        self,
        executors: Mapping[str, Executor],
        shares: TaskShares,
        freed: Callable[[str], None],
        timeout_s: float,
    ) -> None:
        self._executors = executors
        self._shares = shares
        self._freed = freed
        self._timeout_s = timeout_s
        # Each is named after its task.
        self._running: dict[str, set[asyncio.Task[None]]] = {kind: set() for kind in executors}
        # Of them, the large ones: where there are several places, one is for small tasks.
        self._large: dict[str, set[asyncio.Task[None]]] = {kind: set() for kind in executors}
        # Of the running ones, those that wait for storage: no worker has anything to do for them.
        self._waiting: dict[str, set[asyncio.Task[None]]] = {kind: set() for kind in executors}
        # Places that may be taken by tasks that are just being accepted, and those of them that may be large.
        self._kept = dict.fromkeys(executors, 0)
        self._kept_for_large = dict.fromkeys(executors, 0)
        self._closed = False

    @property
    def most_running(self) -> int:
        """Largest number of tasks that run or wait for storage."""
        return sum(executor.size + _MOST_WAITING for executor in self._executors.values())

    def running(self) -> list[asyncio.Task[None]]:
        """Return the running tasks of all kinds."""
        return [task for running in self._running.values() for task in running]

    def find(self, kind: str) -> WorkerPlace:
        """Return whether a place is free."""
        size = self._executors[kind].size
        waiting = self._waiting[kind]
        num_taken = len(self._running[kind] - waiting) + self._kept[kind]
        num_large = len(self._large[kind] - waiting) + self._kept_for_large[kind]
        # A large one would probably wait for the storage, too.
        small_only = not KINDS[kind].long and (num_large >= max(1, size - 1) or bool(waiting))
        return WorkerPlace(free=num_taken < size, small_only=small_only)

    def take(self, task: ClaimedTask, started: asyncio.Task[None]) -> None:
        """Count a running task until ``leave``."""
        self._running[task.kind].add(started)
        if task.large:
            self._large[task.kind].add(started)

    def leave(self, kind: str, ended: asyncio.Task[None]) -> None:
        """Stop counting a task."""
        for tasks in (self._running, self._large, self._waiting):
            tasks[kind].discard(ended)

    def wait(self, kind: str, running: asyncio.Task[None]) -> None:
        """Let others have the place of a task that waits for storage, unless too many wait."""
        if len(self._waiting[kind]) < _MOST_WAITING:
            self._waiting[kind].add(running)
            self._freed(kind)

    def go_on(self, kind: str, running: asyncio.Task[None]) -> None:
        """Count a task that has waited for storage again; for a while, more may run than there are places."""
        self._waiting[kind].discard(running)

    def close(self) -> None:
        """Reserve no more places."""
        self._closed = True

    @contextlib.contextmanager
    def keep(self, kind: str) -> Iterator[WorkerPlace]:
        """Reserve a place inside the context for a task that may be claimed; yields whether one is free."""
        place = WorkerPlace(free=False, small_only=False) if self._closed else self.find(kind)
        for_large = place.free and not place.small_only
        self._kept[kind] += place.free
        self._kept_for_large[kind] += for_large
        try:
            yield place
        finally:
            self._kept_for_large[kind] -= for_large
            if place.ahead is None:
                self._kept[kind] -= place.free
            else:
                ahead = place.ahead
                ahead.solving.add_done_callback(lambda _: self._discard(kind, ahead))

    def work_ahead(self, place: WorkerPlace, tenant: str, question: Question) -> None:
        """Start work on a question before it is accepted, if acceptance is likely and the work small.

        This is done for small solves that are new to this process, while nothing else is solved. If the
        question is refused, or its result already stored, the work is discarded but still charged to the
        tenant.
        """
        if not place.free or KINDS[question.kind].long or question.is_repeated:
            return
        profile, kind = question.input, question.kind
        executor = self._executors[kind]
        if (
            not isinstance(profile, ReceivedProfile)
            or profile.object_key is not None
            or not isinstance(executor, WorkerPool)
            or self._running[kind]
            or self._kept[kind] > 1
            or not is_small(profile.num_ops, profile.num_gradients, question.options)
        ):
            return
        work = executor.run(
            answer_question, kind, profile.document, question.options, timeout_s=self._timeout_s
        )
        solving = asyncio.create_task(timed(work))
        place.ahead = WorkAhead(tenant=tenant, solving=solving, started=time.perf_counter())

    def _discard(self, kind: str, ahead: WorkAhead) -> None:
        """Discard unused work and free its place."""
        if not ahead.solving.cancelled():
            ahead.solving.exception()  # seen: nobody waits for it
        self._shares.charge(ahead.tenant, time.perf_counter() - ahead.started)
        self._kept[kind] -= 1
        self._freed(kind)


async def timed(work: Awaitable[bytes]) -> tuple[bytes, float]:
    """Await something; return its result and the seconds it took."""
    started = time.perf_counter()
    return await work, time.perf_counter() - started
