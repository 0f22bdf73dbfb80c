"""Storage quotas of tenants, and their usage."""

import threading
import time
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from pace.api.errors import QuotaExceeded
from pace.api.fairness.tenants import Tenants
from pace.api.storage.database import Database
from pace.api.storage.records import (
    ProfileRecord,
    QuestionRecord,
    ReportRecord,
    SolutionRecord,
    TaskRecord,
)

_TRUSTED_S = 10.0
_REFUSED_AGAIN_S = 0.5
# What a row takes besides its document, about.
ROW_BYTES = 1024
_DOCUMENTS = (ProfileRecord, SolutionRecord, QuestionRecord)
_ROWS = (ReportRecord, TaskRecord)


class StorageQuota:
    """Refuses documents beyond a tenant's storage limit.

    Stored bytes are summed at most every ten seconds for each tenant, and for at most a hundredth of the
    time; what this process accepts in between is added. Results of accepted tasks are always stored, so a
    tenant may exceed its limit a little.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def require(self, connection: Connection, tenant: str, size_bytes: int) -> None:
        """Count bytes that are about to be stored, without the row.

        Raises
        ------
        QuotaExceeded
            If it exceeds the tenant's limit.
        """
        most_bytes = self._tenants.limits(tenant).max_stored_bytes
        if not most_bytes:
            return
        size_bytes += ROW_BYTES
        known = self._known.get(tenant)
        now = time.monotonic()
        if known is None or now - known.at_s > max(_TRUSTED_S, 100 * known.took_s):
            known = self._measure(connection, tenant)
        elif known.size_bytes + size_bytes > most_bytes and now - known.at_s > max(
            _REFUSED_AGAIN_S, 20 * known.took_s
        ):
            known = self._measure(connection, tenant)  # something may have been deleted
        with self._lock:
            if known.size_bytes + size_bytes > most_bytes:
                held = f"{known.size_bytes} of {most_bytes} bytes are stored"
                raise QuotaExceeded(f"{held}, and this would take {size_bytes} more; delete something first")
            known.size_bytes += size_bytes

    def _measure(self, connection: Connection, tenant: str) -> "_Known":
        began_s = time.monotonic()
        size_bytes = stored_bytes(connection, tenant)
        now_s = time.monotonic()
        known = _Known(size_bytes, now_s, now_s - began_s)
        with self._lock:
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[tenant] = known
        return known


@dataclass(slots=True)
class _Known:
    size_bytes: int
    at_s: float
    took_s: float


def stored_bytes(connection: Connection, tenant: str) -> int:
    """Return a tenant's stored bytes: its documents as stored, and about a kilobyte for each row."""
    size_bytes = 0
    for record in _DOCUMENTS:
        held, rows = connection.execute(
            select(
                func.coalesce(func.sum(func.coalesce(record.object_bytes, func.length(record.document))), 0),
                func.count(),
            )
            .select_from(record)
            .where(record.tenant == tenant)
        ).one()
        size_bytes += int(held) + ROW_BYTES * rows
    for table in _ROWS:
        counted = connection.scalar(select(func.count()).select_from(table).where(table.tenant == tenant))
        size_bytes += ROW_BYTES * (counted or 0)
    return size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """Stored bytes, and numbers of queued and running tasks."""

    stored_bytes: int
    num_queued: int
    num_running: int


def read_usage(database: Database, tenant: str) -> TenantUsage:
    """Read a tenant's usage in one transaction; blocks."""
    with database.read() as connection:
        live = connection.execute(
            select(TaskRecord.state, func.count())
            .where(TaskRecord.tenant == tenant, TaskRecord.state.in_(("queued", "running")))
            .group_by(TaskRecord.state)
        ).all()
        by_state = {state: int(count) for state, count in live}
        return TenantUsage(
            stored_bytes=stored_bytes(connection, tenant),
            num_queued=by_state.get("queued", 0),
            num_running=by_state.get("running", 0),
        )
