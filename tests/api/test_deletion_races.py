"""Deletions that meet requests for the same rows on PostgreSQL, each meeting brought about by a lock."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, delete, event, func, select, text, update

from pace.api.errors import InUse, InvalidRequest
from pace.api.fairness.tenants import Tenants
from pace.api.questions.all_kinds import KINDS, answer_question, read_question
from pace.api.questions.kind import Question, ReadLimits, ReceivedProfile
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.documents import PlacedDocument
from pace.api.storage.questions import QuestionStore
from pace.api.storage.records import ProfileRecord, QuestionRecord, SolutionRecord
from pace.api.storage.resources import ResourceStore
from pace.api.storage.retention import prune
from pace.api.storage.threads import DatabaseThreads
from pace.api.tasks.queue import TaskQueue
from tests.api.postgresql import PostgresqlServer
from tests.api.profiles import layered_profile

_LIMITS = ReadLimits(max_bytes=10**6, max_ops=10**4, max_gradients=10**4, max_cells=10**4)


class Shared:
    """One PostgreSQL database, used by as many service processes as a test asks for."""

    def __init__(self, url: str) -> None:
        self._url = Settings(database_url=url).parsed_database_url
        self.opened: list[Database] = []
        self.open()

    def open(self) -> Database:
        """Connect as another process would."""
        self.opened.append(Database(self._url))
        return self.opened[-1]

    def queue(self) -> TaskQueue:
        """Return the queue as another process sees it."""
        return TaskQueue(self.open(), max_queued=9, tenants=Tenants(), lease_s=60, max_attempts=2)

    def wait_until_blocked(self, num: int, *unless: Future[Any]) -> None:
        """Wait until so many transactions wait for a lock, or a future that should wait has ended."""
        # Other tests' databases are on the same server.
        blocked = text(
            "SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE NOT granted AND datname = current_database()"
        )
        while not any(future.done() for future in unless):
            with self.opened[0].read() as connection:
                if (connection.scalar(blocked) or 0) >= num:
                    return
            time.sleep(0.01)


@pytest.fixture
def shared(postgresql: PostgresqlServer) -> Iterator[Shared]:
    """Make an empty database."""
    made = Shared(postgresql.create_database())
    yield made
    for database in made.opened:
        database.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Start threads in which things wait."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


def _request(job: str = "train") -> Question:
    body = json.dumps({"profile": layered_profile(3), "job": job}).encode()
    return read_question(body, False, _LIMITS, "schedule")


def _by_id(request: Question) -> Question:
    return replace(request, input=None)


@contextmanager
def _schedule_held(shared: Shared, request: Question) -> Iterator[None]:
    """Stop every submission of a request after it looked for its profile, until the end."""
    now = datetime.now(UTC)
    with shared.open().engine.connect() as connection:
        connection.execute(
            QuestionRecord.__table__.insert().values(  # type: ignore[attr-defined]  # a Table, always
                id=request.id_of("a"),
                kind="schedule",
                tenant="a",
                document=b"",
                job=request.job,
                key=request.key,
                fingerprint="0" * 64,
                input_sha256=request.input_sha256,
                created_at=now,
                asked_at=now,
            )
        )
        yield
        connection.rollback()


def _prune_all(shared: Shared) -> Callable[[], int]:
    return lambda: prune(shared.open(), datetime.now(UTC) + timedelta(days=1))


@pytest.mark.parametrize("whole", [False, True], ids=["by id", "with the profile"])
def test_a_profile_is_not_deleted_under_a_request(
    shared: Shared, threads: ThreadPoolExecutor, whole: bool
) -> None:
    """Its deletion waits for the request and is then refused; the task can be claimed."""
    store = ResourceStore(shared.open())
    request = _request()
    assert isinstance(request.input, ReceivedProfile)
    store.put_profile("a", request.input)
    queue = shared.queue()
    with _schedule_held(shared, request):
        submitted = threads.submit(queue.submit, "a", request if whole else _by_id(request))
        shared.wait_until_blocked(1)
        deleted = threads.submit(store.delete_profile, "a", request.input_sha256)
        shared.wait_until_blocked(2, deleted)
    assert submitted.result().task_id is not None
    with pytest.raises(InUse):
        deleted.result()
    assert queue.claim("schedule") is not None


def test_a_profile_is_not_pruned_under_a_request(shared: Shared, threads: ThreadPoolExecutor) -> None:
    """Retention leaves what a request is about to refer to."""
    store = ResourceStore(shared.open())
    request = _request()
    assert isinstance(request.input, ReceivedProfile)
    store.put_profile("a", request.input)
    queue = shared.queue()
    with _schedule_held(shared, request):
        submitted = threads.submit(queue.submit, "a", _by_id(request))
        shared.wait_until_blocked(1)
        pruned = threads.submit(_prune_all(shared))
        shared.wait_until_blocked(2, pruned)
    submitted.result()
    pruned.result()
    assert queue.claim("schedule") is not None


def test_a_request_for_a_profile_that_is_being_deleted_is_refused(
    shared: Shared, threads: ThreadPoolExecutor
) -> None:
    """It waits for the deletion, and then there is no such profile."""
    request = _request()
    assert isinstance(request.input, ReceivedProfile)
    ResourceStore(shared.open()).put_profile("a", request.input)
    with shared.open().write() as connection:
        connection.execute(delete(ProfileRecord))
        submitted = threads.submit(shared.queue().submit, "a", _by_id(request))
        shared.wait_until_blocked(1, submitted)
    with pytest.raises(InvalidRequest, match="there is no profile"):
        submitted.result()


def _solve(queue: TaskQueue, request: Question) -> str:
    submitted = queue.submit("a", request, claim=True)
    assert submitted.claimed is not None
    queue.finish(
        submitted.claimed,
        PlacedDocument(
            document=answer_question("schedule", submitted.claimed.document, submitted.claimed.options)
        ),
    )
    return submitted.result_id


@pytest.mark.parametrize("by_retention", [False, True], ids=["by its owner", "by retention"])
def test_a_document_stays_for_a_second_owner(
    shared: Shared, threads: ThreadPoolExecutor, by_retention: bool
) -> None:
    """The first owner's deletion comes between the second one's look and its commit."""
    queue, second = shared.queue(), shared.queue()
    questions = QuestionStore(shared.open())
    old = _solve(queue, _request("first"))
    with shared.open().write() as connection:
        connection.execute(update(QuestionRecord).values(asked_at=datetime(2020, 1, 1, tzinfo=UTC)))
    before = datetime.now(UTC) - timedelta(days=1)
    ended: list[Future[Any]] = []

    def delete_first(*_: object) -> None:
        # Just before the commit of the second owner's request.
        if by_retention:
            ended.append(threads.submit(prune, shared.open(), before))
        else:
            ended.append(threads.submit(questions.delete, "a", KINDS["schedule"], old))
        shared.wait_until_blocked(1, ended[0])

    event.listen(second.database.engine, "commit", delete_first)
    submitted = second.submit("a", _request("second"))
    ended[0].result()
    assert submitted.result is not None
    assert questions.get("a", KINDS["schedule"], submitted.result_id) is not None
    assert questions.get("a", KINDS["schedule"], old) is None


def test_a_result_that_comes_between_two_looks_is_found(shared: Shared) -> None:
    """The task ends after the look for its result and before the look for the task: no second solve."""
    queue, other = shared.queue(), shared.queue()
    running = queue.submit("a", _request(), claim=True).claimed
    assert running is not None
    document = answer_question("schedule", running.document, running.options)

    def finish(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT tasks.id") and document_left:
            queue.finish(running, PlacedDocument(document=document_left.pop()))

    document_left = [document]
    event.listen(other.database.engine, "before_cursor_execute", finish)
    submitted = other.submit("a", _request())
    assert document_left == []
    assert submitted.task_id is None
    assert submitted.result is not None
    with shared.open().read() as connection:
        assert len(connection.scalars(select(SolutionRecord.key)).all()) == 1
    assert queue.claim("schedule") is None


def test_a_document_that_just_came_stays_for_who_joined_its_task(
    shared: Shared, threads: ThreadPoolExecutor
) -> None:
    """Between the second one's look and its commit the task ends, and the first one deletes its schedule."""
    queue, second = shared.queue(), shared.queue()
    questions = QuestionStore(shared.open())
    first = queue.submit("a", _request("first"), claim=True)
    running = first.claimed
    assert running is not None
    document = answer_question("schedule", running.document, running.options)
    ended: list[Future[Any]] = []

    def end_and_delete() -> bool:
        queue.finish(running, PlacedDocument(document=document))
        return questions.delete("a", KINDS["schedule"], first.result_id)

    def just_before_commit(*_: object) -> None:
        ended.append(threads.submit(end_and_delete))
        shared.wait_until_blocked(1, ended[0])

    event.listen(second.database.engine, "commit", just_before_commit)
    submitted = second.submit("a", _request("second"))
    assert ended[0].result()
    assert submitted.task_id == first.task_id
    assert questions.get("a", KINDS["schedule"], submitted.result_id) is not None


