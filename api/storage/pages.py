"""Pages of long lists: newest first, continued after the last row that was seen."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.orm import InstrumentedAttribute

from pace.api.errors import InvalidRequest

_NUMBER = "number_of_row"
# What cursors that no page gave raise: they may say anything.
CURSOR_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)


def read_page(
    connection: Connection,
    question: Select[*tuple[Any, ...]],
    number: InstrumentedAttribute[int],
    limit: int,
    cursor: str | None,
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of a question's rows, those with the largest numbers first, and the cursor of the next.

    Rows that are added or deleted between two pages do not shift others.

    Raises
    ------
    InvalidRequest
        If the cursor is not from a page.
    """
    question = question.add_columns(number.label(_NUMBER))
    if cursor is not None:
        question = question.where(number < _number_of(cursor))
    found = connection.execute(question.order_by(number.desc()).limit(limit + 1))
    rows = [dict(row._mapping) for row in found]
    numbers = [row.pop(_NUMBER) for row in rows]
    return rows[:limit], write_cursor([numbers[limit - 1]]) if len(rows) > limit else None


def write_cursor(position: Sequence[Any]) -> str:
    """Return a cursor that says where a page ended."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def read_cursor(cursor: str) -> Any:
    """Return what a cursor says, or raise an error of `CURSOR_ERRORS`."""
    return json.loads(base64.urlsafe_b64decode(cursor.encode()))


def _number_of(cursor: str) -> int:
    try:
        (number,) = read_cursor(cursor)
        if type(number) is not int or not 0 < number < 2**63:
            raise ValueError(cursor)
        return number
    except CURSOR_ERRORS:
        raise InvalidRequest("cursor: expected one that this service gave") from None
