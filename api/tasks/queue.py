"""The queue of tasks, kept in the database so that no accepted task is lost.

A task is queued, then running under a lease of one service process, then done, failed or cancelled.
A lease that is not renewed ends, and the task is queued again: it outlives any process. Whichever
process finishes it, the first answer stays.
"""

import asyncio
import math
import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, literal_column, select, update

from pace.api.errors import ResultDeleted, TaskCancelled, WorkerDied
from pace.api.fairness.task_shares import TaskShares
from pace.api.fairness.tenants import Tenants
from pace.api.metrics import Metrics
from pace.api.problems import problem_of
from pace.api.questions.all_kinds import KINDS
from pace.api.questions.kind import Question
from pace.api.storage.database import Database, Upsert
from pace.api.storage.documents import PlacedDocument
from pace.api.storage.pages import read_page
from pace.api.storage.questions import ABOUT_PROFILE, NAME, find_input
from pace.api.storage.quota import StorageQuota
from pace.api.storage.records import ProfileRecord, QuestionRecord, SolutionRecord, TaskRecord, from_now
from pace.api.storage.threads import DatabaseThreads
from pace.api.tasks.acceptance import Acceptance
from pace.api.tasks.queue_limits import QueueLimits
from pace.api.tasks.solve_size import is_small_solve
from pace.api.tasks.state import LIVE, ClaimedTask, Submitted, TaskStatus
from pace.client.documents import Problem
from pace.errors import PaceError

# The longest pause between two answers that says nothing about the database: looks for tasks come more often.
_PAUSE_S = 2.0

_TIMEOUT_S = 1.0


