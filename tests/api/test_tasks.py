"""The queue of tasks by itself, on both databases: what is claimed at once, and what waits its turn."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from pace.api.errors import InUse, InvalidRequest, QueueFull
from pace.api.fairness.tenants import TenantLimits, Tenants
from pace.api.questions.all_kinds import KINDS, answer_question, read_question
from pace.api.questions.kind import Question, ReadLimits, ReceivedProfile
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.documents import PlacedDocument
from pace.api.storage.pages import read_cursor, write_cursor
from pace.api.storage.questions import QuestionStore
from pace.api.storage.records import ProfileRecord, QuestionRecord, TaskRecord, from_now
from pace.api.storage.resources import ResourceStore
from pace.api.tasks import acceptance
from pace.api.tasks import queue as tasks_queue
from pace.api.tasks.queue import TaskQueue
from pace.api.tasks.solve_size import MOST_GRADIENTS, is_small, is_small_solve
from pace.api.tasks.state import ClaimedTask
from tests.api.profiles import layered_profile

_LIMITS = ReadLimits(max_bytes=10**6, max_ops=10**4, max_gradients=10**4, max_cells=10**4)


def _request(num_layers: int, **options: object) -> Question:
    asked = {"profile": layered_profile(num_layers), "job": "train", "options": options}
    body = json.dumps(asked).encode()
    return read_question(body, False, _LIMITS, "schedule")


def _made(task: ClaimedTask) -> PlacedDocument:
    return PlacedDocument(document=answer_question(task.kind, task.document, task.options))


@pytest.fixture
def queue(database_url: str) -> Iterator[TaskQueue]:
    """An empty queue that takes three tasks, two of a tenant."""
    database = Database(Settings(database_url=database_url).parsed_database_url)
    yield TaskQueue(
        database, max_queued=3, tenants=Tenants(TenantLimits(max_queued=2)), lease_s=60, max_attempts=2
    )
    database.close()


def test_a_task_is_claimed_as_it_is_accepted_where_none_waits(queue: TaskQueue) -> None:
    """It comes with all that a later claim would bring, and is nobody else's any more."""
    accepted = queue.submit("a", _request(3), claim=True)
    assert accepted.claimed is not None
    assert (accepted.claimed.id, accepted.claimed.attempts) == (accepted.task_id, 1)
    assert queue.claim("schedule") is None
    status = queue.status("a", accepted.claimed.id)
    assert status is not None
    assert status.state == "running"
    queue.finish(accepted.claimed, _made(accepted.claimed))
    again = queue.submit("a", _request(3), claim=True)
    assert again.result is not None
    assert (again.task_id, again.claimed) == (None, None)


def test_who_asks_for_the_same_joins_the_task(queue: TaskQueue) -> None:
    """Two processes never do it both."""
    first = queue.submit("a", _request(3), claim=True)
    second = queue.submit("a", _request(3), claim=True)
    assert second.task_id == first.task_id
    assert second.claimed is None


def test_nobody_is_passed_over(queue: TaskQueue) -> None:
    """While another task waits, a new one waits too, whoever has room for it."""
    waiting = queue.submit("a", _request(3))
    later = queue.submit("b", _request(4), claim=True)
    assert (waiting.claimed, later.claimed) == (None, None)
    claimed = [queue.claim("schedule"), queue.claim("schedule")]
    assert [task.id for task in claimed if task is not None] == [waiting.task_id, later.task_id]


def test_a_process_that_ends_gives_back_what_it_claimed(queue: TaskQueue) -> None:
    """A task claimed as it was accepted is queued again like any other, and the attempt does not count."""
    accepted = queue.submit("a", _request(3), claim=True)
    queue.release()
    claimed = queue.claim("schedule")
    assert claimed is not None
    assert (claimed.id, claimed.attempts) == (accepted.task_id, 1)


def test_kinds_that_wait_are_found_at_once(queue: TaskQueue) -> None:
    """Queued tasks count, and those whose process is gone, but not those that run here with an old lease."""
    assert queue.waiting_kinds() == set()
    accepted = queue.submit("a", _request(3))
    assert queue.waiting_kinds() == {"schedule"}
    assert queue.claim("schedule") is not None
    assert queue.waiting_kinds() == set()
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    with queue.database.write() as connection:
        connection.execute(update(TaskRecord).values(lease_until=long_ago))
    assert queue.waiting_kinds() == {"schedule"}
    assert queue.waiting_kinds([accepted.task_id or ""]) == set()


