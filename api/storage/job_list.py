"""Lists training jobs, which are not stored themselves but follow from schedules and reports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    FromClause,
    Select,
    case,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from pace.api.errors import InvalidRequest
from pace.api.questions.kind import SCHEDULE
from pace.api.storage.database import Database
from pace.api.storage.pages import CURSOR_ERRORS, read_cursor, write_cursor
from pace.api.storage.records import QuestionRecord, ReportRecord, SolutionRecord
from pace.client.page_documents import JobPage, JobSummary

JobOrder = Literal["newest", "name", "schedules", "predicted", "measured", "drift"]

_HAS_SCHEDULES = QuestionRecord.kind == SCHEDULE
_SOLVED = (SolutionRecord.tenant == QuestionRecord.tenant) & (SolutionRecord.key == QuestionRecord.key)
# Reports may hold any positive numbers; within these no quotient overflows in the database.
_LEAST_S, _MOST_S = 1e-9, 1e9

_Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs are listed, and in which order.

    Attributes
    ----------
    contains
        Text in their names, in any case.
    reverse
        Whether the order is turned around. Jobs without a report stay last where reports decide.
    min_drift
        Least relative difference of the newest measured iteration time from the predicted one.
    asked_by, since, before
        Whose key, or an issuer's subject, sent the job's last request, and between which moments.
    """

    contains: str | None = None
    order: JobOrder = "newest"
    reverse: bool = False
    min_drift: float | None = None
    asked_by: str | None = None
    since: datetime | None = None
    before: datetime | None = None

    @property
    def rises(self) -> bool:
        """Whether the smallest comes first."""
        return (self.order == "name") != self.reverse

    @property
    def needs_reports(self) -> bool:
        """Whether the newest report of every job counts, and not only of those on the page."""
        return self.min_drift is not None or self.order in ("predicted", "measured", "drift")