class TaskQueue:
    """Tasks in the database.

    Parameters
    ----------
    tenants
        Limits of each tenant.
    lease_s
        How long a claimed task stays with a process that does not renew its lease.
    max_attempts
        Number of claims without an answer after which a task fails.
    quota
        What is stored is counted there, too; by itself if it is not given.

    Attributes
    ----------
    shares
        To be charged with the time of what was claimed.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_queued: int,
        tenants: Tenants,
        lease_s: float,
        max_attempts: int,
        quota: StorageQuota | None = None,
    ) -> None:
        self.database = database
        self.owner = uuid.uuid4().hex
        room = QueueLimits(max_queued, tenants, quota or StorageQuota(tenants))
        self._tenants = tenants
        self.shares = TaskShares(tenants)
        self._lease_s = lease_s
        # When the database last answered a look for tasks, and since when it has without a long pause.
        self._answered_s: float | None = None
        self._answers_since_s = -math.inf
        self._max_attempts = max_attempts
        self._acceptance = Acceptance(room, self.owner, lease_s)

    def submit(
        self,
        tenant: str,
        question: Question,
        *,
        claim: bool = False,
        small_only: bool = False,
        request_id: str | None = None,
    ) -> Submitted:
        """Accept a request: find its result, join the task that makes it, or queue a new one.

        Parameters
        ----------
        claim, small_only
            Claim a new task at once where no other waits: this process has room for it, perhaps only for a
            small solve.
        request_id
            Id of the request, for the log of a new task.

        Raises
        ------
        QueueFull, QuotaExceeded, ContentTooLarge
            If a new task is needed and too many wait, or it would be more than the tenant may have.
        InvalidRequest
            If the request names a profile that is not stored.
        """
        with self.database.write() as connection:
            return self._acceptance.accept(
                connection, tenant, question, claim=claim, small_only=small_only, request_id=request_id
            )

    def claim(
        self, kind: str, running: Collection[str] = (), *, small_only: bool = False
    ) -> ClaimedTask | None:
        """Take the next task of a kind; with `small_only`, of those that are small solves.

        Those `running` here stay so: if their leases ended, this process was starved for a moment.

        Tenants take turns: first those with the fewest tasks of this kind running, then the one that had the
        least of the workers' time lately, both over their weights, then the one whose last start is longest
        ago; of its tasks the oldest. Who has as many running as it may is passed over.
        """
        now = datetime.now(UTC)
        queued = (TaskRecord.state == "queued") & (TaskRecord.kind == kind)
        if small_only:
            queued &= is_small_solve()
        with self.database.read() as connection:
            waiting = connection.scalar(_SMALL_QUEUED if small_only else _QUEUED_OF_KIND, {"kind": kind})
            if waiting is None and kind not in self._expired_kinds(connection, running):
                return None
        with self.database.write() as connection:
            self._take_back_expired(connection, now, running)
            at_work, in_all = Counter[str](), Counter[str]()
            for tenant, its_kind in connection.execute(
                select(TaskRecord.tenant, TaskRecord.kind).where(TaskRecord.state == "running")
            ):
                at_work[tenant] += its_kind == kind
                in_all[tenant] += 1
            tenants = [
                tenant
                for tenant in connection.scalars(select(TaskRecord.tenant).where(queued).distinct())
                if in_all[tenant] < self._tenants.limits(tenant).max_running
            ]
            turns = dict(
                connection.execute(
                    select(TaskRecord.tenant, func.max(TaskRecord.started_at))
                    .where(
                        TaskRecord.tenant.in_(tenants),
                        TaskRecord.kind == kind,
                        TaskRecord.started_at.is_not(None),
                    )
                    .group_by(TaskRecord.tenant)
                ).all()
            )
            never = datetime.min.replace(tzinfo=UTC)
            tenants.sort(
                key=lambda tenant: (
                    at_work[tenant] / self._tenants.weight(tenant),
                    self.shares.used(tenant),
                    turns.get(tenant, never),
                    tenant,
                )
            )
            for tenant in tenants:
                task_id = connection.scalar(
                    select(TaskRecord.id)
                    .where(queued, TaskRecord.tenant == tenant)
                    .order_by(TaskRecord.number)
                    .limit(1)
                    .with_for_update(skip_locked=True)
                )
                claimed = None if task_id is None else self._start(connection, task_id, now)
                if claimed is not None:
                    return claimed
        return None

    def _expired_kinds(self, connection: Connection, running: Collection[str]) -> set[str]:
        if not self._may_take_back():
            return set()
        return {kind for task_id, kind in connection.execute(_EXPIRED) if task_id not in running}

    def _may_take_back(self) -> bool:
        """Whether a lease that ended means that its process is gone.

        While the database did not answer, no process could renew its leases. So after such a pause, other
        services have the time of one lease to renew theirs. Call this when the database has just answered.
        """
        now_s = time.monotonic()
        if self._answered_s is not None and now_s - self._answered_s > max(_PAUSE_S, self._lease_s / 2):
            self._answers_since_s = now_s
        self._answered_s = now_s
        return now_s - self._answers_since_s >= self._lease_s

    def _take_back_expired(self, connection: Connection, now: datetime, running: Collection[str]) -> None:
        if not self._may_take_back():
            return
        expired = (
            (TaskRecord.state == "running")
            & (TaskRecord.lease_until < from_now())
            & TaskRecord.id.not_in(running)
        )
        died = WorkerDied(f"the processes that worked on this died {self._max_attempts} times")
        connection.execute(
            update(TaskRecord)
            .where(expired, TaskRecord.attempts >= self._max_attempts)
            .values(state="failed", finished_at=now, problem=_stored(died), lease_owner=None)
        )
        connection.execute(update(TaskRecord).where(expired).values(state="queued", lease_owner=None))

    def _start(self, connection: Connection, task_id: str, now: datetime) -> ClaimedTask | None:
        """Claim a task; one whose input was deleted fails alone, and None is returned."""
        started = self._started(now, TaskRecord.attempts)
        connection.execute(update(TaskRecord).where(TaskRecord.id == task_id).values(started))
        claimed = self._claimed(connection, task_id)
        if claimed is None:
            lost = ResultDeleted("the input was deleted before the task began; send the request again")
            connection.execute(
                update(TaskRecord)
                .where(TaskRecord.id == task_id)
                .values(state="failed", finished_at=now, lease_owner=None, problem=_stored(lost))
            )
        return claimed

    def _started(self, now: datetime, attempts: Any) -> dict[str, Any]:
        return {
            "state": "running",
            "started_at": now,
            "attempts": attempts + 1,
            "lease_owner": self.owner,
            "lease_until": from_now(self._lease_s),
        }

    def _claimed(self, connection: Connection, task_id: str) -> ClaimedTask | None:
        row = connection.execute(
            select(
                TaskRecord.id,
                TaskRecord.kind,
                TaskRecord.tenant,
                TaskRecord.key,
                TaskRecord.options,
                TaskRecord.attempts,
                TaskRecord.created_at,
                TaskRecord.request_id,
                TaskRecord.started_at,
                TaskRecord.num_total,
                TaskRecord.result_id,
            ).where(TaskRecord.id == task_id)
        ).first()
        if row is None:
            return None
        found = find_input(connection, row.tenant, row.result_id)
        return None if found is None else ClaimedTask(**row._mapping, **asdict(found))

    def waiting_kinds(self, running: Collection[str] = ()) -> set[str]:
        """Return the kinds of which a task is queued, or has lost its process; `running` as in `claim`.

        Tasks of packs that are not installed here are left to other services.
        """
        with self.database.read() as connection:
            queued = set(connection.scalars(_QUEUED_KINDS))
            return (queued | self._expired_kinds(connection, running)) & KINDS.keys()

    def renew(self, running: Collection[str]) -> list[str]:
        """Keep the leases of the tasks that run here; return which of them were cancelled.

        A task that was claimed for this process, though it never learned that, is left to its lease.
        """
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(
                    TaskRecord.id.in_(running),
                    TaskRecord.state == "running",
                    TaskRecord.lease_owner == self.owner,
                )
                .values(lease_until=from_now(self._lease_s))
            )
            cancelled = select(TaskRecord.id).where(
                TaskRecord.id.in_(running), TaskRecord.state == "cancelled"
            )
            return list(connection.scalars(cancelled))

    def progress(self, task_id: str, num_done: int) -> bool:
        """Record a task's progress; return whether it must still be done."""
        with self.database.write() as connection:
            recorded = connection.execute(
                update(TaskRecord)
                .where(TaskRecord.id == task_id, TaskRecord.state.in_(LIVE))
                .values(num_done=num_done)
            )
            return bool(recorded.rowcount)

    def cancel(self, tenant: str, task_id: str) -> TaskStatus | None:
        """Cancel an unfinished task; return its status afterwards, or None if there is no such task."""
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(TaskRecord.tenant == tenant, TaskRecord.id == task_id, TaskRecord.state.in_(LIVE))
                .values(
                    state="cancelled",
                    finished_at=datetime.now(UTC),
                    lease_owner=None,
                    problem=_stored(TaskCancelled("the task was cancelled")),
                )
            )
        return self.status(tenant, task_id)

    def release(self) -> None:
        """Queue this process's unfinished tasks again, as if they had never been claimed."""
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(TaskRecord.state == "running", TaskRecord.lease_owner == self.owner)
                .values(state="queued", lease_owner=None, attempts=TaskRecord.attempts - 1)
            )

    def finish(self, task: ClaimedTask, placed: PlacedDocument) -> TaskStatus | None:
        """Store a task's document unless it was cancelled; an earlier one for the same key stays.

        Returns
        -------
        TaskStatus
            With the document if it is the one that is now stored, in the database; None if the task was
            cancelled.
        """
        now = datetime.now(UTC)
        with self.database.write() as connection:
            finished = connection.execute(_FINISH, {"task_id": task.id, "now": now})
            if not finished.rowcount:
                return None
            stored = _SOLVE.execute(
                connection, tenant=task.tenant, key=task.key, created_at=now, **asdict(placed)
            )
        return task.done(now, placed.document if stored.rowcount and placed.object_key is None else None)

    def fail(self, task: ClaimedTask, error: PaceError) -> None:
        """Store the problem of a task without a result."""
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(TaskRecord.id == task.id, TaskRecord.state == "running")
                .values(
                    state="failed",
                    finished_at=datetime.now(UTC),
                    lease_owner=None,
                    problem=_stored(error),
                )
            )

    def count_live(self) -> Counter[tuple[str, str, str]]:
        """Return the number of queued and running tasks by tenant, kind and state."""
        by = (TaskRecord.tenant, TaskRecord.kind, TaskRecord.state)
        question = select(*by, func.count()).where(TaskRecord.state.in_(LIVE)).group_by(*by)
        with self.database.read() as connection:
            rows = connection.execute(question)
            return Counter({(tenant, kind, state): count for tenant, kind, state, count in rows})

    def retry_or_fail(self, task: ClaimedTask, error: WorkerDied) -> bool:
        """Queue a task again after its worker died, unless out of attempts; return whether it was queued."""
        if task.attempts >= self._max_attempts:
            self.fail(task, error)
            return False
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(
                    TaskRecord.id == task.id,
                    TaskRecord.state == "running",
                    TaskRecord.lease_owner == self.owner,
                )
                .values(state="queued", lease_owner=None)
            )
        return True

    def status(self, tenant: str, task_id: str) -> TaskStatus | None:
        """Return the status of a task."""
        with self.database.read() as connection:
            row = connection.execute(_STATUS_BY_ID, {"tenant": tenant, "id": task_id}).first()
        return None if row is None else _status(row._asdict())

    def list(
        self, tenant: str, state: str | None, kind: str | None, limit: int, cursor: str | None
    ) -> tuple[list[TaskStatus], str | None]:
        """Return a page of a tenant's tasks, newest first, and the cursor of the next."""
        question = select(*_STATUS).where(TaskRecord.tenant == tenant, _IS_KNOWN)
        if state is not None:
            question = question.where(TaskRecord.state == state)
        if kind is not None:
            question = question.where(TaskRecord.kind == kind)
        with self.database.read() as connection:
            rows, following = read_page(connection, question, TaskRecord.number, limit, cursor)
        return [_status(row) for row in rows], following


