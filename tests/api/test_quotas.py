"""Quotas of tenants, and their weights where they take turns."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pace.api.errors import ContentTooLarge, QueueFull, QuotaExceeded
from pace.api.fairness.body_limits import BodyLimits
from pace.api.fairness.fair_queue import FairQueue
from pace.api.fairness.task_shares import TaskShares
from pace.api.fairness.tenants import TenantLimits, Tenants
from pace.api.questions.all_kinds import read_question
from pace.api.questions.kind import ReadLimits
from pace.api.questions.reading import read_profile
from pace.api.settings import Settings, load_settings
from pace.api.storage.database import Database
from pace.api.storage.quota import ROW_BYTES, StorageQuota, stored_bytes
from pace.api.storage.resources import ResourceStore
from pace.api.tasks.queue import TaskQueue
from pace.errors import InvalidOptions
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

_LIMITS = ReadLimits(max_bytes=10**6, max_ops=10**4, max_gradients=10**4, max_cells=1000)
TENANTS = Tenants(TenantLimits(max_running=1, max_cells=10), {"heavy": TenantLimits(weight=3, max_running=9)})


@pytest.fixture
def queue(database_url: str) -> Iterator[TaskQueue]:
    """An empty queue."""
    database = Database(Settings(database_url=database_url).parsed_database_url)
    yield TaskQueue(database, max_queued=100, tenants=TENANTS, lease_s=60, max_attempts=2)
    database.close()


def _submit(queue: TaskQueue, tenant: str, num_layers: int, *, claim: bool = False) -> str | None:
    body = json.dumps({"profile": layered_profile(num_layers)}).encode()
    submitted = queue.submit(tenant, read_question(body, False, _LIMITS, "schedule"), claim=claim)
    return None if submitted.claimed is None else submitted.claimed.id


def test_as_many_run_as_may(queue: TaskQueue) -> None:
    """A tenant with one at work waits, though there is room; another does not; what ends makes room."""
    first = _submit(queue, "a", 2, claim=True)
    assert first is not None
    assert _submit(queue, "a", 3, claim=True) is None
    assert queue.claim("schedule") is None
    _submit(queue, "heavy", 2)
    claimed = queue.claim("schedule")
    assert claimed is not None
    assert claimed.tenant == "heavy"
    queue.cancel("a", first)
    claimed = queue.claim("schedule")
    assert claimed is not None
    assert claimed.tenant == "a"


def test_workers_time_is_shared_by_weight(queue: TaskQueue) -> None:
    """With equal tasks, a tenant of weight 3 has three for one of the other."""
    for number in range(2, 14):
        _submit(queue, "heavy", number)
        _submit(queue, "a", number) if number < 6 else None
    order = []
    for _ in range(16):
        task = queue.claim("schedule")
        assert task is not None
        order.append(task.tenant)
        queue.fail(task, QueueFull("the test ends it"))
        queue.shares.charge(task.tenant, 1.0)
    assert Counter(order[:8]) == {"heavy": 6, "a": 2}
    assert Counter(order) == {"heavy": 12, "a": 4}


def test_use_is_forgotten() -> None:
    """By half in five minutes; twice the weight, half as much."""
    now = [0.0]
    shares = TaskShares(Tenants(named={"b": TenantLimits(weight=2)}), now=lambda: now[0])
    shares.charge("a", 8)
    shares.charge("b", 8)
    assert (shares.used("a"), shares.used("b"), shares.used("c")) == (8, 4, 0)
    now[0] = 600
    assert shares.used("a") == pytest.approx(2)
    shares.charge("a", 1)
    assert shares.used("a") == pytest.approx(3)


def test_turns_are_by_weight() -> None:
    """Of four places, a tenant of weight 3 has three, whoever asked first."""

    async def run() -> None:
        turns = FairQueue("bodies", 4, 100, TENANTS.weight)
        began: list[str] = []
        go_on = asyncio.Event()

        async def work(tenant: str) -> None:
            async with turns.turn(tenant):
                began.append(tenant)
                await go_on.wait()

        async with turns.turn("first"), turns.turn("first"), turns.turn("first"), turns.turn("first"):
            waiting = [asyncio.create_task(work(tenant)) for tenant in ["a"] * 8 + ["heavy"] * 8]
            await asyncio.sleep(0)
        while len(began) < 4:
            await asyncio.sleep(0)
        assert Counter(began) == {"heavy": 3, "a": 1}
        go_on.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())


def test_simulations_under_way_are_bounded(queue: TaskQueue) -> None:
    """One what-if beyond the bound is too large, two together are too many now."""

    def ask(name: str, points: int) -> None:
        grid = {"bandwidth_gbps": list(range(1, points + 1)), "policies": ["ddp"]}
        body = json.dumps({"profile": layered_profile(2, name=name), "grid": grid}).encode()
        received = read_question(body, False, _LIMITS, "what-if")
        assert received.num_steps == points
        queue.submit("a", received)

    with pytest.raises(ContentTooLarge, match="at most 10"):
        ask("one", 11)
    ask("one", 6)
    with pytest.raises(QueueFull, match="6 of your simulations"):
        ask("two", 5)
    ask("two", 4)


def test_what_is_stored_is_bounded(queue: TaskQueue) -> None:
    """Profiles, reports' rows and tasks count; what is there can be asked for again; deleting makes room."""
    profiles = [
        read_profile(json.dumps(layered_profile(number)).encode(), False, _LIMITS) for number in (2, 3)
    ]
    size_bytes = max(len(profile.document) for profile in profiles) + ROW_BYTES
    quota = StorageQuota(Tenants(TenantLimits(max_stored_bytes=size_bytes), {"b": TenantLimits()}))
    store = ResourceStore(queue.database, quota)
    store.put_profile("a", profiles[0])
    store.put_profile("a", profiles[0])
    with queue.database.read() as connection:
        assert stored_bytes(connection, "a") == len(profiles[0].document) + ROW_BYTES
        assert stored_bytes(connection, "b") == 0
    with pytest.raises(QuotaExceeded, match="delete something first"):
        store.put_profile("a", profiles[1])
    store.put_profile("b", profiles[1])
    limited = TaskQueue(
        queue.database, max_queued=9, tenants=TENANTS, lease_s=60, max_attempts=2, quota=quota
    )
    with pytest.raises(QuotaExceeded):
        _submit(limited, "a", 3)
    assert store.delete_profile("a", profiles[0].sha256)
    # A new look, as one more than half a second later takes.
    fresh = ResourceStore(queue.database, StorageQuota(Tenants(TenantLimits(max_stored_bytes=size_bytes))))
    fresh.put_profile("a", profiles[1])


