"""What is stored: profiles, schedules, reports. The queue of tasks is in ``pace.api.tasks.queue``.

Every method is one transaction and blocks; the service calls them from threads. Every method takes
the tenant first, and no row of another tenant is ever read.
"""

import hashlib
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Select,
    bindparam,
    delete,
    exists,
    select,
)

from pace.api.errors import InUse, InvalidRequest
from pace.api.fairness.tenants import Tenants
from pace.api.received import ReceivedProfile, ReceivedRequest, document_bytes
from pace.api.storage.database import Database, Upsert
from pace.api.storage.objects import StoredDocument
from pace.api.storage.pages import read_page
from pace.api.storage.quota import StorageQuota
from pace.api.storage.records import (
    ProfileRecord,
    ReportRecord,
    ScheduleRecord,
    SolutionRecord,
    TaskRecord,
    WhatIfRecord,
)
from pace.client.documents import (
    ProfilePage,
    ProfileSummary,
    ReportPage,
    ReportRequest,
    ReportResource,
    SchedulePage,
    ScheduleSummary,
)

_SOLVED = (SolutionRecord.tenant == ScheduleRecord.tenant) & (SolutionRecord.key == ScheduleRecord.key)
_PROFILE_SUMMARY = (
    ProfileRecord.sha256.label("id"),
    ProfileRecord.name,
    ProfileRecord.fingerprint,
    ProfileRecord.num_ops,
    ProfileRecord.num_gradients,
    ProfileRecord.size_bytes,
    ProfileRecord.created_at,
)
_SCHEDULE_SUMMARY = (
    ScheduleRecord.id,
    ScheduleRecord.job,
    ScheduleRecord.fingerprint,
    ScheduleRecord.profile_sha256,
    ScheduleRecord.created_at,
)

_REPORT = tuple(column for column in ReportRecord.__table__.c if column.key != "tenant")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule:
    """A schedule that can be answered with."""

    id: str
    job: str | None
    fingerprint: str
    profile_sha256: str
    created_at: datetime
    document: bytes
    object_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """A profile that can be answered with; the document is JSON compressed by zlib."""

    summary: ProfileSummary
    document: bytes
    object_key: str | None = None


