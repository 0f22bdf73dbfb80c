"""Pages of long lists: newest first, continued after the last row that was seen."""

import base64
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from pace.api.errors import InvalidRequest

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

    Rows that come or go between two pages shift no others.

    Raises
    ------
    InvalidRequest
        For a cursor that no page gave.
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
        moment = datetime.fromisoformat(created_at)
        if moment.tzinfo is None or not _ROW_ID.fullmatch(row_id):
            raise ValueError(cursor)
        return moment, row_id
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest("cursor: not one that this service gave") from None
