"""Turns at worker processes: a tenant that sends much waits for itself, not others for it."""

import asyncio
import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pace.api.errors import LimitExceeded, QueueFull
from pace.api.fairness.body_limits import BodyLimits
from pace.api.fairness.fair_queue import FairQueue
from pace.api.fairness.tenants import TenantLimits, Tenants
from pace.api.questions.kind import Question, ReadLimits
from pace.api.questions.reading import read_profile
from pace.api.spool import ArrivedBody
from pace.api.workers.body_reader import BodyReader
from pace.api.workers.pool import WorkerPool
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile


class Turns:
    """Work that ends when the test says so."""

    def __init__(self, places: int, most_waiting: int = 100) -> None:
        self.turns = FairQueue("bodies", places, most_waiting)
        self.began: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def ask(self, *names: str) -> None:
        """Ask for a turn; a name is the tenant's and a number, in capitals for large work."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._work(name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        """End work."""
        for name in names:
            self._ends[name].set()
            await self.tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.turns.turn(name[0].lower(), large=name.isupper()):
            self.began.append(name)
            await self._ends[name].wait()


def test_tenants_take_turns() -> None:
    """Three of one tenant, then one of another, at one place: the other's is second."""

    async def run() -> None:
        turns = Turns(places=1)
        await turns.ask("a1", "a2", "a3", "b1")
        assert turns.began == ["a1"]
        await turns.end("a1", "b1", "a2", "a3")
        assert turns.began == ["a1", "b1", "a2", "a3"]

    asyncio.run(run())


def test_large_work_leaves_a_place_for_small_work() -> None:
    """Of two places, large work has one, whoever's it is."""

    async def run() -> None:
        turns = Turns(places=2)
        await turns.ask("A1", "A2", "B1")
        assert turns.began == ["A1"]
        await turns.ask("a3", "b2")
        assert turns.began == ["A1", "a3"]
        await turns.end("a3")
        assert turns.began == ["A1", "a3", "b2"]
        await turns.end("A1", "A2", "b2", "B1")
        assert turns.began == ["A1", "a3", "b2", "A2", "B1"]
        assert turns.turns.num_waiting == 0

    asyncio.run(run())


def test_who_gives_up_holds_no_place() -> None:
    """Neither one who waits nor one at work."""

    async def run() -> None:
        turns = Turns(places=1)
        await turns.ask("a1", "a2", "b1")
        turns.tasks["b1"].cancel()
        turns.tasks["a1"].cancel()
        await asyncio.gather(turns.tasks["a1"], turns.tasks["b1"], return_exceptions=True)
        await asyncio.sleep(0)
        assert turns.began == ["a1", "a2"]
        await turns.end("a2")
        await turns.ask("b2")
        assert turns.began == ["a1", "a2", "b2"]
        await turns.end("b2")

    asyncio.run(run())


def test_a_tenant_takes_at_most_half_of_the_room_to_wait() -> None:
    """Others still find room when it does not."""

    async def run() -> None:
        turns = Turns(places=1, most_waiting=4)
        await turns.ask("a1", "a2", "a3", "a4", "b1")
        with pytest.raises(QueueFull, match="2 of your bodies"):
            await turns.tasks["a4"]
        await turns.end("a1", "b1", "a2", "a3")

    asyncio.run(run())


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service with two readers."""
    folder: Path = tmp_path_factory.mktemp("fair")
    with ServiceProcess(folder, auth="required", reader_processes=2) as process:
        yield process


@pytest.mark.races_with_machine(reason="the large bodies must not all be read while a small one is sent")
def test_large_bodies_do_not_hold_up_small_ones(fair: ServiceProcess) -> None:
    """Four of one tenant under way: another's request is answered before them all."""
    bodies = [
        json.dumps(layered_profile(3300, name=f"large {number}"), indent=1).encode() for number in range(4)
    ]
    assert min(map(len, bodies)) > 2**20
    headers = {"Content-Type": "application/json"}
    with fair.tenant() as greedy, fair.tenant() as modest, ThreadPoolExecutor(4) as pool:
        sent = [
            pool.submit(greedy.http.post, "/v1/profiles", content=body, headers=headers) for body in bodies
        ]
        wait(sent, return_when=FIRST_COMPLETED)
        assert modest.http.post("/v1/profiles", json=layered_profile(3)).status_code == 201
        assert not all(each.done() for each in sent)
        assert {each.result().status_code for each in sent} == {201}


