"""Stores questions of all kinds and their answers.

Every method is one transaction and blocks; the service calls them from threads. Every method takes the tenant
first, and no row of another tenant is ever read.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Executable, bindparam, delete, func, select

from pace.api.errors import InvalidRequest
from pace.api.questions.kind import Question, QuestionKind, ReceivedProfile
from pace.api.storage.database import Database, Upsert
from pace.api.storage.objects import StoredDocument
from pace.api.storage.pages import read_page
from pace.api.storage.records import ProfileRecord, QuestionRecord, SolutionRecord
from pace.api.storage.resources import hold_profile, save_profile
from pace.documents.base import Document

ANSWERED = (SolutionRecord.tenant == QuestionRecord.tenant) & (SolutionRecord.key == QuestionRecord.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """An answered question; the document is the answer's JSON, or in object storage under the key."""

    id: str
    input_sha256: str
    input_name: str | None
    num_steps: int | None
    job: str | None
    fingerprint: str | None
    created_at: datetime
    document: bytes
    object_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """The input of a task besides its options: a document, compressed by zlib.

    `name` is the job, or the name of what the question is about.
    """

    name: str | None
    document: bytes
    object_key: str | None
    num_gradients: int = 0
    num_ops: int = 0


_QUESTION = (
    QuestionRecord.id,
    QuestionRecord.input_sha256,
    QuestionRecord.input_name,
    QuestionRecord.num_steps,
    QuestionRecord.job,
    QuestionRecord.fingerprint,
    QuestionRecord.created_at,
)
_MINE = (QuestionRecord.tenant == bindparam("tenant"), QuestionRecord.id == bindparam("id"))
# Statements of every request are built once: to build one takes longer than to run it.
_ANSWERS = select(*_QUESTION, SolutionRecord.document, SolutionRecord.object_key).join(
    SolutionRecord, ANSWERED
)
_BY_ID = _ANSWERS.where(*_MINE, QuestionRecord.kind == bindparam("kind"))
_HELD = (
    select(SolutionRecord.document, SolutionRecord.object_key)
    .where(SolutionRecord.tenant == bindparam("tenant"), SolutionRecord.key == bindparam("key"))
    .with_for_update(read=True, key_share=True)
)
_NEWEST = (
    _ANSWERS.where(
        QuestionRecord.tenant == bindparam("tenant"),
        QuestionRecord.job == bindparam("job"),
        QuestionRecord.fingerprint == bindparam("fingerprint"),
        QuestionRecord.kind == bindparam("kind"),
    )
    .order_by(QuestionRecord.asked_number.desc())
    .limit(1)
)
NAME = func.coalesce(QuestionRecord.job, QuestionRecord.input_name, ProfileRecord.name).label("name")
ABOUT_PROFILE = (ProfileRecord.tenant == QuestionRecord.tenant) & (
    ProfileRecord.sha256 == QuestionRecord.input_sha256
)
_INPUT = (
    select(
        NAME,
        QuestionRecord.document,
        QuestionRecord.object_key,
        ProfileRecord.document.label("profile"),
        ProfileRecord.object_key.label("profile_key"),
        ProfileRecord.num_gradients,
        ProfileRecord.num_ops,
    )
    .outerjoin(ProfileRecord, ABOUT_PROFILE)
    .where(*_MINE)
)
_SAVE = Upsert(QuestionRecord, ["id"], ["asked_at", "asked_by", "asked_number"], ["created_at"])


def keep_profile(connection: Connection, tenant: str, question: Question) -> str:
    """Store the profile of a question, or find the stored one that it names; return its fingerprint.

    The profile cannot be deleted until this transaction ends.

    Raises
    ------
    InvalidRequest
        If the request names a profile that is not stored.
    """
    if isinstance(question.input, ReceivedProfile):
        save_profile(connection, tenant, question.input)
        return question.input.fingerprint
    fingerprint = hold_profile(connection, tenant, question.input_sha256)
    if fingerprint is None:
        raise InvalidRequest(f"profile_id: there is no profile {question.input_sha256}")
    return fingerprint


def find_input(connection: Connection, tenant: str, question_id: str) -> TaskInput | None:
    """Return a question's profile or other input document; None if it was deleted."""
    row = connection.execute(_INPUT, {"tenant": tenant, "id": question_id}).first()
    if row is None:
        return None
    if row.profile is not None:
        return TaskInput(
            name=row.name,
            document=row.profile,
            object_key=row.profile_key,
            num_gradients=row.num_gradients,
            num_ops=row.num_ops,
        )
    if not row.document and row.object_key is None:
        return None
    return TaskInput(name=row.name, document=row.document, object_key=row.object_key)


