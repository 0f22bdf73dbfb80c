"""Mixed load while things are killed: nothing that was accepted is lost, no answer is wrong."""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pace import optimize, parse_profile
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

CYCLES = 4
REFUSALS = {429, 503}


def _profile(number: int) -> dict[str, Any]:
    return layered_profile(5 + number % 40, duration_s=0.001 + number * 1e-6)


class _Load:
    """Clients that post, read, send nonsense and vanish; they note what was accepted."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self.accepted: dict[int, str] = {}
        self.faults: list[str] = []
        self.stop = threading.Event()
        self._numbers = itertools.count()

    def run(self, seed: int) -> None:
        """Be one client until told to stop."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            try:
                chance.choice([self._post, self._post, self._repeat, self._nonsense, self._vanish])(chance)
            except (httpx.TransportError, OSError):
                time.sleep(0.05)  # the service is being restarted

    def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        url = self.service.url + path
        return httpx.request(method, url, timeout=60, trust_env=False, **arguments)

    def _note(self, number: int, answer: httpx.Response) -> None:
        if answer.status_code in (201, 202):
            self.accepted[number] = answer.headers["location"]
        elif answer.status_code not in REFUSALS:
            self.faults.append(f"{answer.status_code} {answer.text}")

    def _post(self, chance: random.Random) -> None:
        number = next(self._numbers)
        headers = {"Prefer": chance.choice(["respond-async", "wait=5"])}
        self._note(
            number, self._ask("POST", "/v1/schedules", json={"profile": _profile(number)}, headers=headers)
        )

    def _repeat(self, chance: random.Random) -> None:
        if self.accepted:
            number = chance.choice(list(self.accepted))
            self._note(number, self._ask("POST", "/v1/schedules", json={"profile": _profile(number)}))

    def _nonsense(self, chance: random.Random) -> None:
        body = json.dumps({"profile": _profile(0)})[: chance.randrange(1000)]
        answer = self._ask("POST", "/v1/schedules", content=body)
        if answer.status_code not in REFUSALS | {422}:
            self.faults.append(f"nonsense was answered {answer.status_code}")

    def _vanish(self, chance: random.Random) -> None:
        body = json.dumps({"profile": _profile(chance.randrange(1000))}).encode()
        head = f"POST /v1/schedules HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        port = int(self.service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall((head + body)[: chance.randrange(len(head + body) + 1)])


@pytest.mark.slow
def test_nothing_accepted_is_lost_whatever_is_killed(tmp_path: Path, database_url: str) -> None:
    """Workers and the service are killed with -9 in turns; then all that was accepted is there and right."""
    with ServiceProcess(tmp_path, database_url, lease_s=1, max_attempts=20) as service:
        load = _Load(service)
        clients = [threading.Thread(target=load.run, args=(seed,)) for seed in range(3)]
        for client in clients:
            client.start()
        for _ in range(CYCLES):
            goal = len(load.accepted) + 15
            while len(load.accepted) < goal and not load.faults:
                time.sleep(0.05)
            for child in psutil.Process(service.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    if "spawn_main" in " ".join(child.cmdline()):
                        os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.5)
            service.kill()
            service.start()
        load.stop.set()
        for client in clients:
            client.join()
        assert load.faults == []
        assert len(load.accepted) >= 15 * CYCLES
        for number, location in load.accepted.items():
            path = location
            while path.startswith("/v1/tasks/"):
                task = service.http.get(path).raise_for_status().json()
                assert task["state"] != "failed", task
                path = task["location"] or path
            found = service.http.get(path).raise_for_status().json()["schedule"]
            expected = optimize(parse_profile(json.dumps(_profile(number))))
            assert found == json.loads(expected.to_json())
