"""Deletes what has not been requested for a long time."""

import contextlib
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, select, text, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from pace.api.storage.database import Database
from pace.api.storage.records import (
    ProfileRecord,
    QuestionRecord,
    Record,
    ReportRecord,
    SolutionRecord,
    TaskRecord,
)

_PAGES_AT_ONCE = 2000
_ROWS_AT_ONCE = 500


def prune(database: Database, before: datetime) -> int:
    """Delete old results of all tenants; return the numbers of deleted ones.

    The age of a question counts from its last POST, that of reports and finished tasks from their end. A
    profile is deleted with the last question about it, unless the profile is newer.
    """
    live = TaskRecord.state.in_(("queued", "running"))
    with database.write() as connection:
        of_question = (TaskRecord.tenant == QuestionRecord.tenant) & (TaskRecord.key == QuestionRecord.key)
        num_pruned = connection.execute(
            delete(QuestionRecord).where(QuestionRecord.asked_at < before, ~exists().where(of_question, live))
        ).rowcount
        asked = (QuestionRecord.tenant == SolutionRecord.tenant) & (QuestionRecord.key == SolutionRecord.key)
        _delete_unused(connection, (SolutionRecord.tenant, SolutionRecord.key), ~exists().where(asked))
        connection.execute(delete(TaskRecord).where(~live, TaskRecord.finished_at < before))
        connection.execute(delete(ReportRecord).where(ReportRecord.created_at < before))
        about = (QuestionRecord.tenant == ProfileRecord.tenant) & (
            QuestionRecord.input_sha256 == ProfileRecord.sha256
        )
        unused = and_(ProfileRecord.created_at < before, ~exists().where(about))
        _delete_unused(connection, (ProfileRecord.tenant, ProfileRecord.sha256), unused)
    return num_pruned


def _delete_unused(
    connection: Connection,
    key: tuple[InstrumentedAttribute[str], InstrumentedAttribute[str]],
    unused: ColumnElement[bool],
) -> None:
    """Delete rows without references, except rows that are about to get one.

    Rows are locked and then checked again: references made before the lock are seen, and no new ones can be
    made. Rows locked by others stay until the next time.
    """
    rows = connection.execute(select(*key).where(unused).with_for_update(skip_locked=True)).all()
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = [tuple(row) for row in rows[start : start + _ROWS_AT_ONCE]]
        connection.execute(delete(key[0].class_).where(tuple_(*key).in_(some), unused))


def vacuum(database: Database) -> None:
    """Return freed space to the file system, a little at a time.

    Others can read and write meanwhile: with SQLite in between, with PostgreSQL at any time. PostgreSQL's
    tables keep their size on disk and reuse it.
    """
    if database.is_sqlite:
        before, left = -1, 0
        while left != before:
            before = left
            with database.write() as connection:
                # The driver's own cursor: it steps on by fetching, though the pragma has no columns.
                cursor = connection.connection.cursor()
                cursor.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
                left = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
                incremental = connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() == 2
            if not incremental:
                break
        # Outside a transaction: the file shrinks when the write-ahead log is put into it.
        with contextlib.closing(database.engine.raw_connection()) as raw:
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in Record.metadata.sorted_tables:
            connection.execute(text(f"VACUUM (ANALYZE, SKIP_LOCKED) {table.name}"))
