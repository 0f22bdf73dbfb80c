"""Simulated fabric runs in the database; as in ``pace.api.storage.store``, each method is one transaction."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, Select, delete, select

from pace.api.received import ReceivedFabricRun
from pace.api.storage.database import Database, Upsert
from pace.api.storage.pages import read_page
from pace.api.storage.records import FabricRunRecord, SolutionRecord
from pace.api.storage.task_inputs import TaskInput
from pace.client.fabric_documents import FabricRunPage, FabricRunSummary

_ANSWERED = (SolutionRecord.tenant == FabricRunRecord.tenant) & (SolutionRecord.key == FabricRunRecord.key)
_SUMMARY = (
    FabricRunRecord.id,
    FabricRunRecord.name,
    FabricRunRecord.scenario_sha256,
    FabricRunRecord.num_policies,
    FabricRunRecord.created_at,
)
_SAVE = Upsert(FabricRunRecord, ["id"], ["asked_at"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFabricRun:
    """A run that can be answered with."""

    summary: FabricRunSummary
    document: bytes
    object_key: str | None = None


class FabricRunStore:
    """Runs that are simulated."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, tenant: str, run_id: str) -> StoredFabricRun | None:
        """Return a run, or None when there is none or it is not simulated yet."""
        with self.database.read() as connection:
            return find_fabric_run(connection, tenant, run_id)

    def list(self, tenant: str, limit: int, cursor: str | None) -> FabricRunPage:
        """Return a page of runs."""
        question = select(*_SUMMARY).join(SolutionRecord, _ANSWERED).where(FabricRunRecord.tenant == tenant)
        with self.database.read() as connection:
            rows, following = read_page(
                connection, question, FabricRunRecord.created_at, FabricRunRecord.id, limit, cursor
            )
        return FabricRunPage(items=tuple(FabricRunSummary(**row._mapping) for row in rows), next=following)

    def delete(self, tenant: str, run_id: str) -> bool:
        """Delete a run and its document; say whether it was there."""
        mine = (FabricRunRecord.tenant == tenant) & (FabricRunRecord.id == run_id)
        with self.database.write() as connection:
            key = connection.scalar(
                select(FabricRunRecord.key).join(SolutionRecord, _ANSWERED).where(mine).with_for_update()
            )
            if key is None:
                return False
            connection.execute(delete(FabricRunRecord).where(mine))
            connection.execute(
                delete(SolutionRecord).where(SolutionRecord.tenant == tenant, SolutionRecord.key == key)
            )
            return True


def find_fabric_run(connection: Connection, tenant: str, run_id: str) -> StoredFabricRun | None:
    """Return a run, or None when there is none or it is not simulated yet."""
    return _stored(connection.execute(_answered(tenant, run_id)).first())


def hold_fabric_run(connection: Connection, tenant: str, run_id: str) -> StoredFabricRun | None:
    """Return a run that is simulated, which nobody deletes until this transaction ends, or None."""
    question = _answered(tenant, run_id)
    return _stored(
        connection.execute(question.with_for_update(read=True, key_share=True, of=SolutionRecord)).first()
    )


def _answered(tenant: str, run_id: str) -> Select[str, str, str, int, datetime, bytes, str | None]:
    return (
        select(*_SUMMARY, SolutionRecord.document, SolutionRecord.object_key)
        .join(SolutionRecord, _ANSWERED)
        .where(FabricRunRecord.tenant == tenant, FabricRunRecord.id == run_id)
    )


def _stored(row: Row[str, str, str, int, datetime, bytes, str | None] | None) -> StoredFabricRun | None:
    if row is None:
        return None
    values = dict(row._mapping)
    held = {name: values.pop(name) for name in ("document", "object_key")}
    return StoredFabricRun(**held, summary=FabricRunSummary(**values))


def no_profile_input(
    connection: Connection,  # noqa: ARG001  # as for profiles: both stand in one table of kinds
    tenant: str,  # noqa: ARG001
    received: ReceivedFabricRun,  # noqa: ARG001
) -> str:
    """A run's scenario is stored with it, and has no fingerprint."""
    return ""


def find_scenario_input(
    connection: Connection,
    tenant: str,
    scenario_sha256: str,  # noqa: ARG001  # as for profiles
    run_id: str,
) -> TaskInput | None:
    """Return the scenario of a run; None if it was deleted."""
    row = connection.execute(
        select(FabricRunRecord.document, FabricRunRecord.object_key).where(
            FabricRunRecord.tenant == tenant, FabricRunRecord.id == run_id
        )
    ).first()
    return None if row is None else TaskInput(**row._mapping)


def save_fabric_run_request(
    connection: Connection,
    tenant: str,
    received: ReceivedFabricRun,
    fingerprint: str,  # noqa: ARG001  # as for schedules
) -> str:
    """Record that a run was asked for, now; return its id."""
    now = datetime.now(UTC)
    new_id = hashlib.sha256(f"fabric-run\0{tenant}\0{received.key}".encode()).hexdigest()[:32]
    _SAVE.execute(
        connection,
        id=new_id,
        tenant=tenant,
        key=received.key,
        name=received.name,
        scenario_sha256=received.scenario_sha256,
        num_policies=received.num_policies,
        document=received.document,
        object_key=received.object_key,
        object_bytes=received.object_bytes,
        created_at=now,
        asked_at=now,
    )
    return new_id