def test_a_call_that_lost_a_deadlock_is_done_again(shared: Shared, threads: ThreadPoolExecutor) -> None:
    """PostgreSQL undoes one of two transactions that wait for each other."""
    database, calls = shared.open(), []

    def lock(connection: Connection, number: int) -> None:
        connection.execute(select(func.pg_advisory_xact_lock(number)))

    def call() -> None:
        with database.write() as connection:
            calls.append("call")
            lock(connection, 1)
            lock(connection, 2)

    async def run() -> None:
        database_threads = DatabaseThreads(60)
        try:
            await database_threads.run(call)
        finally:
            database_threads.close()

    with shared.open().write() as other:
        other.execute(text("SET LOCAL deadlock_timeout = '60s'"))  # never the one that is undone
        lock(other, 2)
        done = threads.submit(asyncio.run, run())
        shared.wait_until_blocked(1, done)
        lock(other, 1)
    done.result()
    assert len(calls) == 2


def test_a_task_that_ends_while_its_profile_is_looked_for_keeps_its_schedule(shared: Shared) -> None:
    """Live at the first look, solved at the next: at neither was it a request that came to nothing."""
    queue, store = shared.queue(), ResourceStore(shared.open())
    questions = QuestionStore(store.database)
    request = _request()
    submitted = queue.submit("a", request, claim=True)
    running = submitted.claimed
    assert running is not None
    documents = [answer_question("schedule", running.document, running.options)]
    num_looks = 0

    def finish(_c: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal num_looks
        num_looks += statement.startswith("SELECT")
        if num_looks == 3 and documents:  # the first locks the profile
            queue.finish(running, PlacedDocument(document=documents.pop()))

    event.listen(store.database.engine, "before_cursor_execute", finish)
    with pytest.raises(InUse):
        store.delete_profile("a", request.input_sha256)
    if documents:
        queue.finish(running, PlacedDocument(document=documents.pop()))
    assert questions.get("a", KINDS["schedule"], submitted.result_id) is not None
