"""Pages of long lists: newest first, continued after the last row that was seen.

Also lists training jobs, which are not stored themselves but follow from schedules and reports.
"""

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, func, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from pace.api.errors import InvalidRequest
from pace.api.questions.kind import SCHEDULE
from pace.api.storage.database import Database
from pace.api.storage.records import QuestionRecord, ReportRecord, SolutionRecord
from pace.client.page_documents import JobPage, JobSummary

_ROW_ID = re.compile("[0-9a-f]{1,64}")


def read_page(
    connection: Connection,
    question: Select[*tuple[Any, ...]],
    created_at: InstrumentedAttribute[datetime],
    row_id: InstrumentedAttribute[str],
    limit: int,
    cursor: str | None,
) -> tuple[Sequence[Row[*tuple[Any, ...]]], str | None]:
    """Return a page of a question's rows and the cursor of the next.

    Rows that are added or deleted between two pages do not shift others.

    Raises
    ------
    InvalidRequest
        If the cursor is not from a page.
    """
    if cursor is not None:
        question = question.where(tuple_(created_at, row_id) < tuple_(*_position(cursor)))
    rows = connection.execute(question.order_by(created_at.desc(), row_id.desc()).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]._mapping
    position = json.dumps([last["created_at"].isoformat(), last["id"]])
    return rows[:limit], base64.urlsafe_b64encode(position.encode()).decode()


def _position(cursor: str) -> tuple[datetime, str]:
    try:
        created_at, row_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if not _ROW_ID.fullmatch(row_id):
            raise ValueError(cursor)
        return _moment(created_at), row_id
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidRequest("cursor: not one that this service gave") from None


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment.astimezone(UTC)  # here, as some moments of other zones have no name in UTC


JobOrder = Literal["newest", "name"]

_HAS_SCHEDULES = QuestionRecord.kind == SCHEDULE
_SOLVED = (SolutionRecord.tenant == QuestionRecord.tenant) & (SolutionRecord.key == QuestionRecord.key)


class JobList:
    """Lists the jobs of tenants; every call is one transaction and blocks."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def page(
        self, tenant: str, contains: str | None, order: JobOrder, limit: int, cursor: str | None
    ) -> JobPage:
        """Return a page of jobs whose names contain a text, whatever its case.

        Raises
        ------
        InvalidRequest
            For a cursor that no page of this order gave.
        """
        jobs = (
            select(
                QuestionRecord.job.label("job"),
                func.count().label("num_schedules"),
                func.count(QuestionRecord.fingerprint.distinct()).label("num_models"),
                func.min(QuestionRecord.created_at).label("first_at"),
                func.max(QuestionRecord.asked_at).label("asked_at"),
            )
            .join(SolutionRecord, _SOLVED)
            .where(QuestionRecord.tenant == tenant, _HAS_SCHEDULES, QuestionRecord.job.is_not(None))
            .group_by(QuestionRecord.job)
        )
        if contains:
            jobs = jobs.where(QuestionRecord.job.icontains(contains, autoescape=True))
        listed = jobs.subquery()
        question: Select[Any] = select(listed)
        if cursor is not None:
            position = _job_position(cursor, order)
            if order == "newest":
                question = question.where(tuple_(listed.c.asked_at, listed.c.job) < tuple_(*position))
            else:
                question = question.where(listed.c.job > position[0])
        question = question.order_by(*_job_order(listed.c, order))
        with self.database.read() as connection:
            rows = connection.execute(_with_newest(question.limit(limit + 1), tenant, order)).all()
        items = tuple(JobSummary(**row._mapping) for row in rows[:limit])
        following = None
        if len(rows) > limit:
            last = items[-1]
            moment = [last.asked_at.isoformat()] if order == "newest" else []
            following = base64.urlsafe_b64encode(json.dumps([*moment, last.job]).encode()).decode()
        return JobPage(items=items, next=following)


def _job_order(
    columns: ReadOnlyColumnCollection[str, Any], order: JobOrder
) -> tuple[ColumnElement[Any], ...]:
    if order == "newest":
        return columns.asked_at.desc(), columns.job.desc()
    return (columns.job,)


def _with_newest(jobs: Select[Any], tenant: str, order: JobOrder) -> Select[Any]:
    """Add to a page of jobs each one's last request and newest report, with one statement."""
    page = jobs.subquery()
    asked_by = (
        select(QuestionRecord.asked_by)
        .where(_HAS_SCHEDULES, QuestionRecord.tenant == tenant, QuestionRecord.job == page.c.job)
        .order_by(QuestionRecord.asked_at.desc())
        .limit(1)
        .correlate(page)
        .scalar_subquery()
    )
    report_id = (
        select(ReportRecord.id)
        .where(ReportRecord.tenant == tenant, ReportRecord.job == page.c.job)
        .order_by(ReportRecord.created_at.desc())
        .limit(1)
        .correlate(page)
        .scalar_subquery()
    )
    return (
        select(
            *page.c,
            asked_by.label("asked_by"),
            ReportRecord.predicted_iteration_s,
            ReportRecord.measured_iteration_s,
            ReportRecord.plain_iteration_s,
            ReportRecord.created_at.label("reported_at"),
        )
        .outerjoin_from(page, ReportRecord, ReportRecord.id == report_id)
        .order_by(*_job_order(page.c, order))
    )


def _job_position(cursor: str, order: JobOrder) -> tuple[Any, ...]:
    try:
        *moment, job = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if not isinstance(job, str) or "\0" in job or len(moment) != (order == "newest"):
            raise ValueError(cursor)
        job.encode()  # half a character can be asked for in JSON, and not in a database
        return (*map(_moment, moment), job)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidRequest("cursor: not one that this service gave for this order") from None