class ResourceStore:
    """Profiles, schedules and reports in the database.

    Parameters
    ----------
    quota
        What tenants may store; without it, what they like.
    """

    def __init__(self, database: Database, quota: StorageQuota | None = None) -> None:
        self.database = database
        self._quota = quota or StorageQuota(Tenants())

    def get_schedule(self, tenant: str, schedule_id: str) -> StoredSchedule | None:
        """Return a schedule, or None when there is none or it is not solved yet."""
        with self.database.read() as connection:
            return find_schedule(connection, _SCHEDULE_BY_ID, tenant=tenant, id=schedule_id)

    def get_documents(self, tenant: str, schedule_id: str) -> tuple[StoredDocument, StoredDocument] | None:
        """Return the compressed profile and the document of a schedule, or None when there is none."""
        question = (
            select(
                ProfileRecord.document,
                ProfileRecord.object_key,
                SolutionRecord.document.label("schedule"),
                SolutionRecord.object_key.label("schedule_key"),
            )
            .select_from(ScheduleRecord)
            .join(SolutionRecord, _SOLVED)
            .join(
                ProfileRecord,
                (ProfileRecord.tenant == ScheduleRecord.tenant)
                & (ProfileRecord.sha256 == ScheduleRecord.profile_sha256),
            )
            .where(ScheduleRecord.tenant == tenant, ScheduleRecord.id == schedule_id)
        )
        with self.database.read() as connection:
            row = connection.execute(question).first()
        if row is None:
            return None
        return (
            StoredDocument(document=row.document, object_key=row.object_key),
            StoredDocument(document=row.schedule, object_key=row.schedule_key),
        )

    def get_profile_document(self, tenant: str, sha256: str) -> StoredDocument | None:
        """Return a profile's compressed document, or None when there is none."""
        question = select(ProfileRecord.document, ProfileRecord.object_key).where(
            ProfileRecord.tenant == tenant, ProfileRecord.sha256 == sha256
        )
        with self.database.read() as connection:
            row = connection.execute(question).first()
        return None if row is None else StoredDocument(**row._mapping)

    def newest_schedule(self, tenant: str, job: str, fingerprint: str) -> StoredSchedule | None:
        """Return the schedule that the job asked for last, of those that are solved."""
        with self.database.read() as connection:
            return find_schedule(
                connection, _NEWEST_SCHEDULE, tenant=tenant, job=job, fingerprint=fingerprint
            )

    def list_schedules(
        self, tenant: str, job: str | None, fingerprint: str | None, limit: int, cursor: str | None
    ) -> SchedulePage:
        """Return a page of solved schedules."""
        question = (
            select(*_SCHEDULE_SUMMARY, ScheduleRecord.asked_at, ScheduleRecord.asked_by)
            .join(SolutionRecord, _SOLVED)
            .where(ScheduleRecord.tenant == tenant)
        )
        if job is not None:
            question = question.where(ScheduleRecord.job == job)
        if fingerprint is not None:
            question = question.where(ScheduleRecord.fingerprint == fingerprint)
        with self.database.read() as connection:
            rows, following = read_page(
                connection, question, ScheduleRecord.created_at, ScheduleRecord.id, limit, cursor
            )
        return SchedulePage(items=tuple(ScheduleSummary(**row._mapping) for row in rows), next=following)

    def delete_schedule(self, tenant: str, schedule_id: str) -> bool:
        """Delete a solved schedule, and its document with its last job; say whether it was there."""
        with self.database.write() as connection:
            # The document is locked too: who just found it for another job is waited for, and then seen.
            key = connection.scalar(
                select(ScheduleRecord.key)
                .join(SolutionRecord, _SOLVED)
                .where(ScheduleRecord.tenant == tenant, ScheduleRecord.id == schedule_id)
                .with_for_update()
            )
            if key is None:
                return False
            connection.execute(
                delete(ScheduleRecord).where(
                    ScheduleRecord.tenant == tenant, ScheduleRecord.id == schedule_id
                )
            )
            used = select(ScheduleRecord.id).where(ScheduleRecord.tenant == tenant, ScheduleRecord.key == key)
            if connection.scalar(used.limit(1)) is None:
                connection.execute(
                    delete(SolutionRecord).where(SolutionRecord.tenant == tenant, SolutionRecord.key == key)
                )
            return True

    def put_profile(self, tenant: str, received: ReceivedProfile) -> ProfileSummary:
        """Keep a profile; return it as it is stored. Raises QuotaExceeded if there is no room for it."""
        with self.database.write() as connection:
            if hold_profile(connection, tenant, received.sha256) is None:
                self._quota.require(connection, tenant, document_bytes(received))
            save_profile(connection, tenant, received)
            row = connection.execute(
                select(*_PROFILE_SUMMARY).where(
                    ProfileRecord.tenant == tenant, ProfileRecord.sha256 == received.sha256
                )
            ).one()
        return ProfileSummary(**row._mapping)

    def get_profile(self, tenant: str, sha256: str) -> StoredProfile | None:
        """Return a profile, or None when there is none."""
        with self.database.read() as connection:
            row = connection.execute(
                select(*_PROFILE_SUMMARY, ProfileRecord.document, ProfileRecord.object_key).where(
                    ProfileRecord.tenant == tenant, ProfileRecord.sha256 == sha256
                )
            ).first()
        if row is None:
            return None
        values = dict(row._mapping)
        held = {name: values.pop(name) for name in ("document", "object_key")}
        return StoredProfile(**held, summary=ProfileSummary(**values))

    def list_profiles(self, tenant: str, limit: int, cursor: str | None) -> ProfilePage:
        """Return a page of profiles."""
        question = select(*_PROFILE_SUMMARY).where(ProfileRecord.tenant == tenant)
        with self.database.read() as connection:
            rows, following = read_page(
                connection, question, ProfileRecord.created_at, ProfileRecord.sha256, limit, cursor
            )
        return ProfilePage(items=tuple(ProfileSummary(**row._mapping) for row in rows), next=following)

    def delete_profile(self, tenant: str, sha256: str) -> bool:
        """Delete a profile; say whether it was there.

        Raises
        ------
        InUse
            While solved schedules, answered what-ifs or live tasks refer to it.
        """
        mine = (ProfileRecord.tenant == tenant) & (ProfileRecord.sha256 == sha256)
        results: tuple[type[ScheduleRecord] | type[WhatIfRecord], ...] = (ScheduleRecord, WhatIfRecord)
        with self.database.write() as connection:
            # Whoever submits a task for it holds the row: they are waited for, and then seen.
            if connection.scalar(select(ProfileRecord.sha256).where(mine).with_for_update()) is None:
                return False
            refers = [
                select(record.id).where(
                    record.tenant == tenant,
                    record.profile_sha256 == sha256,
                    exists().where(SolutionRecord.tenant == tenant, SolutionRecord.key == record.key),
                )
                for record in results
            ]
            live = select(TaskRecord.id).where(
                TaskRecord.tenant == tenant,
                TaskRecord.profile_sha256 == sha256,
                TaskRecord.state.in_(("queued", "running")),
            )
            # Tasks first: one that ends meanwhile is live at the first look or solved at the others.
            if any(connection.scalar(question.limit(1)) is not None for question in (live, *refers)):
                detail = f"schedules or what-ifs of profile {sha256} are stored; delete those first"
                raise InUse(detail)
            # Requests that came to nothing, as their tasks failed or were cancelled.
            for record in results:
                connection.execute(
                    delete(record).where(record.tenant == tenant, record.profile_sha256 == sha256)
                )
            connection.execute(delete(ProfileRecord).where(mine))
            return True

    def add_report(
        self, tenant: str, report: ReportRequest, idempotency_key: str | None = None
    ) -> ReportResource:
        """Keep what a job measured; return what is stored.

        Parameters
        ----------
        idempotency_key
            A report that comes again with the key of one that is stored is not stored again.

        Raises
        ------
        QuotaExceeded
            If there is no room for it.
        InvalidRequest
            If the key was another report's.
        """
        new_id = uuid.uuid4().hex
        if idempotency_key is not None:
            new_id = hashlib.sha256(f"report\0{tenant}\0{idempotency_key}".encode()).hexdigest()[:32]
        stored = ReportResource(id=new_id, created_at=datetime.now(UTC), **report.model_dump())
        with self.database.write() as connection:
            self._quota.require(connection, tenant, 0)
            if _SAVE_REPORT.execute(connection, tenant=tenant, **stored.model_dump()).rowcount:
                return stored
            row = connection.execute(select(*_REPORT).where(ReportRecord.id == new_id)).one()
        before = ReportResource(**row._mapping)
        if before.model_dump(exclude={"created_at"}) != stored.model_dump(exclude={"created_at"}):
            raise InvalidRequest("Idempotency-Key: it was sent with another report before")
        return before

    def list_reports(
        self, tenant: str, job: str | None, fingerprint: str | None, limit: int, cursor: str | None
    ) -> ReportPage:
        """Return a page of reports."""
        question = select(*_REPORT).where(ReportRecord.tenant == tenant)
        if job is not None:
            question = question.where(ReportRecord.job == job)
        if fingerprint is not None:
            question = question.where(ReportRecord.fingerprint == fingerprint)
        with self.database.read() as connection:
            rows, following = read_page(
                connection, question, ReportRecord.created_at, ReportRecord.id, limit, cursor
            )
        return ReportPage(items=tuple(ReportResource(**row._mapping) for row in rows), next=following)