_STATUS = (
    TaskRecord.id,
    TaskRecord.kind,
    TaskRecord.result_id,
    TaskRecord.state,
    TaskRecord.problem,
    TaskRecord.num_done,
    TaskRecord.num_total,
    TaskRecord.created_at,
    TaskRecord.started_at,
    TaskRecord.finished_at,
    select(NAME)
    .select_from(QuestionRecord)
    .outerjoin(ProfileRecord, ABOUT_PROFILE)
    .where(QuestionRecord.id == TaskRecord.result_id)
    .correlate(TaskRecord)
    .scalar_subquery()
    .label("name"),
)
# Statements are built once, because building one takes longer than executing it.
# A pack may have been removed since.
_IS_KNOWN = TaskRecord.kind.in_(tuple(KINDS))
_STATUS_BY_ID = select(*_STATUS).where(
    TaskRecord.tenant == bindparam("tenant"), TaskRecord.id == bindparam("id"), _IS_KNOWN
)
_OF_KIND = TaskRecord.kind == bindparam("kind")
_QUEUED_OF_KIND = (
    select(TaskRecord.id).where(TaskRecord.state == literal_column("'queued'"), _OF_KIND).limit(1)
)
_SMALL_QUEUED = _QUEUED_OF_KIND.where(is_small_solve())
_QUEUED_KINDS = select(TaskRecord.kind).where(TaskRecord.state == literal_column("'queued'")).distinct()
_EXPIRED = select(TaskRecord.id, TaskRecord.kind).where(
    TaskRecord.state == literal_column("'running'"), TaskRecord.lease_until < from_now()
)
_FINISH = (
    update(TaskRecord)
    .where(TaskRecord.id == bindparam("task_id"), TaskRecord.state != literal_column("'cancelled'"))
    .values(
        state="done",
        finished_at=bindparam("now"),
        lease_owner=None,
        problem=None,
        num_done=TaskRecord.num_total,
    )
)
_SOLVE = Upsert(SolutionRecord)


