"""What a tenant has in use: bytes stored, tasks that wait, tasks that run."""

from dataclasses import dataclass

from sqlalchemy import func, select

from pace.api.storage.database import Database
from pace.api.storage.quota import stored_bytes
from pace.api.storage.records import TaskRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """What is stored, in bytes, and how many tasks wait and run."""

    stored_bytes: int
    num_queued: int
    num_running: int


def read_usage(database: Database, tenant: str) -> TenantUsage:
    """Add up what a tenant has in use; one transaction, and blocks."""
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
