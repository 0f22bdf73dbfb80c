"""Mixed load on a real service while things are killed, stopped and filled.

    .venv/bin/python -m benchmarks.soak --minutes 30 [--database sqlite|postgresql] [--json OUT.json]

Clients post profiles and what-ifs, read, repeat, cancel, send nonsense and vanish. Meanwhile worker
processes and the service are killed with -9, PostgreSQL is restarted, the disk under SQLite filled. At the
end: nothing that was accepted is lost, every answer is the library's own, and the service's memory has not
grown by more than 10 % in the second half, in which it is not killed. Exit status 1 otherwise.

Filling the disk mounts a small file system, which takes root; without, that fault is left out and said so.
``tests/api/test_soak.py`` runs a short form.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from pace import optimize, parse_profile
from pace.whatif import Grid, what_if
from tests.api.postgresql import PostgresqlServer, find_postgresql
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

REFUSALS = {429, 503, 507}
GRID: dict[str, Any] = {"bandwidth_gbps": [1.0, 10.0], "policies": ["ddp", "optimal"]}
LONG_GRID = {"bandwidth_gbps": [1 + step / 10 for step in range(4000)]}
MOST_GROWTH = 0.10
DISK_BYTES = 64 * 2**20
FAULT_S = 2.0


def profile_of(number: int) -> dict[str, Any]:
    """Return one of many small profiles."""
    return layered_profile(5 + number % 40, duration_s=0.001 + number * 1e-6)


class Load:
    """Clients; they note what was accepted, and what was answered that should not have been."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self.accepted: dict[tuple[str, int], str] = {}
        self.faults: list[str] = []
        self.statuses: Counter[int] = Counter()
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self._clients: list[threading.Thread] = []

    def start(self, num_clients: int) -> None:
        """Begin."""
        self._clients = [threading.Thread(target=self._run, args=(seed,)) for seed in range(num_clients)]
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """End, once everyone has the answer that they wait for."""
        self._stop.set()
        for client in self._clients:
            client.join()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        deeds = [*[self._post] * 4, self._what_if, self._repeat, self._cancel, self._nonsense, self._vanish]
        while not self._stop.is_set():
            try:
                chance.choice(deeds)(chance)
            except (httpx.TransportError, OSError):
                time.sleep(0.05)  # the service is being restarted

    def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        answer = httpx.request(method, self.service.url + path, timeout=60, trust_env=False, **arguments)
        self.statuses[answer.status_code] += 1
        return answer

    def _submit(self, kind: str, number: int, prefer: str) -> None:
        body: dict[str, Any] = {"profile": profile_of(number)}
        if kind == "what-if":
            body["grid"] = GRID
        path = {"schedule": "/v1/schedules", "what-if": "/v1/what-if"}[kind]
        answer = self._ask("POST", path, json=body, headers={"Prefer": prefer})
        if answer.status_code in (201, 202):
            self.accepted[kind, number] = answer.headers["location"]
        elif answer.status_code not in REFUSALS:
            self.faults.append(f"{kind}: {answer.status_code} {answer.text}")

    def _post(self, chance: random.Random) -> None:
        self._submit("schedule", next(self._numbers), chance.choice(["respond-async", "wait=5"]))

    def _what_if(self, chance: random.Random) -> None:
        self._submit("what-if", next(self._numbers), chance.choice(["respond-async", "wait=5"]))

    def _repeat(self, chance: random.Random) -> None:
        if self.accepted:
            kind, number = chance.choice(list(self.accepted))
            self._submit(kind, number, "wait=5")

    def _cancel(self, chance: random.Random) -> None:
        body = {"profile": profile_of(chance.randrange(1000)), "grid": LONG_GRID}
        answer = self._ask("POST", "/v1/what-if", json=body, headers={"Prefer": "respond-async"})
        while answer.status_code == 202 or answer.status_code in REFUSALS:
            path = answer.headers.get("location")
            if path is None:
                return
            # It must not stay: it would keep the only process for what-ifs busy for minutes.
            try:
                ended = self._ask("DELETE", path)
            except (httpx.TransportError, OSError):
                ended = httpx.Response(503)
            if ended.status_code not in REFUSALS:
                if ended.status_code != 200:
                    self.faults.append(f"cancelling was answered {ended.status_code} {ended.text}")
                return
            time.sleep(0.1)

    def _nonsense(self, chance: random.Random) -> None:
        body = json.dumps({"profile": profile_of(0)})[: chance.randrange(1000)]
        answer = self._ask(
            "POST", "/v1/schedules", content=body, headers={"Content-Type": "application/json"}
        )
        if answer.status_code not in REFUSALS | {422}:
            self.faults.append(f"nonsense was answered {answer.status_code}")

    def _vanish(self, chance: random.Random) -> None:
        body = json.dumps({"profile": profile_of(chance.randrange(1000))}).encode()
        head = (
            "POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        port = int(self.service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall((head + body)[: chance.randrange(len(head + body) + 1)])


def kill_workers(service: ServiceProcess) -> None:
    """Kill -9 every process that works for the service."""
    for child in psutil.Process(service.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if "spawn_main" in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)


def kill_service(service: ServiceProcess) -> None:
    """Kill -9 the service and start it again."""
    service.kill()
    service.start()


def restart(server: PostgresqlServer) -> None:
    """Stop PostgreSQL in the midst of all, and start it after a while."""
    server.stop()
    time.sleep(FAULT_S)
    server.start()


def fill_disk(folder: Path, load: Load) -> None:
    """Leave the database no room for a while; requests must be told so."""
    before = load.statuses[507]
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"\0" * 2**20):
            pass
    deadline = time.monotonic() + 30
    while load.statuses[507] == before:
        if time.monotonic() > deadline:
            load.faults.append("the disk was full and nobody was told")
            break
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            file.write(b"\0" * 2**16)
        time.sleep(0.05)
    time.sleep(FAULT_S)
    filler.unlink()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a small file system; None where that may not be done."""
    place = folder / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "pace-soak", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def check(load: Load) -> None:
    """Read everything that was accepted and compare it with what the library computes."""
    http = load.service.http
    for (kind, number), location in load.accepted.items():
        path = location
        while path.startswith("/v1/tasks/"):
            task = http.get(path).raise_for_status().json()
            if task["state"] in ("failed", "cancelled"):
                load.faults.append(f"lost: {task}")
                break
            path = task["location"] or path
        else:
            found = http.get(path).raise_for_status().json()
            profile = parse_profile(json.dumps(profile_of(number)))
            if kind == "schedule":
                right = found["schedule"] == json.loads(optimize(profile).to_json())
            else:
                grid = Grid(bandwidth_gbps=(1.0, 10.0), policies=("ddp", "optimal"))
                right = found["what_if"] == what_if(profile, grid).to_document()
            if not right:
                load.faults.append(f"wrong: {kind} {number}")


def growth(sizes: list[int]) -> float:
    """Return how much memory grew from after the warm-up, the first third, to the end."""
    third = len(sizes) // 3
    return statistics.median(sizes[2 * third :]) / statistics.median(sizes[third : 2 * third]) - 1


def soak(folder: Path, database: str, seconds: float, *, num_clients: int = 3) -> dict[str, Any]:
    """Run everything; ``faults`` of the result is empty if all went well."""
    with contextlib.ExitStack() as stack:
        disk = None
        if database == "postgresql":
            programs = find_postgresql()
            if programs is None:
                raise SystemExit("PostgreSQL is not installed (Debian: apt-get install postgresql)")
            server = stack.enter_context(PostgresqlServer(programs))
            url = server.create_database("soak")
        else:
            disk = stack.enter_context(small_disk(folder))
            url = f"sqlite:///{(disk or folder) / 'pace.db'}"
        # Small caches are full soon: what grows afterwards is a leak.
        settings: dict[str, Any] = {
            "lease_s": 1,
            "max_attempts": 1000,
            "answer_cache_bytes": 2**20,
            "drain_s": 2,
            "solve_timeout_s": 20,
        }
        service = stack.enter_context(ServiceProcess(folder, url, **settings))
        load = Load(service)
        gentle: list[Callable[[], None]] = [lambda: kill_workers(service)]
        if database == "postgresql":
            gentle.append(lambda: restart(server))
        elif disk is not None:
            gentle.append(lambda: fill_disk(disk, load))
        rough: list[Callable[[], None]] = [*gentle, lambda: kill_service(service)]
        load.start(num_clients)
        sizes: list[int] = []
        num_faults = 0
        try:
            for faults, until in ((rough, time.monotonic() + seconds / 2), (gentle, 0.0)):
                until = until or time.monotonic() + seconds / 2
                for inject in itertools.cycle(faults):
                    process = psutil.Process(service.pid)
                    pause_until = min(until, time.monotonic() + max(seconds / 20, 2.0))
                    while time.monotonic() < pause_until:
                        if faults is gentle:
                            sizes.append(process.memory_info().rss)
                        time.sleep(0.1)
                    if time.monotonic() >= until or load.faults:
                        break
                    inject()
                    num_faults += 1
        finally:
            load.stop()
        check(load)
        grown = growth(sizes) if len(sizes) >= 30 else 0.0
        if grown > MOST_GROWTH:
            load.faults.append(f"memory grew by {grown:.1%}")
        return {
            "database": database,
            "seconds": seconds,
            "disk_was_filled": disk is not None,
            "faults_injected": num_faults,
            "accepted": len(load.accepted),
            "statuses": dict(sorted(load.statuses.items())),
            "memory_bytes": sizes[-1] if sizes else 0,
            "memory_growth": grown,
            "faults": load.faults,
        }


def main() -> None:
    """Soak and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = soak(Path(name), given.database, 60 * given.minutes, num_clients=given.clients)
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    if result["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
