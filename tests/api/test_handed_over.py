"""A finished document goes straight to those who wait for it, and only what is stored does."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from pace.api.fairness.tenants import Tenants
from pace.api.http.answers import AnswerCache, PreparedAnswer
from pace.api.questions.all_kinds import KINDS
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.documents import PlacedDocument
from pace.api.storage.questions import QuestionStore, StoredAnswer
from pace.api.storage.threads import DatabaseThreads
from pace.api.tasks.queue import TaskQueue
from pace.api.tasks.state import TaskStatus
from pace.api.tasks.watches import Watches
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile
from tests.api.test_tasks import _request


@pytest.fixture
def queue(database_url: str) -> Iterator[TaskQueue]:
    """An empty queue."""
    database = Database(Settings(database_url=database_url).parsed_database_url)
    yield TaskQueue(database, max_queued=9, tenants=Tenants(), lease_s=60, max_attempts=2)
    database.close()


def test_what_is_handed_over_is_what_is_stored(queue: TaskQueue) -> None:
    """The rest of the schedule is known since it was accepted; together they are what a read finds."""
    accepted = queue.submit("a", _request(3), claim=True)
    assert accepted.claimed is not None
    assert isinstance(accepted.unsolved, StoredAnswer)
    assert accepted.unsolved.document == b""
    ended = queue.finish(accepted.claimed, PlacedDocument(document=b"the first"))
    assert ended is not None
    assert ended.document == b"the first"
    assert ended == queue.status("a", accepted.claimed.id)
    stored = QuestionStore(queue.database).get("a", KINDS["schedule"], accepted.result_id)
    assert stored is not None
    assert (stored.document, stored.created_at) == (b"the first", accepted.unsolved.created_at)


@pytest.mark.parametrize("job", ["train", None])
def test_a_finished_task_has_its_name(queue: TaskQueue, job: str | None) -> None:
    """The job, or else the profile's name, whether a task is claimed with its request or later."""
    at_once = queue.submit("a", replace(_request(3), job=job), claim=True).claimed
    queue.submit("a", replace(_request(4), job=job))
    for claimed in (at_once, queue.claim("schedule")):
        assert claimed is not None
        ended = queue.finish(claimed, PlacedDocument(document=b"made"))
        assert ended is not None
        assert ended.name == (job or "layered")
        assert ended == queue.status("a", claimed.id)


def test_only_the_document_that_stays_is_handed_over(queue: TaskQueue) -> None:
    """Of two that finish the same task the first one's answer is everybody's; a cancelled task has none."""
    accepted = queue.submit("a", _request(3), claim=True)
    assert accepted.claimed is not None
    queue.finish(accepted.claimed, PlacedDocument(document=b"the first"))
    again = queue.finish(accepted.claimed, PlacedDocument(document=b"the second"))
    assert again is not None
    assert again.document is None
    elsewhere = queue.submit("a", _request(4), claim=True).claimed
    assert elsewhere is not None
    far = queue.finish(elsewhere, PlacedDocument(document=b"", object_key="key", object_bytes=9))
    assert far is not None
    assert far.document is None
    cancelled = queue.submit("a", _request(5), claim=True).claimed
    assert cancelled is not None
    queue.cancel("a", cancelled.id)
    assert queue.finish(cancelled, PlacedDocument(document=b"late")) is None


def test_who_is_told_does_not_look(queue: TaskQueue) -> None:
    """A waiter of a task that this process does gets its end without a statement of the database."""
    accepted = queue.submit("a", _request(3), claim=True)
    claimed = accepted.claimed
    assert claimed is not None
    statements: list[str] = []
    event.listen(
        queue.database.engine,
        "before_cursor_execute",
        lambda *given: statements.append(given[2]),
        named=False,
    )
    ended = claimed.done(claimed.created_at, b"made")

    async def wait() -> TaskStatus | None:
        watches = Watches(queue, DatabaseThreads(60), poll_s=60)
        waiting = asyncio.create_task(watches.wait("a", claimed.id, 60, told=True))
        await asyncio.sleep(0)
        watches.end("a", ended)
        return await waiting

    assert asyncio.run(wait()) is ended
    assert statements == []


@pytest.mark.parametrize("slow", [False, True])
def test_who_follows_a_task_that_others_wait_for_is_told_at_once(queue: TaskQueue, slow: bool) -> None:
    """Its first event does not wait for the end; the end is told, even if it comes during that event."""
    claimed = queue.submit("a", _request(3), claim=True).claimed
    assert claimed is not None

    async def follow() -> list[str]:
        watches = Watches(queue, DatabaseThreads(60), poll_s=60)
        waiting = asyncio.create_task(watches.wait("a", claimed.id, 60, told=True))
        await asyncio.sleep(0.1)
        seen = []
        async with asyncio.timeout(50):
            async for status in watches.changes("a", claimed.id):
                seen.append(status.state)
                if status.state == "running":
                    watches.end("a", claimed.done(claimed.created_at, b"made"))
                    if slow:
                        await waiting
        await waiting
        return seen

    assert asyncio.run(follow()) == ["running", "done"]


def test_a_post_answers_with_what_a_get_finds(own_service: ServiceProcess) -> None:
    """Byte for byte, also for a job that asks again for what is stored."""
    for job in ("one", "two", "one"):
        created = own_service.post_schedule(layered_profile(4), job=job)
        assert created.status_code == 201
        found = own_service.http.get(created.headers["location"])
        assert found.content == created.content
        assert json.loads(found.content)["job"] == job


def test_an_answer_that_was_dropped_is_not_kept_again() -> None:
    """One that was read before the schedule was deleted may arrive after."""
    cache = AnswerCache(10_000, ttl_s=60)
    answer = PreparedAnswer.of(b"{}")
    cache.put("a", "x", answer)
    assert cache.get("a", "x") is answer
    cache.drop("a", "x")
    cache.put("a", "x", answer)
    assert cache.get("a", "x") is None
    cache.put("b", "x", answer)
    assert cache.get("b", "x") is answer


def test_the_way_around_the_framework_refuses_as_the_framework_does(tmp_path: Path) -> None:
    """Without a key, with one that may not, of another host, and what is no id."""
    with ServiceProcess(tmp_path, auth="required") as service:
        reader = {"Authorization": f"Bearer {service.token('a', 'read')}"}
        unknown = f"/v1/schedules/{'0' * 32}"
        assert service.http.get(unknown).status_code == 401
        assert service.http.post("/v1/schedules", json={}).status_code == 401
        assert service.http.post("/v1/schedules", json={}, headers=reader).status_code == 403
        assert service.http.get(unknown, headers=reader).status_code == 404
        assert service.http.get(f"{unknown}0", headers=reader).status_code == 422
        answer = service.http.get(unknown, headers=reader | {"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json()["request_id"] == "mine"
