"""Deletes objects that no row names: of deleted or replaced documents, and of failed requests.

An object that no row names is marked, and deleted if no row names it after the grace time, either. A backup
of the database that is not older than the grace time therefore finds all its objects, and an upload whose
transaction is still open is safe.
"""

import uuid
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import Connection, delete, insert, select

from pace.api.storage.database import Database, Upsert
from pace.api.storage.objects import ObjectStore
from pace.api.storage.records import (
    ObjectOwnerRecord,
    OrphanRecord,
    ProfileRecord,
    QuestionRecord,
    SolutionRecord,
)

log = structlog.get_logger(__name__)

_MARK = Upsert(OrphanRecord)
_DOCUMENTS = (ProfileRecord, SolutionRecord, QuestionRecord)


def owns_objects(database: Database, objects: ObjectStore) -> bool:
    """Whether the documents in this place belong to this database; claims a place without an owner."""
    place = f"{objects.location.bucket}/{objects.location.prefix}"
    with database.write() as connection:
        ours = connection.scalar(select(ObjectOwnerRecord.id).where(ObjectOwnerRecord.place == place))
        theirs = objects.owner()
        if ours is None and theirs is None:
            ours = uuid.uuid4().hex
            connection.execute(insert(ObjectOwnerRecord).values(place=place, id=ours))
            theirs = objects.owner(ours)
    if ours != theirs:
        log.error("objects-of-another-database", place=place, own_id=ours, other_id=theirs)
    return ours == theirs


def sweep(database: Database, objects: ObjectStore, grace: timedelta, now: datetime | None = None) -> int:
    """Mark unnamed objects and delete those marked a grace time ago; return the number of deleted objects.

    Nothing is deleted in a place that belongs to another database.
    """
    if not owns_objects(database, objects):
        return 0
    now = now or datetime.now(UTC)
    num_deleted = 0
    for keys in objects.pages():
        with database.read() as connection:
            named = _named(connection, keys)
            marked = dict(
                connection.execute(
                    select(OrphanRecord.object_key, OrphanRecord.found_at).where(
                        OrphanRecord.object_key.in_(keys)
                    )
                ).all()
            )
        orphans = [key for key in keys if key not in named]
        old = [key for key in orphans if key in marked and marked[key] <= now - grace]
        with database.write() as connection:
            found_again = [key for key in named if key in marked]
            if found_again:
                connection.execute(delete(OrphanRecord).where(OrphanRecord.object_key.in_(found_again)))
            for key in orphans:
                if key not in marked:
                    _MARK.execute(connection, object_key=key, found_at=now)
        objects.delete(old)
        with database.write() as connection:
            connection.execute(delete(OrphanRecord).where(OrphanRecord.object_key.in_(old)))
        num_deleted += len(old)
    return num_deleted


def _named(connection: Connection, keys: list[str]) -> set[str]:
    """Which of the keys a row names."""
    named: set[str] = set()
    for record in _DOCUMENTS:
        found = connection.scalars(select(record.object_key).where(record.object_key.in_(keys)))
        named.update(key for key in found if key is not None)
    return named