class CountingPool(WorkerPool):
    """Real processes, which count what they are asked."""

    num_calls = 0

    async def run(self, *arguments: Any, **named: Any) -> Any:
        """Count a call and do it."""
        self.num_calls += 1
        return await super().run(*arguments, **named)


def test_nobody_profits_from_what_another_tenant_sent() -> None:
    """Equal bodies are read once for each tenant, so that no time tells of the other."""
    pool = CountingPool("the test", 1, 2**32)
    limits = ReadLimits(max_bytes=10**6, max_ops=100, max_gradients=100, max_cells=100)
    reader = BodyReader(pool, limits, max_waiting=10, timeout_s=250, memory_bytes=10**6)
    body = json.dumps(layered_profile(4)).encode()

    async def run() -> None:
        for tenant, num_calls in (("one", 1), ("one", 1), ("other", 2), ("other", 2)):
            assert (await reader.read(read_profile, ArrivedBody.of(body), False, tenant)).num_gradients == 4
            assert pool.num_calls == num_calls

    try:
        asyncio.run(run())
    finally:
        pool.close()


def _read_question(body: bytes, *_: object) -> Any:
    return Question(kind="prediction", input_sha256="0" * 64, input=None, options=" " * 1000 + body.decode())


def test_what_is_remembered_counts_with_its_options() -> None:
    """A long question about a short document is not remembered where there is no room for it."""
    pool = CountingPool("the test", 1, 2**32)
    limits = ReadLimits(max_bytes=10**6, max_ops=100, max_gradients=100, max_cells=100)
    reader = BodyReader(pool, limits, max_waiting=10, timeout_s=250, memory_bytes=1500)

    async def run() -> None:
        for num_calls in (1, 2):
            await reader.read(_read_question, ArrivedBody.of(b"why"), False, "one")
            assert pool.num_calls == num_calls

    try:
        asyncio.run(run())
    finally:
        pool.close()


def _spin(*_: object) -> None:
    while True:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says how long a processor worked")
