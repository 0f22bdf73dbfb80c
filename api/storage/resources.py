"""Profiles and reports. What is asked about profiles is in ``pace.api.storage.questions``.

Every method is one transaction and blocks; the service calls them from threads. Every method takes
the tenant first, and no row of another tenant is ever read.
"""

import hashlib
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, delete, exists, select

from pace.api.errors import InUse, InvalidRequest
from pace.api.fairness.tenants import Tenants
from pace.api.questions.kind import ReceivedProfile
from pace.api.storage.database import Database, Upsert
from pace.api.storage.objects import StoredDocument
from pace.api.storage.pages import read_page
from pace.api.storage.quota import StorageQuota
from pace.api.storage.records import (
    IS_LIVE,
    ProfileRecord,
    QuestionRecord,
    ReportRecord,
    SolutionRecord,
    TaskRecord,
)
from pace.client.documents import (
    ProfilePage,
    ProfileSummary,
    ReportPage,
    ReportRequest,
    ReportResource,
)

_PROFILE_SUMMARY = (
    ProfileRecord.sha256.label("id"),
    ProfileRecord.name,
    ProfileRecord.fingerprint,
    ProfileRecord.num_ops,
    ProfileRecord.num_gradients,
    ProfileRecord.size_bytes,
    ProfileRecord.created_at,
)
_REPORT = tuple(column for column in ReportRecord.__table__.c if column.key not in ("tenant", "number"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """A stored profile; the document is JSON compressed by zlib."""

    summary: ProfileSummary
    document: bytes
    object_key: str | None = None


class ResourceStore:
    """Profiles and reports in the database.

    Parameters
    ----------
    quota
        Storage limits of tenants; None for no limits.
    """

    def __init__(self, database: Database, quota: StorageQuota | None = None) -> None:
        self.database = database
        self._quota = quota or StorageQuota(Tenants())

    def get_profile_document(self, tenant: str, sha256: str) -> StoredDocument | None:
        """Return a profile's compressed document, or None when there is none."""
        question = select(ProfileRecord.document, ProfileRecord.object_key).where(
            ProfileRecord.tenant == tenant, ProfileRecord.sha256 == sha256
        )
        with self.database.read() as connection:
            row = connection.execute(question).first()
        return None if row is None else StoredDocument(**row._mapping)

    def put_profile(self, tenant: str, received: ReceivedProfile) -> ProfileSummary:
        """Store a profile and return its summary. Raises QuotaExceeded beyond the tenant's limit."""
        with self.database.write() as connection:
            if hold_profile(connection, tenant, received.sha256) is None:
                self._quota.require(connection, tenant, received.stored_bytes)
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

    def list_profiles(self, tenant: str, contains: str | None, limit: int, cursor: str | None) -> ProfilePage:
        """Return a page of profiles whose names contain a text, whatever its case."""
        question = select(*_PROFILE_SUMMARY).where(ProfileRecord.tenant == tenant)
        if contains:
            question = question.where(ProfileRecord.name.icontains(contains, autoescape=True))
        with self.database.read() as connection:
            rows, following = read_page(connection, question, ProfileRecord.number, limit, cursor)
        return ProfilePage(items=tuple(ProfileSummary(**row) for row in rows), next=following)

    def delete_profile(self, tenant: str, sha256: str) -> bool:
        """Delete a profile; return whether it existed.

        Raises
        ------
        InUse
            If answered questions or live tasks refer to it.
        """
        mine = (ProfileRecord.tenant == tenant) & (ProfileRecord.sha256 == sha256)
        with self.database.write() as connection:
            # Whoever submits a task for it holds the row: they are waited for, and then seen.
            if connection.scalar(select(ProfileRecord.sha256).where(mine).with_for_update()) is None:
                return False
            asked = (QuestionRecord.tenant == tenant) & (QuestionRecord.input_sha256 == sha256)
            live = (
                select(TaskRecord.id)
                .join(QuestionRecord, QuestionRecord.id == TaskRecord.result_id)
                .where(asked, TaskRecord.tenant == tenant, IS_LIVE)
            )
            solved = SolutionRecord.tenant == tenant, SolutionRecord.key == QuestionRecord.key
            answered = select(QuestionRecord.id).where(asked, exists().where(*solved))
            # Tasks first: one that ends meanwhile is live at the first look or solved at the other.
            if any(connection.scalar(question.limit(1)) is not None for question in (live, answered)):
                detail = f"results or unfinished tasks refer to profile {sha256}; delete or cancel them first"
                raise InUse(detail)
            # Requests that came to nothing, as their tasks failed or were cancelled.
            connection.execute(delete(QuestionRecord).where(asked))
            connection.execute(delete(ProfileRecord).where(mine))
            return True

    def add_report(
        self, tenant: str, report: ReportRequest, idempotency_key: str | None = None
    ) -> ReportResource:
        """Store a report of a job; return the stored report.

        Parameters
        ----------
        idempotency_key
            A report with the key of a stored report is not stored again.

        Raises
        ------
        QuotaExceeded
            If it exceeds the tenant's limit.
        InvalidRequest
            If the key belongs to a different report.
        """
        new_id = uuid.uuid4().hex if idempotency_key is None else _report_id(tenant, idempotency_key)
        stored = ReportResource(id=new_id, created_at=datetime.now(UTC), **report.model_dump())
        found = select(*_REPORT).where(ReportRecord.id == new_id)
        with self.database.write() as connection:
            row = connection.execute(found).first()
            if row is None:
                self._quota.require(connection, tenant, 0)
                if _SAVE_REPORT.execute(connection, tenant=tenant, **stored.model_dump()).rowcount:
                    return stored
                row = connection.execute(found).one()  # another service process stored it first
        before = ReportResource(**row._mapping)
        if before.model_dump(exclude={"created_at"}) != stored.model_dump(exclude={"created_at"}):
            raise InvalidRequest("Idempotency-Key: it came with another report before; use a new one")
        return before

    def has_report(self, tenant: str, idempotency_key: str) -> bool:
        """Whether a report came with a key before."""
        known = select(ReportRecord.id).where(ReportRecord.id == _report_id(tenant, idempotency_key))
        with self.database.read() as connection:
            return connection.scalar(known) is not None

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
            rows, following = read_page(connection, question, ReportRecord.number, limit, cursor)
        return ReportPage(items=tuple(ReportResource(**row) for row in rows), next=following)


# Statements of every request are built once: to build one takes longer than to run it.
_HELD_PROFILE = (
    select(ProfileRecord.fingerprint)
    .where(ProfileRecord.tenant == bindparam("tenant"), ProfileRecord.sha256 == bindparam("sha256"))
    .with_for_update(read=True, key_share=True)
)
# An update that changes nothing: it locks the row of one who was faster.
_SAVE_PROFILE = Upsert(ProfileRecord, ["tenant", "sha256"], ["num_ops"])
_SAVE_REPORT = Upsert(ReportRecord)


def _report_id(tenant: str, idempotency_key: str) -> str:
    return hashlib.sha256(f"report\0{tenant}\0{idempotency_key}".encode()).hexdigest()[:32]


def hold_profile(connection: Connection, tenant: str, sha256: str) -> str | None:
    """Return a profile's fingerprint, or None; the profile is locked until this transaction ends."""
    fingerprint: str | None = connection.scalar(_HELD_PROFILE, {"tenant": tenant, "sha256": sha256})
    return fingerprint


def save_profile(connection: Connection, tenant: str, received: ReceivedProfile) -> None:
    """Store a profile unless it exists; it is locked until this transaction ends."""
    # Looked up first: the document would be sent to the database only to be ignored.
    if hold_profile(connection, tenant, received.sha256) is None:
        # PostgreSQL cannot store NUL in text; the document keeps the name as it is.
        shown = received.name.replace("\0", "\N{REPLACEMENT CHARACTER}")
        stored = replace(received, name=shown)
        _SAVE_PROFILE.execute(connection, tenant=tenant, created_at=datetime.now(UTC), **asdict(stored))