def test_bodies_of_a_tenant_are_counted() -> None:
    """Beyond its number they are refused, however small."""
    room = BodyLimits(100, Tenants(TenantLimits(max_bodies=1)))
    with room.body("one"), pytest.raises(QueueFull, match="1 of your bodies"), room.body("one"):
        pass
    with room.body("one"), room.body("other"):
        pass


def test_the_file_of_tenants_is_read_and_checked(tmp_path: Path) -> None:
    """What is missing is as for all; what is wrong is named."""
    path = tmp_path / "tenants.json"
    path.write_text('{"vision": {"weight": 4, "max_running": 2}}')
    tenants = load_settings(tenants_file=str(path), max_cells_per_tenant=7).tenants
    assert tenants.limits("vision").max_running == 2
    assert tenants.weight("vision") == 4
    assert tenants.limits("vision").max_cells == tenants.limits("any").max_cells == 7
    for text, message in (
        ('{"vision": {"wieght": 4}}', "vision: wieght: "),
        ('{"vision": {"weight": 0}}', "vision: weight: expected a number above 0 and at most 1,000"),
        ('{"vision": {"weight": 4}, "vision": {}}', 'has "vision" twice in one object: keep one of them'),
        ("{", "is not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidOptions, match=message):
            load_settings(tenants_file=str(path))
    with pytest.raises(InvalidOptions, match="cannot be read"):
        load_settings(tenants_file=str(tmp_path / "none.json"))


def test_quotas_are_answered(tmp_path: Path) -> None:
    """403 for what cannot be stored; the other tenant, which the file lets, is not concerned."""
    path = tmp_path / "tenants.json"
    path.write_text('{"large": {"max_stored_bytes": 0}}')
    with ServiceProcess(
        tmp_path, auth="required", tenants_file=path, max_stored_per_tenant_bytes=100
    ) as service:
        for tenant, status in (("small", 403), ("large", 201)):
            headers = {"Authorization": f"Bearer {service.token(tenant, 'submit')}"}
            for url, body in (
                ("/v1/profiles", layered_profile(3)),
                ("/v1/schedules", {"profile": layered_profile(3)}),
            ):
                answer = service.http.post(url, json=body, headers=headers)
                assert answer.status_code == status, answer.text
                if status == 403:
                    assert answer.json()["type"] == "urn:pace:problem:quota-exceeded"
