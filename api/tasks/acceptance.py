"""How a request becomes a task, or finds out that it needs none: in the one transaction that accepts it."""

import uuid
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, bindparam, delete, select

from pace.api.received import AnyReceivedTask, ReceivedProfile, ReceivedRequest, brought_document
from pace.api.storage.database import Upsert
from pace.api.storage.records import IS_LIVE, TaskRecord
from pace.api.storage.task_inputs import TaskInput
from pace.api.tasks.kinds import KINDS
from pace.api.tasks.solve_size import is_small
from pace.api.tasks.state import ClaimedTask, Submitted
from pace.api.tasks.task_room import TaskRoom

# Built once, as every request needs them: to build a statement takes longer than to run it.
# A task that is joined does not end before its new owner can be seen: whoever then deletes the document looks
# for owners.
_LIVE_WITH_KEY = (
    select(TaskRecord.id)
    .where(TaskRecord.tenant == bindparam("tenant"), TaskRecord.key == bindparam("key"), IS_LIVE)
    .with_for_update(read=True)
)
_ADD = Upsert(TaskRecord)


class Acceptance:
    """Accepts requests for a service process.

    Parameters
    ----------
    owner, lease
        Of the tasks that are claimed as they are accepted.
    """

    def __init__(self, room: TaskRoom, owner: str, lease: timedelta) -> None:
        self._room = room
        self._owner = owner
        self._lease = lease

    def accept(
        self,
        connection: Connection,
        tenant: str,
        received: AnyReceivedTask,
        *,
        claim: bool,
        small_only: bool,
        request_id: str | None,
    ) -> Submitted:
        """Find the result of a request, join the task that makes it, or queue a new one.

        As ``TaskQueue.submit``, within a transaction that writes.
        """
        may_claim = claim and (not small_only or _is_small(received))
        kind = KINDS[received.kind]
        fingerprint = kind.save_input(connection, tenant, received)
        new_id = kind.save_request(connection, tenant, received, fingerprint)
        while True:
            result = kind.hold_result(connection, tenant, new_id)
            if result is not None:
                return Submitted(result_id=new_id, result=result, task_id=None)
            task_id = connection.scalar(_LIVE_WITH_KEY, {"tenant": tenant, "key": received.key})
            claimed = None
            if task_id is None:
                at_once = self._room.require(connection, tenant, received) and may_claim
                now = datetime.now(UTC)
                task_id = self._add(connection, tenant, received, new_id, request_id, now, at_once=at_once)
                if task_id is None:
                    continue  # another service process was faster between our look and our insert
                # No other task for this key is live now, so whatever came of one before can be seen; SQLite
                # has let nobody else write since we looked.
                if connection.dialect.name != "sqlite":
                    result = kind.hold_result(connection, tenant, new_id)
                if result is not None:
                    connection.execute(delete(TaskRecord).where(TaskRecord.id == task_id))
                    return Submitted(result_id=new_id, result=result, task_id=None)
                if at_once:
                    claimed = _claimed(connection, tenant, received, new_id, request_id, now, task_id)
            unsolved = kind.find_unsolved and kind.find_unsolved(connection, tenant, new_id)
            return Submitted(
                result_id=new_id, result=None, task_id=task_id, unsolved=unsolved, claimed=claimed
            )

    def _add(
        self,
        connection: Connection,
        tenant: str,
        received: AnyReceivedTask,
        result_id: str,
        request_id: str | None,
        now: datetime,
        *,
        at_once: bool,
    ) -> str | None:
        """Add a task and return its id; None if its key has a live one, or had until just now."""
        task_id = uuid.uuid4().hex
        added = _ADD.execute(
            connection,
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
            state="running" if at_once else "queued",
            attempts=int(at_once),
            started_at=now if at_once else None,
            lease_owner=self._owner if at_once else None,
            lease_until=now + self._lease if at_once else None,
        )
        return task_id if added.rowcount else None


def _is_small(received: AnyReceivedTask) -> bool:
    # Of a profile that is only named, the size is not known yet: its task waits until it is claimed.
    if not isinstance(received, ReceivedRequest) or received.profile is None:
        return False
    return is_small(received.profile.num_ops, received.profile.num_gradients, received.options)


def _claimed(
    connection: Connection,
    tenant: str,
    received: AnyReceivedTask,
    result_id: str,
    request_id: str | None,
    now: datetime,
    task_id: str,
) -> ClaimedTask | None:
    brought = brought_document(received)
    found: TaskInput | None
    if brought is not None and brought.object_key is None:
        sizes = {}
        if isinstance(brought, ReceivedProfile):
            sizes = {"num_gradients": brought.num_gradients, "num_ops": brought.num_ops}
        found = TaskInput(document=brought.document, object_key=None, **sizes)
    else:
        # One that is named, or one that was uploaded: perhaps for nothing, as it was stored already.
        found = KINDS[received.kind].find_input(connection, tenant, received.input_sha256, result_id)
    if found is None:
        return None
    return ClaimedTask(
        id=task_id,
        kind=received.kind,
        tenant=tenant,
        key=received.key,
        result_id=result_id,
        attempts=1,
        num_total=received.num_steps,
        options=received.options,
        created_at=now,
        started_at=now,
        request_id=request_id,
        **asdict(found),
    )