def test_a_claimed_task_of_which_nobody_learned_is_claimed_again(queue: TaskQueue) -> None:
    """If the answer to a claim is lost, others that run do not keep the task's lease alive."""
    for num_layers in (3, 4):
        queue.submit("a", _request(num_layers))
    known, lost = queue.claim("schedule"), queue.claim("schedule")
    assert known is not None
    assert lost is not None
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    with queue.database.write() as connection:
        connection.execute(update(TaskRecord).values(lease_until=long_ago))
    assert queue.renew([known.id]) == []
    again = queue.claim("schedule")
    assert again is not None
    assert (again.id, again.attempts) == (lost.id, 2)
    assert queue.claim("schedule") is None


def test_another_hosts_clock_ends_no_lease(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's clock counts: a process whose host is a day ahead takes nobody's task."""

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Tomorrow":
            return cls.fromtimestamp(datetime.now(tz).timestamp() + 86_400, tz)

    def expired() -> int | None:
        with queue.database.read() as connection:
            late = TaskRecord.lease_until < from_now()
            return connection.scalar(select(func.count()).select_from(TaskRecord).where(late))

    assert queue.submit("a", _request(3), claim=True).claimed is not None
    for module in (acceptance, tasks_queue):
        monkeypatch.setattr(module, "datetime", Tomorrow)
    assert queue.claim("schedule") is None
    assert queue.waiting_kinds() == set()
    monkeypatch.undo()
    with queue.database.write() as connection:
        connection.execute(update(TaskRecord).values(lease_until=from_now(-0.01)))
    assert expired() == 1


def test_a_database_that_was_away_ends_no_lease(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could renew one meanwhile: who works on gets one more lease to say so."""
    now_s = 0.0
    monkeypatch.setattr(tasks_queue, "time", SimpleNamespace(monotonic=lambda: now_s))
    assert queue.submit("a", _request(3), claim=True).claimed is not None
    assert queue.waiting_kinds() == set()
    with queue.database.write() as connection:
        connection.execute(update(TaskRecord).values(lease_until=from_now(-1)))
    now_s = 90.0
    while now_s < 149:
        assert queue.waiting_kinds() == set()
        assert queue.claim("schedule") is None
        now_s += 20
    now_s = 150.0
    assert queue.waiting_kinds() == {"schedule"}
    assert queue.claim("schedule") is not None


def test_too_many_that_wait_are_refused(queue: TaskQueue) -> None:
    """First by tenant, then for all; what is under way does not count."""
    assert queue.submit("a", _request(2), claim=True).claimed is not None
    queue.submit("a", _request(3))
    queue.submit("a", _request(4))
    with pytest.raises(QueueFull, match="2 of your tasks are waiting"):
        queue.submit("a", _request(5), claim=True)
    queue.submit("b", _request(3))
    with pytest.raises(QueueFull, match="3 tasks are waiting"):
        queue.submit("b", _request(4), claim=True)


def test_a_task_that_lost_its_profile_fails_alone(queue: TaskQueue) -> None:
    """It is told why; the tasks behind it, of other tenants too, are claimed as ever."""
    lost = queue.submit("a", _request(3))
    kept = queue.submit("b", _request(4))
    with queue.database.write() as connection:
        connection.execute(delete(ProfileRecord).where(ProfileRecord.tenant == "a"))
    claimed = queue.claim("schedule")
    assert claimed is not None
    assert claimed.id == kept.task_id
    status = queue.status("a", lost.task_id or "")
    assert status is not None
    assert status.state == "failed"
    assert status.problem is not None
    assert "was deleted" in status.problem.detail


def test_a_profile_of_a_cancelled_task_can_be_deleted(queue: TaskQueue) -> None:
    """A request that came to nothing holds nothing; one that is live does."""
    store = ResourceStore(queue.database)
    accepted = queue.submit("a", _request(3))
    profile = _request(3).input_sha256
    with pytest.raises(InUse):
        store.delete_profile("a", profile)
    queue.cancel("a", accepted.task_id or "")
    assert store.delete_profile("a", profile)
    assert not store.delete_profile("a", profile)
    with queue.database.read() as connection:
        assert connection.scalars(select(QuestionRecord.id)).all() == []


def test_what_cannot_be_read_cannot_be_deleted(queue: TaskQueue) -> None:
    """A schedule that is not solved yet is none, and stays for the one who waits for it."""
    questions = QuestionStore(queue.database)
    accepted = queue.submit("a", _request(3), claim=True)
    assert accepted.claimed is not None
    assert not questions.delete("a", KINDS["schedule"], accepted.result_id)
    queue.finish(accepted.claimed, _made(accepted.claimed))
    assert questions.delete("a", KINDS["schedule"], accepted.result_id)
    assert not questions.delete("a", KINDS["schedule"], accepted.result_id)


def test_tasks_are_listed_in_pages(queue: TaskQueue) -> None:
    """Newest first, of the tenant alone, by state and by kind; the cursor goes on where the page ended."""
    ids = [queue.submit("a", _request(2), claim=True).task_id]
    ids += [queue.submit("a", _request(number)).task_id for number in (3, 4)]
    queue.submit("b", _request(2))
    first, cursor = queue.list("a", None, None, 2, None)
    second, last = queue.list("a", None, None, 2, cursor)
    assert [task.id for task in (*first, *second)] == ids[::-1]
    assert cursor is not None
    assert last is None
    assert [task.id for task in queue.list("a", "running", None, 9, None)[0]] == ids[:1]
    assert [task.id for task in queue.list("a", "queued", "schedule", 9, None)[0]] == ids[:0:-1]
    assert queue.list("a", None, "what-if", 9, None) == ([], None)
    assert queue.count_live() == {
        ("a", "schedule", "running"): 1,
        ("a", "schedule", "queued"): 2,
        ("b", "schedule", "queued"): 1,
    }


def test_cursors_do_not_tell_what_others_store(queue: TaskQueue) -> None:
    """Numbers of rows of all tenants are encrypted; a changed cursor, or another list's, is refused."""
    positions: list[list[Any]] = [["tasks", 7], ["tasks", 8], ["tasks", 2**62]]
    with queue.database.read() as connection:
        cursors = [write_cursor(connection, position) for position in positions]
        assert [read_cursor(connection, cursor) for cursor in cursors] == positions
        assert write_cursor(connection, positions[0]) == cursors[0]
        of_profiles = write_cursor(connection, ["profiles", 7])
    contents = [base64.urlsafe_b64decode(cursor) for cursor in cursors]
    assert len({len(content) for content in contents}) == 1
    equal = sum(a == b for a, b in zip(contents[0], contents[1], strict=True))
    assert equal < len(contents[0]) // 4
    changed = base64.urlsafe_b64encode(contents[0][:-1] + bytes([contents[0][-1] ^ 1])).decode()
    for wrong in (changed, of_profiles):
        with pytest.raises(InvalidRequest, match="cursor"):
            queue.list("a", None, None, 2, wrong)


def test_large_solves_leave_a_place_for_small_ones(queue: TaskQueue) -> None:
    """Who has only a place for small ones passes over the large one that waits longer."""
    large, small = _request(2, search_calls=2001), _request(3)
    assert queue.submit("a", large, claim=True, small_only=True).claimed is None
    waits = queue.submit("b", small)
    claimed = queue.claim("schedule", small_only=True)
    assert claimed is not None
    assert (claimed.id, claimed.large) == (waits.task_id, False)
    assert queue.claim("schedule", small_only=True) is None
    claimed = queue.claim("schedule")
    assert claimed is not None
    assert (claimed.tenant, claimed.large) == ("a", True)
    at_once = queue.submit("b", _request(4), claim=True, small_only=True).claimed
    assert at_once is not None
    assert not at_once.large


@pytest.mark.parametrize(
    ("num_layers", "options", "small"),
    [
        (3, {}, True),
        (3, {"fusion": "none", "max_group_bytes": 4096, "slot_s": 1.0, "framework": "ddp"}, True),
        (MOST_GRADIENTS, {}, True),
        (MOST_GRADIENTS + 1, {}, False),
        (3, {"search_calls": 2001}, False),
        (3, {"oracle": "lp", "slot_s": 0.001}, False),
    ],
)
def test_values_and_rows_agree_what_is_small(
    queue: TaskQueue, num_layers: int, options: dict[str, object], small: bool
) -> None:
    """The queue passes over what a process would not count as small, and nothing else."""
    received = _request(num_layers, **options)
    assert isinstance(received.input, ReceivedProfile)
    assert is_small(received.input.num_ops, received.input.num_gradients, received.options) is small
    queue.submit("a", received)
    with queue.database.read() as connection:
        assert bool(connection.scalar(select(TaskRecord.id).where(is_small_solve()))) is small
