"""Predictions in the database; as in ``pace.api.storage.store``, each method is one transaction."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, Select, delete, select

from pace.api.received import ReceivedPrediction
from pace.api.storage.database import Database, Upsert
from pace.api.storage.pages import read_page
from pace.api.storage.records import PredictionRecord, SolutionRecord
from pace.api.storage.task_inputs import TaskInput
from pace.client.prediction_documents import PredictionPage, PredictionSummary

_ANSWERED = (SolutionRecord.tenant == PredictionRecord.tenant) & (SolutionRecord.key == PredictionRecord.key)
_SUMMARY = (
    PredictionRecord.id,
    PredictionRecord.name,
    PredictionRecord.steps_sha256,
    PredictionRecord.num_points,
    PredictionRecord.created_at,
)
_SAVE = Upsert(PredictionRecord, ["id"], ["asked_at"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrediction:
    """A prediction that can be answered with."""

    summary: PredictionSummary
    document: bytes
    object_key: str | None = None


class PredictionStore:
    """Predictions that are made."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, tenant: str, prediction_id: str) -> StoredPrediction | None:
        """Return a prediction, or None when there is none or it is not made yet."""
        with self.database.read() as connection:
            return find_prediction(connection, tenant, prediction_id)

    def list(self, tenant: str, limit: int, cursor: str | None) -> PredictionPage:
        """Return a page of predictions."""
        question = select(*_SUMMARY).join(SolutionRecord, _ANSWERED).where(PredictionRecord.tenant == tenant)
        with self.database.read() as connection:
            rows, following = read_page(
                connection, question, PredictionRecord.created_at, PredictionRecord.id, limit, cursor
            )
        return PredictionPage(items=tuple(PredictionSummary(**row._mapping) for row in rows), next=following)

    def delete(self, tenant: str, prediction_id: str) -> bool:
        """Delete a prediction and its document; say whether it was there."""
        mine = (PredictionRecord.tenant == tenant) & (PredictionRecord.id == prediction_id)
        with self.database.write() as connection:
            key = connection.scalar(
                select(PredictionRecord.key).join(SolutionRecord, _ANSWERED).where(mine).with_for_update()
            )
            if key is None:
                return False
            connection.execute(delete(PredictionRecord).where(mine))
            connection.execute(
                delete(SolutionRecord).where(SolutionRecord.tenant == tenant, SolutionRecord.key == key)
            )
            return True


def find_prediction(connection: Connection, tenant: str, prediction_id: str) -> StoredPrediction | None:
    """Return a prediction, or None when there is none or it is not made yet."""
    return _stored(connection.execute(_answered(tenant, prediction_id)).first())


def hold_prediction(connection: Connection, tenant: str, prediction_id: str) -> StoredPrediction | None:
    """Return a prediction that is made, which nobody deletes until this transaction ends, or None."""
    question = _answered(tenant, prediction_id)
    return _stored(
        connection.execute(question.with_for_update(read=True, key_share=True, of=SolutionRecord)).first()
    )


def _answered(tenant: str, prediction_id: str) -> Select[str, str, str, int, datetime, bytes, str | None]:
    return (
        select(*_SUMMARY, SolutionRecord.document, SolutionRecord.object_key)
        .join(SolutionRecord, _ANSWERED)
        .where(PredictionRecord.tenant == tenant, PredictionRecord.id == prediction_id)
    )


def _stored(row: Row[str, str, str, int, datetime, bytes, str | None] | None) -> StoredPrediction | None:
    if row is None:
        return None
    values = dict(row._mapping)
    held = {name: values.pop(name) for name in ("document", "object_key")}
    return StoredPrediction(**held, summary=PredictionSummary(**values))


def no_other_input(
    connection: Connection,  # noqa: ARG001  # as for profiles: both stand in one table of kinds
    tenant: str,  # noqa: ARG001
    received: ReceivedPrediction,  # noqa: ARG001
) -> str:
    """A prediction's steps are stored with it, and have no fingerprint."""
    return ""


def find_steps_input(
    connection: Connection,
    tenant: str,
    steps_sha256: str,  # noqa: ARG001  # as for profiles
    prediction_id: str,
) -> TaskInput | None:
    """Return the steps that a prediction is made from; None if they were deleted."""
    row = connection.execute(
        select(PredictionRecord.document, PredictionRecord.object_key).where(
            PredictionRecord.tenant == tenant, PredictionRecord.id == prediction_id
        )
    ).first()
    return None if row is None else TaskInput(**row._mapping)


def save_prediction_request(
    connection: Connection,
    tenant: str,
    received: ReceivedPrediction,
    fingerprint: str,  # noqa: ARG001  # as for schedules
) -> str:
    """Record that a prediction was asked for, now; return its id."""
    now = datetime.now(UTC)
    new_id = hashlib.sha256(f"prediction\0{tenant}\0{received.key}".encode()).hexdigest()[:32]
    _SAVE.execute(
        connection,
        id=new_id,
        tenant=tenant,
        key=received.key,
        name=received.name,
        steps_sha256=received.steps_sha256,
        num_points=received.num_points,
        document=received.document,
        object_key=received.object_key,
        object_bytes=received.object_bytes,
        created_at=now,
        asked_at=now,
    )
    return new_id
