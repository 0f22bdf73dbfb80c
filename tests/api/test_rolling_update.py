"""Two real versions of the service on one database: an earlier commit's, and this one."""

import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from pace.api.previous_release import current_schedule
from tests.api.postgresql import PostgresqlServer
from tests.api.process import ServiceProcess, new_client
from tests.api.profiles import layered_profile
from tests.api.test_predictions import STEPS

ROOT = Path(__file__).parents[2]
# The last with schema 0008. Move it on with every release that contracts the schema.
EARLIER = "2cfc8b3"
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


def _current(content: bytes) -> dict[str, Any]:
    """Return an answer with its schedule as this release writes it: the earlier one has another form."""
    resource: dict[str, Any] = json.loads(content)
    resource["created_at"] = datetime.fromisoformat(resource["created_at"])
    resource["schedule"] = json.loads(current_schedule(json.dumps(resource["schedule"]).encode()))
    return resource


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


class Balancer:
    """Clients that ask without end, of those processes that are in rotation; what fails is noted."""

    def __init__(self, *services: ServiceProcess) -> None:
        self.rotation = services
        self.faults: list[str] = []
        self.answered: Counter[tuple[str, str]] = Counter()
        self.stored: list[tuple[str, bytes]] = []
        self._stop = threading.Event()
        self._numbers = itertools.count(100)
        self._busy: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._clients = [threading.Thread(target=self._run, args=(number,)) for number in range(3)]

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join()

    def wait_for_answers(self, service: ServiceProcess, num: int = 3) -> None:
        """Wait until a process has answered so many more POSTs and GETs."""
        wanted = {
            (service.url, method): self.answered[service.url, method] + num for method in ("POST", "GET")
        }
        while any(self.answered[key] < count for key, count in wanted.items()) and not self.faults:
            time.sleep(0.02)

    def take_out(self, service: ServiceProcess) -> None:
        """Send a process nothing more, as a balancer that was told; wait for what it still answers."""
        with self._lock:
            self.rotation = tuple(other for other in self.rotation if other is not service)
        while self._busy[service.url]:
            time.sleep(0.02)

    def _run(self, seed: int) -> None:
        with new_client() as http:
            for turn in itertools.count(seed):
                if self._stop.is_set():
                    return
                with self._lock:
                    url = self.rotation[turn // 2 % len(self.rotation)].url
                    self._busy[url] += 1
                try:
                    self._ask(http, url, post=turn % 2 == 0 or not self.stored)
                except httpx.HTTPError as error:
                    self.faults.append(f"{url}: {error!r}")
                finally:
                    with self._lock:
                        self._busy[url] -= 1

    def _ask(self, http: httpx.Client, url: str, *, post: bool) -> None:
        if post:
            profile = layered_profile(3, duration_s=1e-6 * next(self._numbers))
            answer = http.post(url + "/v1/schedules", json={"profile": profile})
            right = answer.status_code == 201
            if right:
                self.stored.append((answer.headers["location"], answer.content))
        else:
            path, content = random.choice(self.stored)
            answer = http.get(url + path)
            right = answer.status_code == 200 and _current(answer.content) == _current(content)
        self.answered[url, "POST" if post else "GET"] += 1
        if not right:
            self.faults.append(f"{url}: {answer.status_code} {answer.text[:200]}")


def _is_earlier(service: ServiceProcess) -> bool:
    return "/v1/schedules/{schedule_id}" in service.http.get("/openapi.json").json()["paths"]


def _old_code(folder: Path) -> dict[str, Any]:
    # Its kernels would have to be compiled first.
    environment = {"PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": "1", "PATH": os.environ["PATH"]}
    return {"command": ["env", f"--chdir={folder}", sys.executable], "environment": environment}


QUESTIONS: dict[str, dict[str, Any]] = {
    "/v1/schedules": {"profile": layered_profile(3), "job": "train"},
    "/v1/what-if": {"profile": layered_profile(2), "grid": {"bandwidth_gbps": [1, 10], "policies": ["ddp"]}},
    "/v1/predictions": {"steps": STEPS, "options": {"workers": [1, 2], "steps": 20, "skip": 2, "seeds": 1}},
    "/v1/fabric-runs": {"scenario": {"machines": 2, "duration_s": 2}, "policies": ["ring"]},
}


def _content(answer: httpx.Response) -> dict[str, Any]:
    resource: dict[str, Any] = answer.raise_for_status().json()
    return {name: value for name, value in resource.items() if name != "created_at"}


def _ask_all(service: ServiceProcess) -> dict[str, httpx.Response]:
    return {path: service.http.post(path, json=asked) for path, asked in QUESTIONS.items()}


def _exchange(old: ServiceProcess, new: ServiceProcess, before: dict[str, httpx.Response]) -> None:
    """Have what either version was asked, first the old one, read, listed, asked and deleted at the other."""
    locations = {path: answer.headers["location"] for path, answer in before.items()}
    for path, asked in QUESTIONS.items():
        assert _content(new.http.get(locations[path])) == _content(before[path])
        assert _content(new.http.post(path, json=asked)) == _content(before[path])
    for writes, reads in ((new, old), (old, new)):
        for path, location in locations.items():
            assert [item["id"] for item in reads.http.get(path).json()["items"]] == [
                location.rpartition("/")[2]
            ]
            assert writes.http.delete(location).status_code == 204
        for path, location in locations.items():
            assert _gone(reads, location)
            again = writes.http.post(path, json=QUESTIONS[path])
            assert again.headers["location"] == location
            assert _content(reads.http.get(location)) == _content(again)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_either_version_knows_what_the_other_was_asked(tmp_path: Path, earlier: Path) -> None:
    """Of every kind, before and beside, on SQLite; the test below does the same on PostgreSQL."""
    url = f"sqlite:///{tmp_path / 'pace.db'}"
    with ServiceProcess(tmp_path, url, **_old_code(earlier)) as old:
        assert _is_earlier(old)
        before = _ask_all(old)
        with ServiceProcess(tmp_path, url) as new:
            assert not _is_earlier(new)
            _exchange(old, new, before)


def _gone(service: ServiceProcess, location: str) -> bool:
    # Answers may stay in memory for two seconds.
    while service.http.get(location).status_code != 404:
        time.sleep(0.1)
    return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_request_fails_while_a_service_is_updated(
    tmp_path: Path, postgresql: PostgresqlServer, earlier: Path
) -> None:
    """The old one serves on after the new one migrated its database; each reads and does the other's work.

    Of every kind, as above.
    """
    url = postgresql.create_database(bare=True)
    with ServiceProcess(tmp_path, url, **_old_code(earlier)) as old:
        assert _is_earlier(old)
        asked_before = _ask_all(old)
        with ServiceProcess(tmp_path, url) as new:
            assert not _is_earlier(new)
            _exchange(old, new, asked_before)
            ours = new.post_schedule(layered_profile(4))
            assert ours.status_code == 201, ours.text
            both = [
                old.post_schedule(layered_profile(5)),
                new.post_schedule(layered_profile(5)),
            ]
            assert {answer.status_code for answer in both} == {201}
            assert _current(both[0].content) == _current(both[1].content)
            for answer in (ours, *both):
                path = answer.headers["location"]
                expected = _current(answer.content)
                assert _current(_get(old, path)) == _current(_get(new, path)) == expected
            accepted = [
                service.http.post("/v1/schedules", json={"profile": layered_profile(number)}, headers=ASYNC)
                for service, number in ((old, 6), (new, 7))
            ]
            assert {answer.status_code for answer in accepted} <= {201, 202}
            with Balancer(old) as load:
                load.wait_for_answers(old)
                load.rotation = (old, new)
                load.wait_for_answers(old)
                load.wait_for_answers(new)
                load.take_out(old)
                # The old one leaves; what it had accepted is done by whoever is there.
                old.stop()
                load.wait_for_answers(new)
            assert load.faults == []
            for answer in accepted:
                path = answer.headers["location"]
                _get(new, _done(new, path) if path.startswith("/v1/tasks/") else path)
            path = both[0].headers["location"]
            assert _current(_get(new, path)) == _current(both[0].content)
