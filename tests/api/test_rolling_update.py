"""Two real versions of the service on one database: an earlier commit's, and this one."""

import os
import subprocess
import sys
import tarfile
import time
import uuid
from pathlib import Path

import pytest

from tests.api.postgresql import PostgresqlServer
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

ROOT = Path(__file__).parents[2]
# The last with schema 0004. Move it on with every release that contracts the schema.
EARLIER = "cfb91fc"
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Take the earlier version out of the repository's history."""
    folder: Path = tmp_path_factory.mktemp("earlier")
    archive = folder / "earlier.tar"
    command = ["git", "-C", str(ROOT), "archive", "--output", str(archive), EARLIER]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"commit {EARLIER} is not here: an archive, or a clone without its history")
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="fully_trusted")  # our own; it has links
    return folder


def _get(service: ServiceProcess, path: str) -> bytes:
    answer = service.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.content


def _done(service: ServiceProcess, task: str) -> str:
    while True:
        found = service.http.get(task).raise_for_status().json()
        assert found["state"] in ("queued", "running", "done"), found
        if found["state"] == "done":
            location: str = found["location"]
            return location
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_request_fails_while_a_service_is_updated(
    tmp_path: Path, postgresql: PostgresqlServer, earlier: Path
) -> None:
    """The old one serves on after the new one migrated its database; each reads and does the other's work."""
    url = postgresql.create_database(uuid.uuid4().hex)
    old_code = ["env", f"--chdir={earlier}", sys.executable]
    # Its kernels would have to be compiled first.
    plain = {"PYTHONPATH": str(earlier), "NUMBA_DISABLE_JIT": "1", "PATH": os.environ["PATH"]}
    with ServiceProcess(tmp_path, url, command=old_code, environment=plain) as old:
        assert "/v1/keys" not in old.http.get("/openapi.json").json()["paths"]
        before = old.post_schedule(layered_profile(3))
        assert before.status_code == 201, before.text
        with ServiceProcess(tmp_path, url) as new:
            assert "/v1/keys" in new.http.get("/openapi.json").json()["paths"]
            after = new.post_schedule(layered_profile(4))
            assert after.status_code == 201, after.text
            both = [
                old.post_schedule(layered_profile(5)),
                new.post_schedule(layered_profile(5)),
            ]
            assert {answer.status_code for answer in both} == {201}
            assert both[0].content == both[1].content
            for answer in (before, after, *both):
                path = answer.headers["location"]
                assert _get(old, path) == _get(new, path) == answer.content
            accepted = [
                service.http.post("/v1/schedules", json={"profile": layered_profile(number)}, headers=ASYNC)
                for service, number in ((old, 6), (new, 7))
            ]
            assert {answer.status_code for answer in accepted} <= {201, 202}
            # The old one leaves; what it had accepted is done by whoever is there.
            old.stop()
            for answer in accepted:
                path = answer.headers["location"]
                _get(new, _done(new, path) if path.startswith("/v1/tasks/") else path)
            assert _get(new, before.headers["location"]) == before.content
