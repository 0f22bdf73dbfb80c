"""Hourly work of the service."""

import asyncio

import pytest

from pace.api import service


def test_upkeep_that_fails_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadlock costs a minute, not an hour."""
    monkeypatch.setattr(service, "_UPKEEP_AGAIN_S", 0.0)
    tries: list[int] = []

    def work() -> dict[str, int]:
        tries.append(len(tries))
        if len(tries) == 1:
            raise OSError("deadlock detected")
        return {}

    async def until_done() -> None:
        upkeep = asyncio.create_task(service._hourly("done", "failed", work))
        while len(tries) < 2:
            await asyncio.sleep(0.01)
        upkeep.cancel()

    asyncio.run(asyncio.wait_for(until_done(), 60))
    assert tries == [0, 1]
