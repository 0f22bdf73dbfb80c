"""Tasks that wait for storage: they cost their tenants nothing, and others keep what they have."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from pace.api.metrics import Metrics
from pace.api.questions.all_kinds import read_question
from pace.api.questions.kind import ReadLimits
from pace.api.service import Service
from pace.api.settings import Settings
from pace.api.tracing import Spans
from tests.api.databases import new_sqlite
from tests.api.profiles import layered_profile

_TENANT = "a"
_LIMITS = ReadLimits(max_bytes=10**7, max_ops=10**5, max_gradients=10**5, max_cells=10)


@asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[Service]:
    """Start a service without HTTP."""
    service = Service(Settings(database_url=new_sqlite(folder)), Metrics(), Spans())
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


def test_a_tenant_pays_for_work_and_not_for_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next task would otherwise be the last for minutes after object storage was away."""

    async def ask() -> None:
        async with _service(tmp_path) as service:
            charges: list[float] = []
            waits = asyncio.Event()
            finish, shares = service.tasks.finish, service.tasks.shares
            loop = asyncio.get_running_loop()

            def not_at_first(*arguments: Any) -> Any:
                if not waits.is_set():
                    loop.call_soon_threadsafe(waits.set)
                    raise OperationalError("", {}, Exception("the database is away"))
                return finish(*arguments)

            monkeypatch.setattr(service.tasks, "finish", not_at_first)
            monkeypatch.setattr(shares, "charge", lambda _, seconds: charges.append(seconds))
            body = json.dumps({"profile": layered_profile(3)}).encode()
            submitted = await service.submit(_TENANT, read_question(body, False, _LIMITS, "schedule"))
            await waits.wait()
            assert len(charges) == 1
            assert submitted.task_id is not None
            status = await service.dispatcher.watches.wait(_TENANT, submitted.task_id, 60)
            assert status is not None
            assert status.state == "done"
            assert len(charges) == 1

    asyncio.run(ask())


def test_leases_are_renewed_while_all_tasks_wait_for_storage_that_hangs(tmp_path: Path) -> None:
    """Other services would otherwise take over what waits here, and give it up in the end."""

    async def wait() -> None:
        async with _service(tmp_path) as service:
            answers = threading.Event()
            most = service.dispatcher.places.most_running
            waiting = [asyncio.create_task(asyncio.to_thread(answers.wait)) for _ in range(most)]
            try:
                await asyncio.sleep(0)
                async with asyncio.timeout(60):
                    assert await asyncio.to_thread(service.tasks.renew, []) == []
            finally:
                answers.set()
                await asyncio.gather(*waiting)

    asyncio.run(wait())
