"""API keys in the database: made, listed, revoked. A key's secret is shown once and kept nowhere."""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from sqlalchemy import Row, insert, select, update

from pace.api.storage.database import Database
from pace.api.storage.records import ApiKeyRecord

Scope = Literal["read", "submit", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is known of a key.

    Attributes
    ----------
    scopes
        "read" what is stored, "submit" profiles and reports, "admin" to delete.
    """

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    secret_sha256: str
    created_at: datetime
    revoked_at: datetime | None


class KeyRing:
    """The keys of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, tenant: str, name: str, scopes: Iterable[Scope]) -> str:
        """Make a key and return its token, which nothing can show again."""
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
                )
            )
        return f"pace_{key_id}_{secret}"

    def find(self, key_id: str) -> ApiKey | None:
        """Return a key that is not revoked."""
        with self._database.read() as connection:
            row = connection.execute(
                select(*ApiKeyRecord.__table__.c).where(
                    ApiKeyRecord.id == key_id, ApiKeyRecord.revoked_at.is_(None)
                )
            ).first()
        return None if row is None else _api_key(row)

    def list(self) -> list[ApiKey]:
        """Return all keys, revoked ones included, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(*ApiKeyRecord.__table__.c).order_by(ApiKeyRecord.created_at))
            return [_api_key(row) for row in rows]

    def revoke(self, key_id: str) -> bool:
        """Make a key invalid; return whether there was one."""
        with self._database.write() as connection:
            revoked = connection.execute(
                update(ApiKeyRecord)
                .where(ApiKeyRecord.id == key_id, ApiKeyRecord.revoked_at.is_(None))
                .values(revoked_at=datetime.now(UTC))
            )
            return bool(revoked.rowcount)


def _api_key(row: Row[tuple[object, ...]]) -> ApiKey:
    values = dict(row._mapping)
    values["scopes"] = frozenset(str(values["scopes"]).split())
    return ApiKey(**values)
