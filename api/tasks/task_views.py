"""Reads the status of tasks: one, a page, and counts."""

from collections import Counter
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from pace.api.storage.pages import read_page
from pace.api.storage.records import TaskRecord
from pace.api.tasks.state import LIVE, TaskStatus
from pace.client.documents import Problem

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
)
# Built once, because building a statement takes longer than executing it.
_STATUS_BY_ID = select(*_STATUS).where(
    TaskRecord.tenant == bindparam("tenant"), TaskRecord.id == bindparam("id")
)


def find_status(connection: Connection, tenant: str, task_id: str) -> TaskStatus | None:
    """Return the status of a tenant's task."""
    row = connection.execute(_STATUS_BY_ID, {"tenant": tenant, "id": task_id}).first()
    return None if row is None else _status(row)


def list_statuses(
    connection: Connection, tenant: str, state: str | None, kind: str | None, limit: int, cursor: str | None
) -> tuple[list[TaskStatus], str | None]:
    """Return a page of a tenant's tasks, newest first, and the cursor of the next."""
    question = select(*_STATUS).where(TaskRecord.tenant == tenant)
    if state is not None:
        question = question.where(TaskRecord.state == state)
    if kind is not None:
        question = question.where(TaskRecord.kind == kind)
    rows, following = read_page(connection, question, TaskRecord.created_at, TaskRecord.id, limit, cursor)
    return [_status(row) for row in rows], following


def count_live(connection: Connection) -> Counter[tuple[str, str, str]]:
    """Return the number of queued and running tasks by tenant, kind and state."""
    by = (TaskRecord.tenant, TaskRecord.kind, TaskRecord.state)
    rows = connection.execute(select(*by, func.count()).where(TaskRecord.state.in_(LIVE)).group_by(*by))
    return Counter({(tenant, kind, state): count for tenant, kind, state, count in rows})


def _status(row: Row[*tuple[Any, ...]]) -> TaskStatus:
    problem = None if row.problem is None else Problem.model_validate_json(row.problem)
    return TaskStatus(**{**row._mapping, "problem": problem})
