"""The tables."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    Index,
    LargeBinary,
    Sequence,
    String,
    Text,
    TypeDecorator,
    literal,
    literal_column,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time with a time zone, also on SQLite, which stores no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Store in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Read as UTC."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_IN_STORAGE = text("object_key IS NOT NULL")


class Record(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {datetime: UtcDateTime(), bytes: LargeBinary()}  # noqa: RUF012


ARRIVALS = Sequence("arrivals", metadata=Record.metadata)


class _NextNumber(GenericFunction[int]):
    # A name that no other function has, and one argument: a column of numbers.
    name = "pace_next_number"
    type = BigInteger()
    inherit_cache = True


@compiles(_NextNumber, "postgresql")
def _of_the_sequence(*_: Any, **__: Any) -> str:
    return f"nextval('{ARRIVALS.name}')"


@compiles(_NextNumber, "sqlite")
def _after_the_last(element: _NextNumber, compiler: SQLCompiler, **named: Any) -> str:
    # One transaction writes at a time, and the column has an index.
    column = compiler.process(element.clauses, **named).strip("()")
    return f"(SELECT coalesce(max({column}), 0) + 1 FROM {column.partition('.')[0]})"


class FromNow(GenericFunction[datetime]):
    """The database's own time, some seconds from now: hosts' clocks differ, and statements wait for locks."""

    name = "pace_from_now"
    type = UtcDateTime()
    inherit_cache = True


@compiles(FromNow, "postgresql")
def _on_the_server(element: FromNow, compiler: SQLCompiler, **named: Any) -> str:
    return f"clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **named)})"


@compiles(FromNow, "sqlite")
def _on_this_host(element: FromNow, compiler: SQLCompiler, **named: Any) -> str:
    # As times are stored; SQLite knows no microseconds.
    seconds = compiler.process(element.clauses, **named)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', {seconds} || ' seconds')"


def from_now(seconds: float | ColumnElement[float | None] = 0.0) -> FromNow:
    """Return the database's own time, some seconds from now; NULL for NULL."""
    return FromNow(literal(seconds, Double) if isinstance(seconds, float) else seconds)


def _number(last: str) -> MappedColumn[int]:
    """A row's place in the order of arrival: clocks are set back, and two hosts' differ.

    Parameters
    ----------
    last
        The column whose largest number precedes it.
    """
    return mapped_column(BigInteger, default=_NextNumber(literal_column(last)), index=True)


class DocumentColumns:
    """A row's document: here, or `object_bytes` of it in object storage under a key, and nothing here."""

    document: Mapped[bytes]
    object_key: Mapped[str | None] = mapped_column(String(100))
    object_bytes: Mapped[int | None] = mapped_column(BigInteger)


class ProfileRecord(DocumentColumns, Record):
    """A profile, once for each tenant that sent it; the document is JSON compressed by zlib."""

    __tablename__ = "profiles"

    tenant: Mapped[str] = mapped_column(String(100), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(64))
    num_ops: Mapped[int]
    num_gradients: Mapped[int]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    number: Mapped[int] = _number("profiles.number")

    __table_args__ = (Index("ix_profiles_object", "object_key"),)


class SolutionRecord(DocumentColumns, Record):
    """The answer for a key, the hash of kind, input, options and version."""

    __tablename__ = "solutions"

    tenant: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime]

    __table_args__ = (Index("ix_solutions_object", "object_key"),)


