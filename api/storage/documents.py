"""Stores documents in the database or, if they are large, in object storage.

A sweep deletes objects that no row names: of deleted or replaced documents, and of failed requests. Such an
object is marked, and deleted if no row names it after the grace time, either. A backup of the database that
is not older than the grace time therefore finds all its objects, and an upload whose transaction is still
open is safe.
"""

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import structlog
from sqlalchemy import Connection, delete, exists, insert, select

from pace.api.errors import ObjectsUnavailable
from pace.api.questions.kind import InputDocument
from pace.api.storage.database import Database, Upsert
from pace.api.storage.objects import H, ObjectStore
from pace.api.storage.records import (
    ObjectOwnerRecord,
    OrphanRecord,
    ProfileRecord,
    QuestionRecord,
    SolutionRecord,
)
from pace.api.storage.threads import DatabaseThreads

log = structlog.get_logger(__name__)

B = TypeVar("B", bound=InputDocument)
_MARK = Upsert(OrphanRecord)
_DOCUMENTS = (ProfileRecord, SolutionRecord, QuestionRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDocument:
    """A document as its row holds it; `document` is empty if it is in object storage."""

    document: bytes
    object_key: str | None = None
    object_bytes: int | None = None


class DocumentPlaces:
    """Stores and fetches documents.

    Parameters
    ----------
    objects
        Object storage, or None.
    observe
        Called with the seconds of each call of object storage, without the wait for a thread.
    """

    def __init__(
        self,
        database: Database,
        objects: ObjectStore | None,
        timeout_s: float,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._objects = objects
        # Separate from database threads, so that slow object storage delays only requests that need it.
        self.threads = DatabaseThreads(timeout_s, observe, "object storage")

    @property
    def has_objects(self) -> bool:
        """Whether there is object storage."""
        return self._objects is not None

    def fetch(self, held: H) -> H:
        """Return a copy with its document, from the database or object storage; blocks."""
        if held.object_key is None:
            return held
        return self._needed().whole(held)

    async def whole(self, held: H) -> H:
        """Return a copy with its document, from the database or object storage.

        Raises
        ------
        ObjectsUnavailable, StorageTimeout
            If object storage does not answer, or not in time.
        """
        return held if held.object_key is None else await self.threads.run(self.fetch, held)

    def place(self, document: bytes) -> PlacedDocument:
        """Store a document in object storage if it is large; blocks."""
        if self._objects is None or len(document) < self._objects.min_bytes:
            return PlacedDocument(document=document)
        key = self._objects.put(document)
        return PlacedDocument(document=b"", object_key=key, object_bytes=len(document))

    async def move(self, tenant: str, brought: B | None, database_threads: DatabaseThreads) -> B | None:
        """Upload a request's input if it is large and not stored yet.

        If the stored input is deleted before the request is stored, the input is kept in the database.
        """
        if self._objects is None or brought is None or len(brought.document) < self._objects.min_bytes:
            return brought
        if await database_threads.run(self._is_stored, tenant, brought.sha256):
            return brought
        return brought.moved(await self.threads.run(self._objects.put, brought.document))

    async def discard(self, brought: InputDocument | None) -> None:
        """Delete the upload of a refused request; after an error the sweep deletes it."""
        if self._objects is None or brought is None or brought.object_key is None:
            return
        with contextlib.suppress(ObjectsUnavailable):
            await self.threads.run(self._objects.delete, [brought.object_key])

    async def check(self) -> None:
        """Raise ObjectsUnavailable or StorageTimeout unless object storage, if there is any, answers."""
        if self._objects is not None:
            await self.threads.run(self._objects.check)

    def sweep(self, grace: timedelta) -> int:
        """Delete objects that no row has named for the grace time; return their number. Blocks."""
        return 0 if self._objects is None else sweep(self._database, self._objects, grace)

    def close(self) -> None:
        """Start nothing more."""
        self.threads.close()
        if self._objects is not None:
            self._objects.close()

    def _needed(self) -> ObjectStore:
        if self._objects is None:
            raise ObjectsUnavailable("the document is in object storage, and PACE_OBJECTS is not set")
        return self._objects

    def _is_stored(self, tenant: str, sha256: str) -> bool:
        profile = exists().where(ProfileRecord.tenant == tenant, ProfileRecord.sha256 == sha256)
        other = exists().where(QuestionRecord.tenant == tenant, QuestionRecord.input_sha256 == sha256)
        with self._database.read() as connection:
            return bool(connection.scalar(select(profile | other)))


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
