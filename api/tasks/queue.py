"""The queue of tasks, kept in the database so that no accepted task is lost.

A task is queued, then running under a lease of one service process, then done, failed or cancelled.
A lease that is not renewed ends, and the task is queued again: it outlives any process. Whichever
process finishes it, the first answer stays.
"""

import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from pace.api.errors import ResultDeleted, TaskCancelled, WorkerDied
from pace.api.problems import problem_of
from pace.api.received import AnyReceivedTask
from pace.api.storage.database import Database
from pace.api.storage.documents import PlacedDocument
from pace.api.storage.quota import StorageQuota
from pace.api.storage.records import SolutionRecord, TaskRecord
from pace.api.storage.store import insert
from pace.api.tasks.kinds import KINDS
from pace.api.tasks.shares import TaskShares
from pace.api.tasks.state import LIVE, ClaimedTask, Submitted, TaskStatus
from pace.api.tasks.task_room import TaskRoom
from pace.api.tasks.task_views import count_live, find_status, list_statuses
from pace.api.tenants import Tenants
from pace.errors import PaceError


class TaskQueue:
    """Tasks in the database.

    Parameters
    ----------
    tenants
        How much each may have.
    lease_s
        How long a claimed task stays with a process that does not renew its lease.
    max_attempts
        After so many claims without an answer a task is failed.
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
        self._room = TaskRoom(max_queued, tenants, quota or StorageQuota(tenants))
        self._tenants = tenants
        self.shares = TaskShares(tenants)
        self._lease = timedelta(seconds=lease_s)
        self._max_attempts = max_attempts

    def submit(
        self, tenant: str, received: AnyReceivedTask, *, claim: bool = False, request_id: str | None = None
    ) -> Submitted:
        """Accept a request: find its result, join the task that makes it, or queue a new one.

        Parameters
        ----------
        claim
            Claim a new task at once where no other waits: this process has room for it.
        request_id
            Of the request, for the log of a new task.

        Raises
        ------
        QueueFull, QuotaExceeded, ContentTooLarge
            If a new task is needed and too many wait, or it would be more than the tenant may have.
        InvalidRequest
            If the request names a profile that is not stored.
        """
        with self.database.write() as connection:
            kind = KINDS[received.kind]
            fingerprint = kind.save_input(connection, tenant, received)
            new_id = kind.save_request(connection, tenant, received, fingerprint)
            live = select(TaskRecord.id).where(
                TaskRecord.tenant == tenant, TaskRecord.key == received.key, TaskRecord.state.in_(LIVE)
            )
            while True:
                result = kind.hold_result(connection, tenant, new_id)
                if result is not None:
                    return Submitted(result_id=new_id, result=result, task_id=None)
                task_id = connection.scalar(live)
                if task_id is not None:
                    return Submitted(result_id=new_id, result=None, task_id=task_id)
                at_once = self._room.require(connection, tenant, received) and claim
                task_id = self._add(connection, tenant, received, new_id, request_id, at_once=at_once)
                if task_id is None:
                    continue  # another service process was faster between our look and our insert
                # No other task for this key is live now, so whatever came of one before can be seen.
                result = kind.hold_result(connection, tenant, new_id)
                if result is not None:
                    connection.execute(delete(TaskRecord).where(TaskRecord.id == task_id))
                    return Submitted(result_id=new_id, result=result, task_id=None)
                claimed = self._claimed(connection, task_id) if at_once else None
                return Submitted(result_id=new_id, result=None, task_id=task_id, claimed=claimed)

    def _add(
        self,
        connection: Connection,
        tenant: str,
        received: AnyReceivedTask,
        result_id: str,
        request_id: str | None,
        *,
        at_once: bool,
    ) -> str | None:
        """Add a task and return its id; None if its key has a live one, or had until just now."""
        task_id = uuid.uuid4().hex
        now = datetime.now(UTC)
        added = connection.execute(
            insert(connection, TaskRecord)
            .values(
                id=task_id,
                kind=received.kind,
                tenant=tenant,
                key=received.key,
                result_id=result_id,
                profile_sha256=received.input_sha256,
                options=received.options,
                num_done=None if received.num_steps is None else 0,
                num_total=received.num_steps,
                created_at=now,
                request_id=request_id,
                **(self._started(now, 0) if at_once else {"state": "queued", "attempts": 0}),
            )
            .on_conflict_do_nothing()
        )
        return task_id if added.rowcount else None

    def claim(self, kind: str, running: Collection[str] = ()) -> ClaimedTask | None:
        """Take the next task of a kind.

        Those `running` here stay so: if their leases ended, this process was starved for a moment.

        Tenants take turns: first those with the fewest tasks of this kind running, then the one that had the
        least of the workers' time lately, both over their weights, then the one whose last start is longest
        ago; of its tasks the oldest. Who has as many running as it may is passed over.
        """
        now = datetime.now(UTC)
        queued = (TaskRecord.state == "queued") & (TaskRecord.kind == kind)
        running_too = (TaskRecord.state == "running") & (TaskRecord.kind == kind)
        with self.database.read() as connection:
            expired = running_too & (TaskRecord.lease_until < now) & TaskRecord.id.not_in(running)
            if connection.scalar(select(TaskRecord.id).where(queued | expired).limit(1)) is None:
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
                    .order_by(TaskRecord.created_at, TaskRecord.id)
                    .limit(1)
                    .with_for_update(skip_locked=True)
                )
                claimed = None if task_id is None else self._start(connection, task_id, now)
                if claimed is not None:
                    return claimed
        return None

    def _take_back_expired(self, connection: Connection, now: datetime, running: Collection[str]) -> None:
        expired = (
            (TaskRecord.state == "running") & (TaskRecord.lease_until < now) & TaskRecord.id.not_in(running)
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
            lost = ResultDeleted("what it works on was deleted before the task began; send it again")
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
            "lease_until": now + self._lease,
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
                TaskRecord.profile_sha256,
                TaskRecord.result_id,
            ).where(TaskRecord.id == task_id)
        ).first()
        if row is None:
            return None
        values = dict(row._mapping)
        sha256, result_id = values.pop("profile_sha256"), values.pop("result_id")
        found = KINDS[row.kind].find_input(connection, row.tenant, sha256, result_id)
        if found is None:
            return None
        return ClaimedTask(**values, **asdict(found))

    def renew(self, running: Collection[str]) -> list[str]:
        """Keep the leases of all tasks that this process has; return which of them were cancelled."""
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(TaskRecord.state == "running", TaskRecord.lease_owner == self.owner)
                .values(lease_until=datetime.now(UTC) + self._lease)
            )
            cancelled = select(TaskRecord.id).where(
                TaskRecord.id.in_(running), TaskRecord.state == "cancelled"
            )
            return list(connection.scalars(cancelled))

    def progress(self, task_id: str, num_done: int) -> bool:
        """Record how far a task is; say whether it is still to be done."""
        with self.database.write() as connection:
            recorded = connection.execute(
                update(TaskRecord)
                .where(TaskRecord.id == task_id, TaskRecord.state.in_(LIVE))
                .values(num_done=num_done)
            )
            return bool(recorded.rowcount)

    def cancel(self, tenant: str, task_id: str) -> TaskStatus | None:
        """Cancel a task that is not finished; return how far it is then, or None if there is none."""
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(TaskRecord.tenant == tenant, TaskRecord.id == task_id, TaskRecord.state.in_(LIVE))
                .values(
                    state="cancelled",
                    finished_at=datetime.now(UTC),
                    lease_owner=None,
                    problem=_stored(TaskCancelled()),
                )
            )
        return self.status(tenant, task_id)

    def release(self) -> None:
        """Queue again what this process has not finished, as if it had never been claimed."""
        with self.database.write() as connection:
            connection.execute(
                update(TaskRecord)
                .where(TaskRecord.state == "running", TaskRecord.lease_owner == self.owner)
                .values(state="queued", lease_owner=None, attempts=TaskRecord.attempts - 1)
            )

    def finish(self, task: ClaimedTask, placed: PlacedDocument) -> None:
        """Store a task's document unless it was cancelled; an earlier one for the same key stays."""
        now = datetime.now(UTC)
        with self.database.write() as connection:
            finished = connection.execute(
                update(TaskRecord)
                .where(TaskRecord.id == task.id, TaskRecord.state != "cancelled")
                .values(
                    state="done",
                    finished_at=now,
                    lease_owner=None,
                    problem=None,
                    num_done=TaskRecord.num_total,
                )
            )
            if not finished.rowcount:
                return
            connection.execute(
                insert(connection, SolutionRecord)
                .values(tenant=task.tenant, key=task.key, created_at=now, **asdict(placed))
                .on_conflict_do_nothing()
            )

    def fail(self, task: ClaimedTask, error: PaceError) -> None:
        """Store why a task has no result."""
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
        """How many tasks wait or run, by tenant, kind and state."""
        with self.database.read() as connection:
            return count_live(connection)

    def retry_or_fail(self, task: ClaimedTask, error: WorkerDied) -> bool:
        """Queue a task again whose worker died, unless it was tried often enough; say whether."""
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
        """Return how far a task is."""
        with self.database.read() as connection:
            return find_status(connection, tenant, task_id)

    def list(
        self, tenant: str, state: str | None, kind: str | None, limit: int, cursor: str | None
    ) -> tuple[list[TaskStatus], str | None]:
        """Return a page of a tenant's tasks, newest first, and the cursor of the next."""
        with self.database.read() as connection:
            return list_statuses(connection, tenant, state, kind, limit, cursor)


def _stored(error: PaceError) -> str:
    return problem_of(error).model_dump_json()