def _stored(error: PaceError) -> str:
    return problem_of(error).model_dump_json()


def _status(row: Mapping[str, Any]) -> TaskStatus:
    problem = None if row["problem"] is None else Problem.model_validate_json(row["problem"])
    return TaskStatus(**{**row, "problem": problem})


class QueueCounts:
    """The tasks that wait in the database, of all service processes; NaN while it does not answer."""

    def __init__(self, tasks: TaskQueue, threads: DatabaseThreads, metrics: Metrics) -> None:
        self._tasks = tasks
        self._threads = threads
        self._metrics = metrics
        self._by_kind: dict[str, float] = {}
        self._num_queued = math.nan
        metrics.gauge(
            "pace_tasks_queued",
            "Queued tasks of all tenants; NaN while the database does not answer",
            lambda: self._num_queued,
        )
        metrics.family(
            "pace_kind_queued", "Queued tasks of all tenants, by kind", "kind", lambda: self._by_kind
        )

    async def refresh(self) -> None:
        """Count again; the metrics can be read also if that takes too long."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                live = await self._threads.run(self._tasks.count_live)
            by_kind: dict[str, float] = dict.fromkeys(KINDS, 0.0)
            by_tenant = Counter[tuple[str, str]]()
            for (tenant, kind, state), count in live.items():
                by_tenant[tenant, state] += count
                if state == "queued":
                    by_kind[kind] = by_kind.get(kind, 0.0) + count
            self._num_queued, self._by_kind = sum(by_kind.values()), by_kind
            self._metrics.tenants.set_tasks(by_tenant)
        except Exception:
            # Metrics matter most when something else fails.
            self._num_queued, self._by_kind = math.nan, dict.fromkeys(KINDS, math.nan)
