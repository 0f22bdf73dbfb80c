"""Questions that tasks answer: what-ifs, predictions and fabric runs; who asked, and where the answer is.

Each kind has a table, and all tables are alike. As in ``pace.api.storage.store``, each method of a store is
one transaction, and the tenant comes first.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection, Row, Select, delete, select

from pace.api.received import ReceivedFabricRun, ReceivedPrediction, ReceivedWhatIf
from pace.api.storage.database import Database, Upsert
from pace.api.storage.pages import read_page
from pace.api.storage.records import (
    DocumentColumns,
    FabricRunRecord,
    PredictionRecord,
    QuestionRecord,
    SolutionRecord,
    WhatIfRecord,
)
from pace.api.storage.task_inputs import TaskInput
from pace.client.documents import TaskKindName
from pace.client.fabric_documents import FabricRunPage, FabricRunSummary
from pace.client.prediction_documents import PredictionPage, PredictionSummary
from pace.client.what_if_documents import WhatIfPage, WhatIfSummary

Summary = TypeVar("Summary", bound=BaseModel)
Page = TypeVar("Page", bound=BaseModel)
ReceivedQuestion = ReceivedWhatIf | ReceivedPrediction | ReceivedFabricRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer(Generic[Summary]):
    """A question that can be answered with; the document is JSON, or in object storage under the key."""

    summary: Summary
    document: bytes
    object_key: str | None = None


class QuestionTable(Generic[Summary]):
    """The questions of one kind.

    Parameters
    ----------
    kind
        A part of every id.
    record
        The table.
    summary
        What is told of a question without its answer: columns of the table.
    """

    def __init__(self, kind: TaskKindName, record: type[QuestionRecord], summary: type[Summary]) -> None:
        self._kind = kind
        self.record = record
        self._summary = summary
        self.answered = (SolutionRecord.tenant == record.tenant) & (SolutionRecord.key == record.key)
        self.columns = [getattr(record, name) for name in summary.model_fields]
        self._asked = {column.name for column in record.__table__.columns} - {
            "id",
            "tenant",
            "created_at",
            "asked_at",
        }
        self._save = Upsert(record, ["id"], ["asked_at"])

    def find(self, connection: Connection, tenant: str, question_id: str) -> StoredAnswer[Summary] | None:
        """Return an answer, or None when there is none or it is not made yet."""
        return self._stored(connection.execute(self._find(tenant, question_id)).first())

    def hold(self, connection: Connection, tenant: str, question_id: str) -> StoredAnswer[Summary] | None:
        """Return an answer, which nobody deletes until this transaction ends, or None."""
        question = self._find(tenant, question_id)
        return self._stored(
            connection.execute(question.with_for_update(read=True, key_share=True, of=SolutionRecord)).first()
        )

    def save_request(
        self,
        connection: Connection,
        tenant: str,
        received: ReceivedQuestion,
        fingerprint: str,  # noqa: ARG002  # as for schedules: both stand in one table of kinds
    ) -> str:
        """Record that a question was asked, now; return its id."""
        now = datetime.now(UTC)
        new_id = hashlib.sha256(f"{self._kind}\0{tenant}\0{received.key}".encode()).hexdigest()[:32]
        asked = {name: getattr(received, name) for name in self._asked}
        self._save.execute(connection, id=new_id, tenant=tenant, created_at=now, asked_at=now, **asked)
        return new_id

    def find_input(
        self,
        connection: Connection,
        tenant: str,
        sha256: str,  # noqa: ARG002  # as for profiles
        question_id: str,
    ) -> TaskInput | None:
        """Return the document that came with a question, to be worked on; None if it was deleted."""
        record = self.record
        assert issubclass(record, DocumentColumns)
        row = connection.execute(
            select(record.document, record.object_key).where(*self.mine(tenant, question_id))
        ).first()
        return None if row is None else TaskInput(**row._mapping)

    def mine(self, tenant: str, question_id: str) -> tuple[Any, Any]:
        """Return what tells a tenant's question from all others."""
        return self.record.tenant == tenant, self.record.id == question_id

    def summarize(self, row: Row[*tuple[Any, ...]]) -> Summary:
        """Return what a row of `columns` says."""
        return self._summary(**row._mapping)

    def _find(self, tenant: str, question_id: str) -> Select[*tuple[Any, ...]]:
        return (
            select(*self.columns, SolutionRecord.document, SolutionRecord.object_key)
            .join(SolutionRecord, self.answered)
            .where(*self.mine(tenant, question_id))
        )

    def _stored(self, row: Row[*tuple[Any, ...]] | None) -> StoredAnswer[Summary] | None:
        if row is None:
            return None
        values = dict(row._mapping)
        held = {name: values.pop(name) for name in ("document", "object_key")}
        return StoredAnswer(**held, summary=self._summary(**values))


class QuestionStore(Generic[Summary, Page]):
    """The questions of one kind that are answered; a `page` of them has their summaries as `items`."""

    def __init__(self, database: Database, table: QuestionTable[Summary], page: type[Page]) -> None:
        self._database = database
        self._table = table
        self._page = page

    def get(self, tenant: str, question_id: str) -> StoredAnswer[Summary] | None:
        """Return an answer, or None when there is none or it is not made yet."""
        with self._database.read() as connection:
            return self._table.find(connection, tenant, question_id)

    def list(self, tenant: str, limit: int, cursor: str | None) -> Page:
        """Return a page of questions that are answered."""
        record = self._table.record
        question = (
            select(*self._table.columns)
            .join(SolutionRecord, self._table.answered)
            .where(record.tenant == tenant)
        )
        with self._database.read() as connection:
            rows, following = read_page(connection, question, record.created_at, record.id, limit, cursor)
        return self._page(items=tuple(map(self._table.summarize, rows)), next=following)

    def delete(self, tenant: str, question_id: str) -> bool:
        """Delete an answered question and its answer; say whether it was there."""
        record = self._table.record
        mine = self._table.mine(tenant, question_id)
        with self._database.write() as connection:
            key = connection.scalar(
                select(record.key).join(SolutionRecord, self._table.answered).where(*mine).with_for_update()
            )
            if key is None:
                return False
            connection.execute(delete(record).where(*mine))
            connection.execute(
                delete(SolutionRecord).where(SolutionRecord.tenant == tenant, SolutionRecord.key == key)
            )
            return True


WHAT_IFS = QuestionTable("what-if", WhatIfRecord, WhatIfSummary)
PREDICTIONS = QuestionTable("prediction", PredictionRecord, PredictionSummary)
FABRIC_RUNS = QuestionTable("fabric-run", FabricRunRecord, FabricRunSummary)


def what_if_store(database: Database) -> QuestionStore[WhatIfSummary, WhatIfPage]:
    """Return the what-ifs."""
    return QuestionStore(database, WHAT_IFS, WhatIfPage)


def prediction_store(database: Database) -> QuestionStore[PredictionSummary, PredictionPage]:
    """Return the predictions."""
    return QuestionStore(database, PREDICTIONS, PredictionPage)


def fabric_run_store(database: Database) -> QuestionStore[FabricRunSummary, FabricRunPage]:
    """Return the fabric runs."""
    return QuestionStore(database, FABRIC_RUNS, FabricRunPage)


def no_other_input(
    connection: Connection,  # noqa: ARG001  # as for profiles: both stand in one table of kinds
    tenant: str,  # noqa: ARG001
    received: ReceivedQuestion,  # noqa: ARG001
) -> str:
    """What a question brings along is stored with it, and has no fingerprint."""
    return ""
