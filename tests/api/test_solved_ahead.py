"""A small solve begins while its request is still being accepted: for nothing, if it is refused."""

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pace import optimize, parse_profile
from pace.api.errors import QuotaExceeded
from pace.api.metrics import Metrics
from pace.api.questions.all_kinds import KINDS, read_question
from pace.api.questions.kind import Question, ReadLimits
from pace.api.service import Service
from pace.api.settings import Settings
from pace.api.tasks.solve_size import MOST_GRADIENTS
from pace.api.tasks.state import Submitted, TaskStatus
from pace.api.tracing import Spans
from pace.api.workers.pool import WorkerPool
from tests.api.profiles import layered_profile

TENANT = "a"
_LIMITS = ReadLimits(max_bytes=10**7, max_ops=10**5, max_gradients=10**5, max_cells=10)


def _received(num_layers: int) -> Question:
    return read_question(
        json.dumps({"profile": layered_profile(num_layers)}).encode(), False, _LIMITS, "schedule"
    )


@asynccontextmanager
async def _service(folder: Path, **settings: Any) -> AsyncIterator[Service]:
    """Start a service without HTTP, ready to solve."""
    made = Settings(database_url=f"sqlite:///{folder / 'pace.db'}", solver_processes=2, **settings)
    service = Service(made, Metrics(), Spans())
    await service.start()
    service.pools.start()
    try:
        while service.pools.executors["schedule"].num_alive < 1:
            await asyncio.sleep(0.05)
        yield service
    finally:
        await service.stop()


class _Watched:
    """Says what is solved, and lets requests be accepted only once something is, if wanted."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch, *, wait: bool = False) -> None:
        self.num_solves = 0
        self._begun = threading.Event()
        pool = service.pools.executors["schedule"]
        run, submit = pool.run, service.tasks.submit

        def counted(*arguments: Any, **named: Any) -> Any:
            self.num_solves += 1
            self._begun.set()
            return run(*arguments, **named)

        def late(*arguments: Any, **named: Any) -> Submitted:
            assert not wait or self._begun.wait(60), "nothing was begun before the request was accepted"
            return submit(*arguments, **named)

        monkeypatch.setattr(pool, "run", counted)
        monkeypatch.setattr(service.tasks, "submit", late)


async def _ended(service: Service, submitted: Submitted) -> TaskStatus:
    assert submitted.task_id is not None
    while True:
        status = await asyncio.to_thread(service.tasks.status, TENANT, submitted.task_id)
        assert status is not None
        if not status.live:
            return status
        await asyncio.sleep(0.01)


async def _until_free(service: Service) -> None:
    """Wait until both places are free again."""
    while True:
        with (
            service.dispatcher.places.keep("schedule") as one,
            service.dispatcher.places.keep("schedule") as other,
        ):
            if one.free and other.free:
                return
        await asyncio.sleep(0.01)


def test_a_new_small_request_is_solved_while_it_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and what is stored is the library's schedule."""

    async def run() -> None:
        async with _service(tmp_path) as service:
            watched = _Watched(service, monkeypatch, wait=True)
            submitted = await service.submit(TENANT, _received(9))
            assert (await _ended(service, submitted)).state == "done"
            assert watched.num_solves == 1
            stored = await asyncio.to_thread(
                service.questions.get, TENANT, KINDS["schedule"], submitted.result_id
            )
            assert stored is not None
            expected = optimize(parse_profile(json.dumps(layered_profile(9))))
            assert json.loads(stored.document) == json.loads(expected.to_json())
            await _until_free(service)

    asyncio.run(asyncio.wait_for(run(), 120))


def test_work_for_a_refused_request_is_thrown_away_and_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free again, nobody's process was killed, and the next tenant is served."""

    async def run() -> None:
        async with _service(tmp_path, max_stored_per_tenant_bytes=100) as service:
            watched = _Watched(service, monkeypatch, wait=True)
            for number in range(5):
                with pytest.raises(QuotaExceeded):
                    await service.submit(TENANT, _received(3 + number))
                await _until_free(service)
            assert watched.num_solves == 5
            assert service.tasks.shares.used(TENANT) > 0
            pool = service.pools.executors["schedule"]
            assert isinstance(pool, WorkerPool)
            assert pool.num_restarts == 0

    asyncio.run(asyncio.wait_for(run(), 120))


def test_nothing_is_begun_ahead_that_may_be_known_large_or_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated body, a large profile, a profile that is only named, a solver at work."""

    async def run() -> None:
        async with _service(tmp_path) as service:
            first = _received(4)
            await _ended(service, await service.submit(TENANT, first))
            await _until_free(service)
            watched = _Watched(service, monkeypatch)
            known = await service.submit(TENANT, replace(first, is_repeated=True))
            assert (known.task_id, watched.num_solves) == (None, 0)
            dispatcher = service.dispatcher
            with dispatcher.places.keep("schedule") as place:
                for received in (_received(MOST_GRADIENTS + 1), replace(_received(5), input=None)):
                    dispatcher.places.work_ahead(place, TENANT, received)
                    assert place.ahead is None
                with dispatcher.places.keep("schedule") as second:
                    dispatcher.places.work_ahead(second, TENANT, _received(5))
                    assert second.ahead is None
            assert watched.num_solves == 0

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_task_that_was_begun_ahead_can_be_cancelled(tmp_path: Path) -> None:
    """The process that works on it is killed and replaced, as for any other."""

    async def run() -> None:
        async with _service(tmp_path) as service:
            pool = service.pools.executors["schedule"]
            assert isinstance(pool, WorkerPool)
            processes = [worker._process for worker in pool._workers]
            children = [process.pid for process in processes if process is not None and process.pid]
            for pid in children:
                os.kill(pid, signal.SIGSTOP)
            submitted = await service.submit(TENANT, _received(6))
            assert submitted.task_id is not None
            status = await service.cancel(TENANT, submitted.task_id)
            assert status is not None
            assert status.state == "cancelled"
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            await _until_free(service)
            while pool.num_alive < 1 or pool.num_restarts < 1:
                await asyncio.sleep(0.05)
            again = await service.submit(TENANT, _received(6))
            assert (await _ended(service, again)).state == "done"

    asyncio.run(asyncio.wait_for(run(), 120))