class QuestionRecord(DocumentColumns, Record):
    """A question of a tenant, for a job; readable as soon as its key has a solution.

    `input_sha256` is what it is about: a stored profile, or the document here, JSON compressed by zlib. What
    only some kinds have is null for the others.
    """

    __tablename__ = "questions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    tenant: Mapped[str] = mapped_column(String(100))
    key: Mapped[str] = mapped_column(String(64))
    input_sha256: Mapped[str] = mapped_column(String(64))
    input_name: Mapped[str | None] = mapped_column(Text)
    num_steps: Mapped[int | None]
    job: Mapped[str | None] = mapped_column(String(200))
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]
    asked_at: Mapped[datetime]
    asked_by: Mapped[str | None] = mapped_column(String(200))
    number: Mapped[int] = _number("questions.asked_number")
    asked_number: Mapped[int] = _number("questions.asked_number")

    __table_args__ = (
        Index("ix_questions_newest", "tenant", "job", "fingerprint", "asked_number"),
        Index("ix_questions_key", "tenant", "key"),
        Index("ix_questions_page", "tenant", "kind", "number"),
        Index(
            "ix_questions_object",
            "object_key",
            sqlite_where=_IN_STORAGE,
            postgresql_where=_IN_STORAGE,
        ),
    )


class ReportRecord(Record):
    """Iteration times that a job measured."""

    __tablename__ = "reports"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    job: Mapped[str] = mapped_column(String(200))
    fingerprint: Mapped[str] = mapped_column(String(64))
    profile_sha256: Mapped[str] = mapped_column(String(64))
    predicted_iteration_s: Mapped[float] = mapped_column(Double)
    measured_iteration_s: Mapped[float] = mapped_column(Double)
    plain_iteration_s: Mapped[float | None] = mapped_column(Double)
    num_iterations: Mapped[int]
    created_at: Mapped[datetime]
    number: Mapped[int] = _number("reports.number")

    __table_args__ = (Index("ix_reports_job", "tenant", "job", "number"),)


class ApiKeyRecord(Record):
    """An API key; only the hash of its secret is stored."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    scopes: Mapped[str] = mapped_column(String(100))
    secret_sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    number: Mapped[int] = _number("api_keys.number")


class OrphanRecord(Record):
    """An object that no row named at the last sweep."""

    __tablename__ = "orphans"

    object_key: Mapped[str] = mapped_column(String(100), primary_key=True)
    found_at: Mapped[datetime]


class ObjectOwnerRecord(Record):
    """A place in object storage that belongs to this database, and the identifier stored there."""

    __tablename__ = "object_owners"

    place: Mapped[str] = mapped_column(Text, primary_key=True)
    id: Mapped[str] = mapped_column(String(32))


class CursorSecretRecord(Record):
    """The one secret with which all service processes encrypt the cursors of lists; a migration makes it."""

    __tablename__ = "cursor_secret"

    secret: Mapped[bytes] = mapped_column(primary_key=True)


# As text, so that a database sees that the index of live tasks holds all that are asked for.
IS_LIVE = text("state IN ('queued', 'running')")


class TaskRecord(Record):
    """Work for one worker; the lease names the service process that does it.

    `result_id` is the id of the question that it answers, `options` what was asked for besides the input,
    `request_id` which request did so first.
    """

    __tablename__ = "tasks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    tenant: Mapped[str] = mapped_column(String(100))
    key: Mapped[str] = mapped_column(String(64))
    result_id: Mapped[str] = mapped_column(String(32))
    options: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(10))
    problem: Mapped[str | None] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(default=0)
    num_done: Mapped[int | None]
    num_total: Mapped[int | None]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    lease_owner: Mapped[str | None] = mapped_column(String(64))
    lease_until: Mapped[datetime | None]
    request_id: Mapped[str | None] = mapped_column(String(100))
    number: Mapped[int] = _number("tasks.number")

    __table_args__ = (
        # Two tasks for one key at the same time cannot exist: this is what "solved once" rests on.
        Index(
            "ux_tasks_live_key",
            "tenant",
            "key",
            unique=True,
            sqlite_where=IS_LIVE,
            postgresql_where=IS_LIVE,
        ),
        Index("ix_tasks_state", "state", "number"),
        Index("ix_tasks_turns", "tenant", "started_at"),
        Index("ix_tasks_page", "tenant", "number"),
    )