def schedule_id(tenant: str, job: str | None, key: str) -> str:
    """Return the id that a tenant's job's schedule has; 32 hexadecimal digits."""
    parts = [tenant, "" if job is None else f"={job}", key]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def find_schedule(connection: Connection, question: Executable, **values: Any) -> StoredSchedule | None:
    """Return the first schedule that a statement finds with these values."""
    row = connection.execute(question, values).first()
    return None if row is None else StoredSchedule(**row._mapping)


def hold_schedule(connection: Connection, tenant: str, schedule_id: str) -> StoredSchedule | None:
    """Return a solved schedule, whose document nobody deletes until this transaction ends, or None."""
    return find_schedule(connection, _HELD_SCHEDULE, tenant=tenant, id=schedule_id)


def find_unsolved_schedule(connection: Connection, tenant: str, schedule_id: str) -> StoredSchedule | None:
    """Return a schedule that is not solved yet, without its document."""
    row = connection.execute(_UNSOLVED_SCHEDULE, {"tenant": tenant, "id": schedule_id}).first()
    return None if row is None else StoredSchedule(**row._mapping, document=b"")


def _schedules(
    *conditions: ColumnElement[bool],
) -> Select[str, str | None, str, str, datetime, bytes, str | None]:
    return (
        select(*_SCHEDULE_SUMMARY, SolutionRecord.document, SolutionRecord.object_key)
        .join(SolutionRecord, _SOLVED)
        .where(ScheduleRecord.tenant == bindparam("tenant"), *conditions)
        .order_by(ScheduleRecord.asked_at.desc(), ScheduleRecord.id)
    )