class JobList:
    """Lists the jobs of tenants; every call is one transaction and blocks."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def page(self, tenant: str, asked: JobQuery, limit: int, cursor: str | None) -> JobPage:
        """Return a page of jobs.

        Raises
        ------
        InvalidRequest
            For a cursor that no page of this order gave.
        """
        listed: FromClause = _requested(_jobs(tenant, asked.contains).subquery(), asked)
        if asked.needs_reports:
            listed = _with_report(listed, tenant).subquery()
        place = _place(listed.c, asked, self.database.bytewise)
        question: Select[Any] = select(*listed.c, place[0].label("place"))
        if asked.min_drift is not None:
            question = question.where(_drift(listed.c, otherwise=-1.0) >= asked.min_drift)
        with self.database.read() as connection:
            if cursor is not None:
                position = _read_position(connection, cursor, asked)
                after = tuple_(*place) > tuple_(*position)
                question = question.where(after if asked.rises else tuple_(*place) < tuple_(*position))
            page: FromClause = question.order_by(*_ordered(place, asked)).limit(limit + 1).subquery()
            if not asked.needs_reports:
                page = _with_report(page, tenant).subquery()
            final = select(*page.c, QuestionRecord.asked_at, QuestionRecord.asked_by)
            final = final.join_from(page, QuestionRecord, QuestionRecord.asked_number == page.c.asked_number)
            place = page.c.place, page.c.job.collate(self.database.bytewise)
            final = final.order_by(*_ordered(place, asked))
            rows = [dict(row._mapping) for row in connection.execute(final)]
            following = _write_position(connection, rows[limit - 1], asked) if len(rows) > limit else None
        for row in rows:
            del row["asked_number"], row["place"]
        items = tuple(JobSummary(**row) for row in rows[:limit])
        return JobPage(items=items, next=following)


def _jobs(tenant: str, contains: str | None) -> Select[Any]:
    columns: tuple[ColumnElement[Any], ...] = (
        QuestionRecord.job.label("job"),
        func.count().label("num_schedules"),
        func.count(QuestionRecord.fingerprint.distinct()).label("num_models"),
        func.min(QuestionRecord.created_at).label("first_at"),
        func.max(QuestionRecord.asked_number).label("asked_number"),
    )
    jobs = (
        select(*columns)
        .join(SolutionRecord, _SOLVED)
        .where(QuestionRecord.tenant == tenant, _HAS_SCHEDULES, QuestionRecord.job.is_not(None))
        .group_by(QuestionRecord.job)
    )
    return jobs.where(QuestionRecord.job.icontains(contains, autoescape=True)) if contains else jobs


def _requested(jobs: FromClause, asked: JobQuery) -> FromClause:
    """Keep the jobs whose last request is asked for."""
    last = QuestionRecord
    wanted = [
        *([last.asked_by == asked.asked_by] if asked.asked_by is not None else ()),
        *([last.asked_at >= asked.since] if asked.since is not None else ()),
        *([last.asked_at < asked.before] if asked.before is not None else ()),
    ]
    if not wanted:
        return jobs
    kept = select(*jobs.c).join_from(jobs, last, last.asked_number == jobs.c.asked_number)
    return kept.where(*wanted).subquery()


def _with_report(jobs: FromClause, tenant: str) -> Select[Any]:
    """Add to each job its newest report, in the same statement."""
    report_id = (
        select(ReportRecord.id)
        .where(ReportRecord.tenant == tenant, ReportRecord.job == jobs.c.job)
        .order_by(ReportRecord.number.desc())
        .limit(1)
        .correlate(jobs)
        .scalar_subquery()
    )
    return select(
        *jobs.c,
        ReportRecord.predicted_iteration_s,
        ReportRecord.measured_iteration_s,
        ReportRecord.plain_iteration_s,
        ReportRecord.created_at.label("reported_at"),
    ).outerjoin_from(jobs, ReportRecord, ReportRecord.id == report_id)


def _drift(columns: _Columns, *, otherwise: float) -> ColumnElement[float]:
    predicted, measured = columns.predicted_iteration_s, columns.measured_iteration_s
    told = predicted.between(_LEAST_S, _MOST_S) & measured.between(_LEAST_S, _MOST_S)
    return case((told, func.abs(measured / predicted - 1.0)), else_=literal(otherwise, Double))


def _place(
    columns: _Columns, asked: JobQuery, bytewise: str
) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    job = columns.job.collate(bytewise)
    # Jobs without a report are last whichever way the list goes; no NULL, with which nothing compares.
    missing = 1e300 if asked.rises else -1.0
    places: dict[JobOrder, Callable[[], ColumnElement[Any]]] = {
        "newest": lambda: columns.asked_number,
        "name": lambda: job,
        "schedules": lambda: columns.num_schedules,
        "predicted": lambda: func.coalesce(columns.predicted_iteration_s, literal(missing, Double)),
        "measured": lambda: func.coalesce(columns.measured_iteration_s, literal(missing, Double)),
        "drift": lambda: _drift(columns, otherwise=missing),
    }
    return places[asked.order](), job


def _ordered(
    place: tuple[ColumnElement[Any], ColumnElement[Any]], asked: JobQuery
) -> list[ColumnElement[Any]]:
    return [each.asc() if asked.rises else each.desc() for each in place]


def _write_position(connection: Connection, row: Mapping[str, Any], asked: JobQuery) -> str:
    # Of one width, so that the length of a cursor does not tell the number of digits.
    place = None if asked.order == "name" else f"{row['place']!r:>24}"
    return write_cursor(connection, [asked.order, asked.reverse, place, row["job"]])


def _read_position(connection: Connection, cursor: str, asked: JobQuery) -> tuple[Any, str]:
    try:
        order, reverse, place, job = read_cursor(connection, cursor)
        if (order, reverse) != (asked.order, asked.reverse):
            raise ValueError(cursor)
        return job if order == "name" else float(place), job
    except CURSOR_ERRORS:
        raise InvalidRequest("cursor: expected one that this service gave for the same order") from None
