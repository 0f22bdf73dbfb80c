"""Shares of the event loop: who takes most of it waits, and only where others ask."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from pace.api.fairness.loop_shares import LoopShares, RequestMeter
from pace.api.fairness.tenants import TenantLimits, Tenants
from pace.api.http.app import create_app
from pace.api.settings import Settings
from pace.api.storage.threads import DatabaseThreads


class Loop:
    """Requests of known length, by a clock that only they and what waits move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tenants: Tenants | None = None) -> None:
        self.now_s = 100.0
        self.waits_s: list[float] = []
        self.computed_s = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(time, "thread_time", lambda: self.computed_s)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)
        self.shares = LoopShares(tenants or Tenants(), self.waits_s.append, lambda: self.now_s)

    async def request(self, tenant: str, seconds: float) -> None:
        """Handle a request that takes so long of the loop."""
        scope: dict[str, Any] = {}

        async def handle() -> None:
            await self.shares.turn(scope, tenant)
            self.now_s += seconds

        await self.shares.measure(scope, handle())

    async def query(self, tenant: str, threads: DatabaseThreads, function: Callable[[], None]) -> None:
        """Handle a request that takes nothing of the loop, and calls a function in a thread."""
        scope: dict[str, Any] = {}

        async def handle() -> None:
            await self.shares.turn(scope, tenant)
            await threads.run(function)

        await self.shares.measure(scope, handle())

    def compute(self, seconds: float) -> None:
        """Let a thread compute for so long."""
        self.now_s += seconds
        self.computed_s += seconds

    async def _sleep(self, seconds: float) -> None:
        # Time passes while nobody has the loop.
        event_loop = asyncio.get_running_loop()
        woken = event_loop.create_future()
        until_s = self.now_s + seconds

        def wake() -> None:
            self.now_s = max(self.now_s, until_s)
            woken.set_result(None)

        event_loop.call_soon(wake)
        await woken


def test_who_is_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the loop is."""
    loop = Loop(monkeypatch)

    async def run() -> None:
        for _ in range(200):
            await loop.request("one", 0.02)

    asyncio.run(run())
    assert loop.waits_s == []


def test_the_one_that_takes_most_waits_until_the_loop_is_half_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one sends all it can and the other a little, which never waits."""
    loop = Loop(monkeypatch)
    used = {"greedy": 0.0, "modest": 0.0}

    async def run() -> float:
        began_s = loop.now_s
        for turn in range(2000):
            await loop.request("greedy", 0.002)
            used["greedy"] += 0.002
            if turn % 10 == 0:
                num_waits = len(loop.waits_s)
                await loop.request("modest", 0.001)
                used["modest"] += 0.001
                assert len(loop.waits_s) == num_waits
        return loop.now_s - began_s

    seconds = asyncio.run(run())
    assert len(loop.waits_s) > 1000
    assert 0.45 < sum(used.values()) / seconds < 0.52


def test_half_of_the_loop_is_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits while the loop is less busy than that."""
    loop = Loop(monkeypatch)

    async def run() -> None:
        for _ in range(500):
            for tenant in ("one", "other"):
                await loop.request(tenant, 0.002)
                loop.now_s += 0.003

    asyncio.run(run())
    assert loop.waits_s == []


def test_weights_say_who_takes_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal use, the tenant of less weight waits; of equal weights the one that used more."""
    loop = Loop(monkeypatch, Tenants(named={"heavy": TenantLimits(weight=4.0)}))

    async def run() -> None:
        for _ in range(50):
            await loop.request("heavy", 0.004)
            await loop.request("light", 0.002)

    asyncio.run(run())
    assert loop.waits_s
    loop.waits_s.clear()

    async def heavy() -> None:
        await loop.request("heavy", 0.001)

    asyncio.run(heavy())
    assert loop.waits_s == []


def test_those_that_wait_begin_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request counts from its begin with what such requests usually take: a crowd is not let in at once."""
    loop = Loop(monkeypatch)
    starts_s: list[float] = []

    async def one(tenant: str) -> None:
        scope: dict[str, Any] = {}

        async def handle() -> None:
            await loop.shares.turn(scope, tenant)
            starts_s.append(loop.now_s)
            await asyncio.Event().wait() if tenant == "greedy" else None

        await loop.shares.measure(scope, handle())

    async def run() -> None:
        for _ in range(100):
            await loop.request("greedy", 0.01)
        await loop.request("modest", 0.001)
        crowd = [asyncio.create_task(one("greedy")) for _ in range(20)]
        for _ in range(100):
            await asyncio.get_running_loop().run_in_executor(None, int)
        for task in crowd:
            task.cancel()
        ended = await asyncio.gather(*crowd, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)

    asyncio.run(run())
    assert len(starts_s) == 20
    gaps = [later - earlier for earlier, later in pairwise(starts_s)]
    assert min(gaps) > 0.01


def test_what_goes_on_for_long_is_paid_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stream of events took long ago does not count when it ends."""
    loop = Loop(monkeypatch)

    async def stream() -> None:
        scope: dict[str, Any] = {}

        async def handle() -> None:
            await loop.shares.turn(scope, "patient")
            for _ in range(1000):
                loop.now_s += 0.01
                await loop._sleep(0.99)

        await loop.shares.measure(scope, handle())

    async def run() -> None:
        await stream()
        await loop.request("other", 0.001)
        await loop.request("patient", 0.001)

    asyncio.run(run())
    assert loop.waits_s == []


