"""Pages of long lists: newest first, continued after the last row that was seen."""

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from pace.api.errors import InvalidRequest

_ROW_ID = re.compile("[0-9a-f]{1,64}")
# What cursors that no page gave raise: they may say anything.
CURSOR_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)


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
    return rows[:limit], write_cursor([last["created_at"].isoformat(), last["id"]])


def write_cursor(position: Sequence[Any]) -> str:
    """Return a cursor that says where a page ended."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def read_cursor(cursor: str) -> Any:
    """Return what a cursor says, or raise an error of `CURSOR_ERRORS`."""
    return json.loads(base64.urlsafe_b64decode(cursor.encode()))


def _position(cursor: str) -> tuple[datetime, str]:
    try:
        created_at, row_id = read_cursor(cursor)
        if not _ROW_ID.fullmatch(row_id):
            raise ValueError(cursor)
        return read_moment(created_at), row_id
    except CURSOR_ERRORS:
        raise InvalidRequest("cursor: expected one that this service gave") from None


def read_moment(text: str) -> datetime:
    """Return a moment in UTC; raise an error of `CURSOR_ERRORS` for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment.astimezone(UTC)  # here, as some moments of other zones have no name in UTC
