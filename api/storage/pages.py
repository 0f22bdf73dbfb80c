"""Pages of long lists: newest first, continued after the last row that was seen.

A cursor holds a position in the list. Positions tell how much all tenants have stored, so cursors are
encrypted with a secret of the database.
"""

import base64
import hmac
import json
from collections.abc import Sequence
from hashlib import blake2b, shake_256
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.orm import InstrumentedAttribute

from pace.api.errors import InvalidRequest
from pace.api.storage.records import CursorSecretRecord

_NUMBER = "number_of_row"
_TAG_BYTES = 16
# The length of a cursor does not tell the number of digits.
_BLOCK_BYTES = 64
# What is raised for a cursor that is of no page of the list.
CURSOR_ERRORS = (ValueError, TypeError)


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
    table = str(number.class_.__tablename__)
    if cursor is not None:
        question = question.where(number < _number_of(connection, cursor, table))
    found = connection.execute(question.order_by(number.desc()).limit(limit + 1))
    rows = [dict(row._mapping) for row in found]
    numbers = [row.pop(_NUMBER) for row in rows]
    following = write_cursor(connection, [table, numbers[limit - 1]]) if len(rows) > limit else None
    return rows[:limit], following


def write_cursor(connection: Connection, position: Sequence[Any]) -> str:
    """Return a cursor that says where a page ended; equal positions give equal cursors, so ETags hold."""
    secret = _secret(connection)
    text = json.dumps(position, ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // _BLOCK_BYTES) * _BLOCK_BYTES)
    tag = _tag(secret, text)
    return base64.urlsafe_b64encode(tag + _mask(secret, tag, text)).decode()


def read_cursor(connection: Connection, cursor: str) -> Any:
    """Return what a cursor says, or raise an error of `CURSOR_ERRORS`."""
    secret = _secret(connection)
    given = base64.urlsafe_b64decode(cursor.encode())
    tag = given[:_TAG_BYTES]
    text = _mask(secret, tag, given[_TAG_BYTES:])
    if not hmac.compare_digest(tag, _tag(secret, text)):
        raise ValueError(cursor)
    return json.loads(text)


def _number_of(connection: Connection, cursor: str, table: str) -> int:
    try:
        of_table, number = read_cursor(connection, cursor)
        if of_table != table:
            raise ValueError(cursor)
        return int(number)
    except CURSOR_ERRORS:
        raise InvalidRequest("cursor: expected one that this service gave") from None


def _secret(connection: Connection) -> bytes:
    return connection.execute(select(CursorSecretRecord.secret)).scalar_one()


def _tag(secret: bytes, text: bytes) -> bytes:
    return blake2b(text, key=secret, digest_size=_TAG_BYTES).digest()


def _mask(secret: bytes, tag: bytes, text: bytes) -> bytes:
    """Encrypt a text, or decrypt it: the key stream is the text's own, as the tag is."""
    stream = shake_256(secret + tag).digest(len(text))
    return bytes(a ^ b for a, b in zip(text, stream, strict=True))
