"""Bodies while they arrive: in memory, or in a file that is gone afterwards."""

import asyncio
import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from socket import create_connection

import httpx
import psutil
import pytest

from pace.api.errors import SpoolFull
from pace.api.questions.kind import ReadLimits
from pace.api.questions.reading import read_profile
from pace.api.spool import IN_MEMORY_BYTES, BodySpool
from pace.api.workers.body_reader import BodyReader
from pace.api.workers.pool import WorkerPool
from pace.errors import InvalidProfile
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

_LIMITS = ReadLimits(max_bytes=2**30, max_ops=10**6, max_gradients=10**6, max_cells=100)


def _large_profile() -> bytes:
    body = json.dumps(layered_profile(20), indent=1).encode()
    return body + b" " * (IN_MEMORY_BYTES - len(body) + 1)


@pytest.mark.parametrize("excess", [0, 1])
def test_a_body_is_kept_as_it_came(tmp_path: Path, excess: int) -> None:
    """Up to a mebibyte in memory, beyond it in a file."""
    pieces = [bytes([number]) * (IN_MEMORY_BYTES // 16) for number in range(16)] + [b"x" * excess]
    with BodySpool(str(tmp_path)) as spool:
        for piece in pieces:
            spool.write(piece)
        body = spool.take()
    whole = b"".join(pieces)
    assert body.size_bytes == len(whole)
    assert body.sha256 == hashlib.sha256(whole).digest()
    assert len(list(tmp_path.iterdir())) == excess
    kept = body.content if isinstance(body.content, bytes) else body.content.read_bytes()
    assert kept == whole
    body.delete()
    body.delete()
    assert not list(tmp_path.iterdir())


def test_a_body_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    """Its file goes with it."""
    with BodySpool(str(tmp_path)) as spool:
        spool.write(b"x" * (IN_MEMORY_BYTES + 1))
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told() -> None:
    """As a problem of storage, not of the service."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    spool = BodySpool()
    with Path("/dev/full").open("wb", buffering=0) as full:
        spool._file = full
        with pytest.raises(SpoolFull):
            spool.write(b"x")


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """With the reason, and what to do."""
    folder = tmp_path / "spool"
    folder.mkdir()
    with ServiceProcess(tmp_path, spool_folder=str(folder)) as service:
        folder.rmdir()
        answer = service.http.post(
            "/v1/profiles", content=_large_profile(), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 507
        assert "cannot write this body to its disk (No such file or directory)" in answer.json()["detail"]
        assert service.http.get("/readyz").status_code == 200


def test_files_are_read_and_deleted(tmp_path: Path) -> None:
    """Equal bodies are read once; of all, refused ones too, no file stays."""
    pool = WorkerPool("the test", 1, 2**32)
    reader = BodyReader(pool, _LIMITS, max_waiting=10, timeout_s=60, memory_bytes=10**6)

    async def read(content: bytes) -> int:
        with BodySpool(str(tmp_path)) as spool:
            spool.write(content)
            body = spool.take()
        received = await reader.read(read_profile, body, False, "one")
        return received.num_gradients

    async def run() -> None:
        assert list(await asyncio.gather(read(_large_profile()), read(_large_profile()))) == [20, 20]
        assert await read(_large_profile()) == 20
        with pytest.raises(InvalidProfile):
            await read(_large_profile() + b"x")

    try:
        asyncio.run(run())
    finally:
        pool.close()
    assert not list(tmp_path.iterdir())


def test_large_bodies_take_no_memory(tmp_path: Path) -> None:
    """Four uploads of 30 MB under way: the process that answers grows by less than one of them."""
    folder = tmp_path / "spool"
    folder.mkdir()
    with ServiceProcess(tmp_path, spool_folder=folder, drain_s=0.1) as service, ExitStack() as stack:
        service.http.post(
            "/v1/profiles", content=_large_profile(), headers={"Content-Type": "application/json"}
        )
        assert not list(folder.iterdir())
        process = psutil.Process(service.pid)
        before = process.memory_info().rss
        address = httpx.URL(service.url)
        head = b"POST /v1/profiles HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        for _ in range(4):
            upload = stack.enter_context(create_connection((address.host, address.port or 0), timeout=120))
            upload.sendall(head + b"Content-Length: 40000000\r\n\r\n" + b" " * 30_000_000)
        while sum(file.stat().st_size for file in folder.iterdir()) < 119_000_000:
            pass
        assert process.memory_info().rss - before < 30_000_000
