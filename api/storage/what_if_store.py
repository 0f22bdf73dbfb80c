"""What-ifs in the database. As in ``pace.api.storage.store``: one transaction a method, the tenant first."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, Select, delete, select

from pace.api.received import ReceivedWhatIf
from pace.api.storage.database import Database, Upsert
from pace.api.storage.pages import read_page
from pace.api.storage.records import SolutionRecord, WhatIfRecord
from pace.client.what_if_documents import WhatIfPage, WhatIfSummary

_ANSWERED = (SolutionRecord.tenant == WhatIfRecord.tenant) & (SolutionRecord.key == WhatIfRecord.key)
_SUMMARY = (
    WhatIfRecord.id,
    WhatIfRecord.profile_sha256,
    WhatIfRecord.num_cells,
    WhatIfRecord.created_at,
)
_SAVE = Upsert(WhatIfRecord, ["id"], ["asked_at"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWhatIf:
    """A what-if that can be answered with."""

    summary: WhatIfSummary
    document: bytes
    object_key: str | None = None


class WhatIfStore:
    """What-ifs that have an answer."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, tenant: str, what_if_id: str) -> StoredWhatIf | None:
        """Return a what-if, or None when there is none or it is not answered yet."""
        with self.database.read() as connection:
            return find_what_if(connection, tenant, what_if_id)

    def list(self, tenant: str, limit: int, cursor: str | None) -> WhatIfPage:
        """Return a page of what-ifs."""
        question = select(*_SUMMARY).join(SolutionRecord, _ANSWERED).where(WhatIfRecord.tenant == tenant)
        with self.database.read() as connection:
            rows, following = read_page(
                connection, question, WhatIfRecord.created_at, WhatIfRecord.id, limit, cursor
            )
        return WhatIfPage(items=tuple(WhatIfSummary(**row._mapping) for row in rows), next=following)

    def delete(self, tenant: str, what_if_id: str) -> bool:
        """Delete an answered what-if and its document; say whether it was there."""
        mine = (WhatIfRecord.tenant == tenant) & (WhatIfRecord.id == what_if_id)
        with self.database.write() as connection:
            key = connection.scalar(
                select(WhatIfRecord.key).join(SolutionRecord, _ANSWERED).where(mine).with_for_update()
            )
            if key is None:
                return False
            connection.execute(delete(WhatIfRecord).where(mine))
            connection.execute(
                delete(SolutionRecord).where(SolutionRecord.tenant == tenant, SolutionRecord.key == key)
            )
            return True


def find_what_if(connection: Connection, tenant: str, what_if_id: str) -> StoredWhatIf | None:
    """Return a what-if, or None when there is none or it is not answered yet."""
    return _stored(connection.execute(_answered(tenant, what_if_id)).first())


def hold_what_if(connection: Connection, tenant: str, what_if_id: str) -> StoredWhatIf | None:
    """Return an answered what-if, which nobody deletes until this transaction ends, or None."""
    question = _answered(tenant, what_if_id)
    return _stored(
        connection.execute(question.with_for_update(read=True, key_share=True, of=SolutionRecord)).first()
    )


def _answered(tenant: str, what_if_id: str) -> Select[str, str, int, datetime, bytes, str | None]:
    return (
        select(*_SUMMARY, SolutionRecord.document, SolutionRecord.object_key)
        .join(SolutionRecord, _ANSWERED)
        .where(WhatIfRecord.tenant == tenant, WhatIfRecord.id == what_if_id)
    )


def _stored(row: Row[str, str, int, datetime, bytes, str | None] | None) -> StoredWhatIf | None:
    if row is None:
        return None
    values = dict(row._mapping)
    held = {name: values.pop(name) for name in ("document", "object_key")}
    return StoredWhatIf(**held, summary=WhatIfSummary(**values))


def save_what_if_request(
    connection: Connection,
    tenant: str,
    received: ReceivedWhatIf,
    fingerprint: str,  # noqa: ARG001  # as for schedules: both stand in one table of kinds
) -> str:
    """Record that a what-if was asked for, now; return its id."""
    now = datetime.now(UTC)
    new_id = hashlib.sha256(f"what-if\0{tenant}\0{received.key}".encode()).hexdigest()[:32]
    _SAVE.execute(
        connection,
        id=new_id,
        tenant=tenant,
        key=received.key,
        profile_sha256=received.profile_sha256,
        num_cells=received.num_cells,
        created_at=now,
        asked_at=now,
    )
    return new_id
