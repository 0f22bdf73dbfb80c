"""What is stored: profiles, solutions, schedules. The queue of tasks is in ``pace.api.tasks``.

Every method is one transaction and blocks; the service calls them from threads. Every method takes
the tenant first, and no row of another tenant is ever read.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from pace.api.database import Database
from pace.api.records import ProfileRecord, Record, ScheduleRecord, SolutionRecord
from pace.api.work import Received


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule:
    """A schedule that can be answered with."""

    id: str
    job: str | None
    fingerprint: str
    profile_sha256: str
    created_at: datetime
    document: bytes


class Store:
    """Profiles and schedules in the database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create_tables(self) -> None:
        """Create what is missing."""
        with self.database.write() as connection:
            Record.metadata.create_all(connection)

    def get_schedule(self, tenant: str, schedule_id: str) -> StoredSchedule | None:
        """Return a schedule, or None when there is none or it is not solved yet."""
        with self.database.read() as connection:
            return find_schedule(connection, tenant, ScheduleRecord.id == schedule_id)

    def newest_schedule(self, tenant: str, job: str, fingerprint: str) -> StoredSchedule | None:
        """Return the schedule that the job asked for last, of those that are solved."""
        with self.database.read() as connection:
            return find_schedule(
                connection, tenant, ScheduleRecord.job == job, ScheduleRecord.fingerprint == fingerprint
            )


def schedule_id(tenant: str, job: str | None, key: str) -> str:
    """Return the id that a tenant's job's schedule has; 32 hexadecimal digits."""
    parts = [tenant, "" if job is None else f"={job}", key]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def find_schedule(connection: Connection, tenant: str, *conditions: Any) -> StoredSchedule | None:
    """Return the newest solved schedule that meets the conditions."""
    row = connection.execute(
        select(
            ScheduleRecord.id,
            ScheduleRecord.job,
            ScheduleRecord.fingerprint,
            ScheduleRecord.profile_sha256,
            ScheduleRecord.created_at,
            SolutionRecord.document,
        )
        .join(
            SolutionRecord,
            (SolutionRecord.tenant == ScheduleRecord.tenant) & (SolutionRecord.key == ScheduleRecord.key),
        )
        .where(ScheduleRecord.tenant == tenant, *conditions)
        .order_by(ScheduleRecord.asked_at.desc(), ScheduleRecord.id)
        .limit(1)
    ).first()
    return None if row is None else StoredSchedule(**row._mapping)


def save_profile(connection: Connection, tenant: str, received: Received) -> None:
    """Keep a profile unless it is there."""
    statement = insert(connection, ProfileRecord).values(
        tenant=tenant,
        sha256=received.profile_sha256,
        name=received.profile_name,
        fingerprint=received.fingerprint,
        num_ops=received.num_ops,
        num_gradients=received.num_gradients,
        document=received.profile_document,
        created_at=datetime.now(UTC),
    )
    connection.execute(statement.on_conflict_do_nothing())


def save_request(connection: Connection, tenant: str, received: Received) -> str:
    """Note that a job asked for a schedule, now; return the schedule's id."""
    now = datetime.now(UTC)
    new_id = schedule_id(tenant, received.job, received.key)
    statement = insert(connection, ScheduleRecord).values(
        id=new_id,
        tenant=tenant,
        job=received.job,
        key=received.key,
        fingerprint=received.fingerprint,
        profile_sha256=received.profile_sha256,
        created_at=now,
        asked_at=now,
    )
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"asked_at": now}))
    return new_id


def insert(connection: Connection, record: type[Record]) -> "sqlite.Insert | postgresql.Insert":
    """Return an INSERT that can say ON CONFLICT, for this connection's database."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(record)
    return postgresql.insert(record)