def save_question(
    connection: Connection, tenant: str, question: Question, fingerprint: str | None
) -> StoredAnswer:
    """Record a question with the present time; return its answer without the document, if there is one.

    Parameters
    ----------
    fingerprint
        Fingerprint of the profile that it is about.
    """
    now = datetime.now(UTC)
    # A profile is kept by itself, whatever is asked about it.
    brought = None if fingerprint is not None else question.input
    values: dict[str, Any] = {
        "id": question.id_of(tenant),
        "kind": question.kind,
        "tenant": tenant,
        "key": question.key,
        "input_sha256": question.input_sha256,
        "job": question.job,
        "fingerprint": fingerprint,
        "created_at": now,
        "asked_at": now,
        "asked_by": question.asked_by,
        "document": b"",
    }
    if question.num_steps is not None:
        values["num_steps"] = question.num_steps
    if brought is not None:
        values["input_name"] = brought.name
        values["document"] = brought.document
        values["object_key"], values["object_bytes"] = brought.object_key, brought.object_bytes
    return StoredAnswer(
        id=values["id"],
        input_sha256=question.input_sha256,
        input_name=None if brought is None else brought.name,
        num_steps=question.num_steps,
        job=question.job,
        fingerprint=fingerprint,
        created_at=_SAVE.execute(connection, **values).scalar_one(),
        document=b"",
    )


def hold_answer(connection: Connection, tenant: str, key: str, asked: StoredAnswer) -> StoredAnswer | None:
    """Return a question with its answer, locked until this transaction ends, or None."""
    row = connection.execute(_HELD, {"tenant": tenant, "key": key}).first()
    return None if row is None else replace(asked, document=row.document, object_key=row.object_key)


class QuestionStore:
    """The answered questions."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, tenant: str, kind: QuestionKind, question_id: str) -> StoredAnswer | None:
        """Return an answer, or None if there is none yet."""
        return self._first(_BY_ID, tenant=tenant, kind=kind.name, id=question_id)

    def newest(self, tenant: str, kind: QuestionKind, job: str, fingerprint: str) -> StoredAnswer | None:
        """Return a job's most recently requested answer for models with a fingerprint."""
        return self._first(_NEWEST, tenant=tenant, kind=kind.name, job=job, fingerprint=fingerprint)

    def list(
        self,
        tenant: str,
        kind: QuestionKind,
        limit: int,
        cursor: str | None,
        *,
        job: str | None = None,
        fingerprint: str | None = None,
    ) -> Document:
        """Return a page of answered questions."""
        columns = [
            getattr(QuestionRecord, stored).label(name) for name, stored in kind.stored_fields(kind.summary)
        ]
        question = (
            select(*columns)
            .join(SolutionRecord, ANSWERED)
            .where(QuestionRecord.tenant == tenant, QuestionRecord.kind == kind.name)
        )
        if job is not None:
            question = question.where(QuestionRecord.job == job)
        if fingerprint is not None:
            question = question.where(QuestionRecord.fingerprint == fingerprint)
        with self.database.read() as connection:
            rows, following = read_page(connection, question, QuestionRecord.number, limit, cursor)
        return kind.page(items=tuple(kind.summary(**row) for row in rows), next=following)

    def get_documents(
        self, tenant: str, kind: QuestionKind, question_id: str
    ) -> tuple[StoredDocument, StoredDocument] | None:
        """Return a question's compressed input and its answer, or None without an answer."""
        held: Any = QuestionRecord
        question = select(
            SolutionRecord.document.label("answer"), SolutionRecord.object_key.label("answer_key")
        ).select_from(QuestionRecord)
        question = question.join(SolutionRecord, ANSWERED)
        if kind.about_profile:
            held = ProfileRecord
            question = question.join(ProfileRecord, ABOUT_PROFILE)
        question = question.add_columns(held.document, held.object_key)
        question = question.where(*_MINE, QuestionRecord.kind == kind.name)
        with self.database.read() as connection:
            row = connection.execute(question, {"tenant": tenant, "id": question_id}).first()
        if row is None:
            return None
        return (
            StoredDocument(document=row.document, object_key=row.object_key),
            StoredDocument(document=row.answer, object_key=row.answer_key),
        )

    def delete(self, tenant: str, kind: QuestionKind, question_id: str) -> bool:
        """Delete an answered question, and its answer with its last job; return whether it existed."""
        mine = (QuestionRecord.tenant == tenant) & (QuestionRecord.id == question_id)
        with self.database.write() as connection:
            # The document is locked too: who just found it for another job is waited for, and then seen.
            key = connection.scalar(
                select(QuestionRecord.key)
                .join(SolutionRecord, ANSWERED)
                .where(mine, QuestionRecord.kind == kind.name)
                .with_for_update()
            )
            if key is None:
                return False
            connection.execute(delete(QuestionRecord).where(mine))
            used = select(QuestionRecord.id).where(QuestionRecord.tenant == tenant, QuestionRecord.key == key)
            if connection.scalar(used.limit(1)) is None:
                connection.execute(
                    delete(SolutionRecord).where(SolutionRecord.tenant == tenant, SolutionRecord.key == key)
                )
            return True

    def _first(self, statement: Executable, **values: str) -> StoredAnswer | None:
        with self.database.read() as connection:
            row = connection.execute(statement, values).first()
        return None if row is None else StoredAnswer(**row._asdict())