def test_what_database_threads_compute_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenant whose requests keep threads computing waits; one whose threads wait does not."""
    loop = Loop(monkeypatch)
    threads = DatabaseThreads(60)
    waited = {"greedy": 0, "modest": 0}

    async def run() -> None:
        for turn in range(400):
            tenant = "modest" if turn % 10 == 0 else "greedy"
            num_waits = len(loop.waits_s)
            await loop.query(tenant, threads, lambda: loop.compute(0.01))
            waited[tenant] += len(loop.waits_s) - num_waits

    asyncio.run(run())
    assert waited["modest"] == 0
    assert waited["greedy"] > 200

    def hang() -> None:
        loop.now_s += 0.01

    waits_before = len(loop.waits_s)
    loop.now_s += 100.0

    async def hanging() -> None:
        for turn in range(100):
            await loop.query("modest" if turn % 10 == 0 else "greedy", threads, hang)

    asyncio.run(hanging())
    assert len(loop.waits_s) == waits_before
    threads.close()


def test_what_a_thread_does_for_a_request_that_was_given_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged when the thread is done, to the tenant who asked."""
    loop = Loop(monkeypatch)
    threads = DatabaseThreads(60)
    asked, answered = threading.Event(), threading.Event()

    def slow() -> None:
        asked.set()
        answered.wait()
        loop.compute(0.5)

    async def run() -> None:
        request = asyncio.create_task(loop.query("greedy", threads, slow))
        await asyncio.get_running_loop().run_in_executor(None, asked.wait)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        answered.set()
        threads._threads.shutdown()
        await loop.request("modest", 0.001)
        assert not loop.waits_s
        await loop.request("greedy", 0.001)

    asyncio.run(run())
    assert len(loop.waits_s) == 1


def test_what_is_thrown_into_a_request_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation can be caught by what handles the request, and errors reach the caller."""
    loop = Loop(monkeypatch)
    seen: list[str] = []

    async def wait(handle: Callable[[], Awaitable[None]]) -> None:
        await loop.shares.measure({}, handle())

    async def patient() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")

    async def failing() -> None:
        raise ValueError("no")

    async def run() -> None:
        task = asyncio.create_task(wait(patient))
        await asyncio.get_running_loop().run_in_executor(None, int)
        task.cancel()
        await task
        with pytest.raises(ValueError, match="no"):
            await wait(failing)

    asyncio.run(run())
    assert seen == ["cancelled"]


def test_every_request_is_charged_to_its_tenant_or_else_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the short way and on the framework's; what is refused too, and nothing twice."""
    turns: list[str] = []
    counted: list[tuple[str, float]] = []
    take_turn, count = LoopShares.turn, LoopShares._count

    async def turn(self: LoopShares, scope: Any, tenant: str) -> None:
        turns.append(tenant)
        await take_turn(self, scope, tenant)

    def counting(self: LoopShares, tenant: str, seconds: float, paid_s: float) -> None:
        counted.append((tenant, seconds))
        count(self, tenant, seconds, paid_s)

    from_threads: list[str | None] = []
    add_from_thread = RequestMeter.add_from_thread

    def adding(self: RequestMeter, seconds: float) -> None:
        from_threads.append(self.tenant)
        add_from_thread(self, seconds)

    monkeypatch.setattr(RequestMeter, "add_from_thread", adding)
    monkeypatch.setattr(LoopShares, "turn", turn)
    monkeypatch.setattr(LoopShares, "_count", counting)
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'pace.db'}", auth="required", solver_processes=1)

    async def run() -> None:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            token = app.state.service.keys.create("one", "one's", ("read",))
            transport = httpx.ASGITransport(app, client=("192.0.2.7", 123))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                for key, path, status in (
                    (token, "/v1/jobs", 200),
                    (token, f"/v1/schedules/{'0' * 32}", 404),
                    (token[:-1], "/v1/jobs", 401),
                    ("none", f"/v1/schedules/{'0' * 32}", 401),
                    (token, "/healthz", 200),
                ):
                    answer = await http.get(path, headers={"Authorization": f"Bearer {key}"})
                    assert answer.status_code == status, answer.text

    asyncio.run(run())
    assert turns == ["one", "one", *["\0" + "192.0.2.7"] * 2]
    assert [tenant for tenant, _ in counted] == turns
    assert all(0 < seconds < 10 for _, seconds in counted)
    # The key is looked up before anyone knows the tenant; the list of jobs and the schedule are the tenant's.
    assert from_threads.count("one") >= 2
    assert set(from_threads) == {None, "one"}
