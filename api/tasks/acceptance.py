"""Accepts a question in one transaction: finds its result, joins its task, or adds a new task."""

import uuid
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import Connection, Double, bindparam, delete, select

from pace.api.questions.all_kinds import KINDS
from pace.api.questions.kind import Question, ReceivedProfile
from pace.api.storage.database import Upsert
from pace.api.storage.questions import (
    TaskInput,
    find_input,
    hold_answer,
    keep_profile,
    save_question,
)
from pace.api.storage.records import IS_LIVE, TaskRecord, from_now
from pace.api.tasks.queue_limits import QueueLimits
from pace.api.tasks.solve_size import is_small
from pace.api.tasks.state import ClaimedTask, Submitted

# Built once, because building a statement takes longer than executing it.
# A task that is joined does not end before its new owner can be seen: whoever then deletes the document looks
# for owners.
_LIVE_WITH_KEY = (
    select(TaskRecord.id)
    .where(TaskRecord.tenant == bindparam("tenant"), TaskRecord.key == bindparam("key"), IS_LIVE)
    .with_for_update(read=True)
)
_ADD = Upsert(TaskRecord, computed={"lease_until": from_now(bindparam("lease_s", type_=Double()))})


class Acceptance:
    """Accepts requests for a service process.

    Parameters
    ----------
    owner, lease_s
        Owner and lease of tasks that are claimed as they are accepted.
    """

    def __init__(self, room: QueueLimits, owner: str, lease_s: float) -> None:
        self._room = room
        self._owner = owner
        self._lease_s = lease_s

    def accept(
        self,
        connection: Connection,
        tenant: str,
        question: Question,
        *,
        claim: bool,
        small_only: bool,
        request_id: str | None,
    ) -> Submitted:
        """Find the result of a request, join the task that makes it, or queue a new one.

        As ``TaskQueue.submit``, inside a writing transaction.
        """
        may_claim = claim and (not small_only or _is_small(question))
        fingerprint = None
        if KINDS[question.kind].about_profile:
            fingerprint = keep_profile(connection, tenant, question)
        asked = save_question(connection, tenant, question, fingerprint)
        new_id, key = asked.id, question.key
        while True:
            result = hold_answer(connection, tenant, key, asked)
            if result is not None:
                return Submitted(result_id=new_id, result=result, task_id=None)
            task_id = connection.scalar(_LIVE_WITH_KEY, {"tenant": tenant, "key": key})
            claimed = None
            if task_id is None:
                at_once = self._room.require(connection, tenant, question) and may_claim
                now = datetime.now(UTC)
                task_id = self._add(connection, tenant, question, new_id, request_id, now, at_once=at_once)
                if task_id is None:
                    continue  # another service process inserted it first
                # No other task for this key is live now, so whatever came of one before can be seen; SQLite
                # has let nobody else write since we looked.
                if connection.dialect.name != "sqlite":
                    result = hold_answer(connection, tenant, key, asked)
                if result is not None:
                    connection.execute(delete(TaskRecord).where(TaskRecord.id == task_id))
                    return Submitted(result_id=new_id, result=result, task_id=None)
                if at_once:
                    claimed = _claimed(connection, tenant, question, new_id, request_id, now, task_id)
            return Submitted(result_id=new_id, result=None, task_id=task_id, unsolved=asked, claimed=claimed)

    def _add(
        self,
        connection: Connection,
        tenant: str,
        question: Question,
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
            kind=question.kind,
            tenant=tenant,
            key=question.key,
            result_id=result_id,
            options=question.options,
            num_done=None if question.num_steps is None else 0,
            num_total=question.num_steps,
            created_at=now,
            request_id=request_id,
            state="running" if at_once else "queued",
            attempts=int(at_once),
            started_at=now if at_once else None,
            lease_owner=self._owner if at_once else None,
            lease_s=self._lease_s if at_once else None,
        )
        return task_id if added.rowcount else None


def _is_small(question: Question) -> bool:
    # Of a profile that is only named, the size is not known yet: its task waits until it is claimed.
    profile = question.input
    if not isinstance(profile, ReceivedProfile):
        return False
    return is_small(profile.num_ops, profile.num_gradients, question.options)


def _claimed(
    connection: Connection,
    tenant: str,
    question: Question,
    result_id: str,
    request_id: str | None,
    now: datetime,
    task_id: str,
) -> ClaimedTask | None:
    brought = question.input
    found: TaskInput | None
    if brought is not None and brought.object_key is None:
        sizes = {}
        if isinstance(brought, ReceivedProfile):
            sizes = {"num_gradients": brought.num_gradients, "num_ops": brought.num_ops}
        name = brought.name if question.job is None else question.job
        found = TaskInput(name=name, document=brought.document, object_key=None, **sizes)
    else:
        # One that is named, or one that was uploaded: perhaps for nothing, as it was stored already.
        found = find_input(connection, tenant, result_id)
    if found is None:
        return None
    return ClaimedTask(
        id=task_id,
        kind=question.kind,
        tenant=tenant,
        key=question.key,
        result_id=result_id,
        attempts=1,
        num_total=question.num_steps,
        options=question.options,
        created_at=now,
        started_at=now,
        request_id=request_id,
        **asdict(found),
    )
