"""Creates, lists and revokes API keys in the database. A key's secret is shown once and never stored."""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from sqlalchemy import insert, select, update

from pace.api.storage.database import Database
from pace.api.storage.pages import read_page
from pace.api.storage.records import ApiKeyRecord

Scope = Literal["read", "submit", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_KEY = tuple(column for column in ApiKeyRecord.__table__.c if column.key != "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key without its secret.

    Attributes
    ----------
    scopes
        "read": read what is stored. "submit": send profiles and reports. "admin": delete, and create and
        revoke keys.
    expires_at
        Time at which the key becomes invalid; None for never.
    last_used_at
        Time of the last use, to about a minute.
    """

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    secret_sha256: str
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None


class KeyRing:
    """The keys of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, tenant: str, name: str, scopes: Iterable[Scope], expires_at: datetime | None = None
    ) -> str:
        """Create a key and return its token, which is shown only once."""
        key_id = secrets.token_hex(8)
        secret = secrets.token_urlsafe(32)
        with self._database.write() as connection:
            connection.execute(
                insert(ApiKeyRecord).values(
                    id=key_id,
                    tenant=tenant,
                    name=name,
                    scopes=" ".join(sorted(scopes)),
                    secret_sha256=hashlib.sha256(secret.encode()).hexdigest(),
                    created_at=datetime.now(UTC),
                    expires_at=expires_at,
                )
            )
        return f"pace_{key_id}_{secret}"

    def find(self, key_id: str) -> ApiKey | None:
        """Return a key that is not revoked."""
        with self._database.read() as connection:
            row = connection.execute(
                select(*_KEY).where(ApiKeyRecord.id == key_id, ApiKeyRecord.revoked_at.is_(None))
            ).first()
        return None if row is None else _api_key(row._asdict())

    def list(self) -> list[ApiKey]:
        """Return all keys, revoked ones included, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(*_KEY).order_by(ApiKeyRecord.number))
            return [_api_key(row._asdict()) for row in rows]

    def page(self, tenant: str, limit: int, cursor: str | None) -> tuple[Sequence[ApiKey], str | None]:
        """Return a page of a tenant's keys, newest first, and the cursor of the next."""
        question = select(*_KEY).where(ApiKeyRecord.tenant == tenant)
        with self._database.read() as connection:
            rows, following = read_page(connection, question, ApiKeyRecord.number, limit, cursor)
        return [_api_key(row) for row in rows], following

    def note_use(self, key_id: str) -> None:
        """Record that a key is used now."""
        with self._database.write() as connection:
            connection.execute(
                update(ApiKeyRecord).where(ApiKeyRecord.id == key_id).values(last_used_at=datetime.now(UTC))
            )

    def revoke(self, key_id: str, tenant: str | None = None) -> bool:
        """Make a key invalid, with `tenant` only one of that tenant; return whether a valid key existed."""
        mine = (ApiKeyRecord.id == key_id) & ApiKeyRecord.revoked_at.is_(None)
        if tenant is not None:
            mine &= ApiKeyRecord.tenant == tenant
        with self._database.write() as connection:
            revoked = connection.execute(
                update(ApiKeyRecord).where(mine).values(revoked_at=datetime.now(UTC))
            )
            return bool(revoked.rowcount)


def _api_key(row: Mapping[str, Any]) -> ApiKey:
    values = dict(row)
    values["scopes"] = frozenset(str(values["scopes"]).split())
    return ApiKey(**values)