def test_a_body_may_take_so_much_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the clock: a process that gets no processor for a while is not stopped for it."""
    monkeypatch.setattr("pace.api.workers.body_reader._LEAST_WORK_S", 0.5)
    pool = WorkerPool("the test", 1, 2**32)
    limits = ReadLimits(max_bytes=10**6, max_ops=100, max_gradients=100, max_cells=100)
    reader = BodyReader(pool, limits, max_waiting=10, timeout_s=250, memory_bytes=10**6)
    try:
        with pytest.raises(LimitExceeded, match="of CPU time and was stopped"):
            asyncio.run(reader.read(_spin, ArrivedBody.of(b"why"), False, "one"))  # type: ignore[type-var]  # it never returns
    finally:
        pool.close()


def _niceness(*_: object) -> int:
    # Of the thread that calls it, on Linux.
    return os.getpriority(os.PRIO_PROCESS, 0)


def _read_niceness(*_: object) -> Any:
    return SimpleNamespace(document=b"", niceness=_niceness())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_long_work_gives_way_and_what_follows_does_not() -> None:
    """A process lowers its priority for one piece of work; large and compressed bodies are such."""
    pool = WorkerPool("the test", 1, 2**32)
    limits = ReadLimits(max_bytes=10**6, max_ops=100, max_gradients=100, max_cells=100)
    reader = BodyReader(pool, limits, max_waiting=10, timeout_s=250, memory_bytes=10**6)

    async def run() -> None:
        usual = await pool.run(_niceness, timeout_s=250)
        found = [await pool.run(_niceness, timeout_s=250, gives_way=turn % 2 == 0) for turn in range(4)]
        for body, gzipped in ((b"small", False), (b"small", True), (b" " * 2**21, False)):
            read = await reader.read(_read_niceness, ArrivedBody.of(body), gzipped, "one")
            found.append(read.niceness)
        with pytest.raises(LimitExceeded):
            await pool.run(_run_out_of_memory, timeout_s=250, gives_way=True)
        nice = min(19, usual + 10)
        assert found == [nice, usual, nice, usual, usual, nice, nice]

    try:
        asyncio.run(run())
    finally:
        pool.close()


def _run_out_of_memory() -> None:
    raise MemoryError


def test_bodies_under_way_are_bounded() -> None:
    """In total and for each tenant; one body goes in any case, and what has ended counts no more."""
    room = BodyLimits(100, Tenants(TenantLimits(max_bodies_bytes=50)))
    with room.body("one") as large:
        large.grow(60)
        large.grow(10)
        with room.body("one") as more, pytest.raises(QueueFull, match="your bodies"):
            more.grow(1)
        with room.body("other") as other:
            other.grow(20)
            with room.body("third") as third, pytest.raises(QueueFull, match="hold 90 bytes"):
                third.grow(11)
            other.grow(10)
    with room.body("one") as one, room.body("one") as two:
        one.grow(30)
        two.grow(20)
        with pytest.raises(QueueFull):
            one.grow(1)


def test_unfinished_bodies_of_one_tenant_leave_room_for_another(tmp_path: Path) -> None:
    """Twenty uploads that never end; the tenant's next is refused, the other's is taken."""
    with (
        ServiceProcess(tmp_path, auth="required", max_bodies_bytes=2**20, drain_s=0.1) as service,
        service.tenant() as greedy,
        service.tenant() as modest,
        ExitStack() as stack,
    ):
        address = httpx.URL(service.url)
        head = (
            "POST /v1/profiles HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {greedy.token}\r\nContent-Length: 1000000\r\n\r\n"
        ).encode()
        uploads = []
        for _ in range(20):
            upload = socket.create_connection((address.host, address.port or 0), timeout=30)
            uploads.append(stack.enter_context(upload))
            upload.sendall(head + b" " * 40_000)
        # Thirteen have room in the tenant's half; the rest are refused.
        while len(refused := select.select(uploads, [], [], 0.1)[0]) < 7:
            pass
        assert {upload.recv(12) for upload in refused} == {b"HTTP/1.1 429"}
        assert greedy.http.post("/v1/profiles", json=layered_profile(500)).status_code == 429
        assert modest.http.post("/v1/profiles", json=layered_profile(500)).status_code == 201


def _thread_niceness(service: ServiceProcess) -> list[int]:
    found = []
    for worker in service.workers():
        for thread in worker.threads():
            with contextlib.suppress(OSError):
                found.append(os.getpriority(os.PRIO_PROCESS, thread.id))
    return found


def test_large_solves_do_not_hold_up_small_ones(tmp_path: Path) -> None:
    """Of more long solves than solvers, all but one wait while another tenant's small one is answered.

    Long ones leave the cores to the rest of the service.
    """
    with (
        ServiceProcess(tmp_path, auth="required", solver_processes=2) as service,
        service.tenant() as greedy,
        service.tenant() as modest,
    ):
        long = {"fusion": "paper", "oracle": "lp", "slot_s": 1e-4}
        tasks = [
            greedy.http.post(
                "/v1/schedules",
                json={"profile": layered_profile(number), "options": long},
                headers={"Prefer": "respond-async"},
            ).json()
            for number in range(400, 403)
        ]
        assert modest.post_schedule(layered_profile(3)).status_code == 201
        paths = [f"/v1/tasks/{task['id']}" for task in tasks]
        states = [greedy.http.get(path).json()["state"] for path in paths]
        nice = min(19, os.getpriority(os.PRIO_PROCESS, service.pid) + 10)
        while not any(niceness >= nice for niceness in _thread_niceness(service)):
            time.sleep(0.01)
        for path in paths:
            greedy.http.delete(path)
    assert states == ["running", "queued", "queued"]