# Statements of every request are built once: to build one takes longer than to run it.
_SCHEDULE_BY_ID = _schedules(ScheduleRecord.id == bindparam("id"))
_HELD_SCHEDULE = _SCHEDULE_BY_ID.with_for_update(read=True, key_share=True, of=SolutionRecord)
_UNSOLVED_SCHEDULE = select(*_SCHEDULE_SUMMARY).where(
    ScheduleRecord.tenant == bindparam("tenant"), ScheduleRecord.id == bindparam("id")
)
_NEWEST_SCHEDULE = _schedules(
    ScheduleRecord.job == bindparam("job"), ScheduleRecord.fingerprint == bindparam("fingerprint")
).limit(1)
_HELD_PROFILE = (
    select(ProfileRecord.fingerprint)
    .where(ProfileRecord.tenant == bindparam("tenant"), ProfileRecord.sha256 == bindparam("sha256"))
    .with_for_update(read=True, key_share=True)
)
# An update that changes nothing: it locks the row of one who was faster.
_SAVE_PROFILE = Upsert(ProfileRecord, ["tenant", "sha256"], ["num_ops"])
_SAVE_REPORT = Upsert(ReportRecord)
_SAVE_SCHEDULE = Upsert(ScheduleRecord, ["id"], ["asked_at", "asked_by"])


def hold_profile(connection: Connection, tenant: str, sha256: str) -> str | None:
    """Return a profile's fingerprint, or None; nobody deletes it until this transaction ends."""
    fingerprint: str | None = connection.scalar(_HELD_PROFILE, {"tenant": tenant, "sha256": sha256})
    return fingerprint


def save_profile(connection: Connection, tenant: str, received: ReceivedProfile) -> None:
    """Keep a profile unless it is there; nobody deletes it until this transaction ends."""
    # Looked up first: the document would be sent to the database only to be ignored.
    if hold_profile(connection, tenant, received.sha256) is None:
        # PostgreSQL cannot store NUL in text; the document keeps the name as it is.
        shown = received.name.replace("\0", "\N{REPLACEMENT CHARACTER}")
        stored = replace(received, name=shown)
        _SAVE_PROFILE.execute(connection, tenant=tenant, created_at=datetime.now(UTC), **asdict(stored))


def save_schedule_request(
    connection: Connection, tenant: str, received: ReceivedRequest, fingerprint: str
) -> str:
    """Record that a job asked for a schedule, now; return the schedule's id."""
    now = datetime.now(UTC)
    new_id = schedule_id(tenant, received.job, received.key)
    _SAVE_SCHEDULE.execute(
        connection,
        id=new_id,
        tenant=tenant,
        job=received.job,
        key=received.key,
        fingerprint=fingerprint,
        profile_sha256=received.profile_sha256,
        created_at=now,
        asked_at=now,
        asked_by=received.asked_by,
    )
    return new_id
