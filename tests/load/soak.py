"""Mixed load on a real service while things are killed, stopped and filled.

    .venv/bin/python -m tests.load.soak --minutes 30 [--database sqlite|postgresql] [--json OUT.json]

Clients (``soak_clients.py``) post profiles and what-ifs, read, repeat, cancel, delete what others
share with them, send nonsense and vanish. On PostgreSQL the service has two processes, and every request
goes to either. Meanwhile, in random order, worker processes, the process that forks them and the service's
are killed with -9, a service is stopped, PostgreSQL is restarted, the network before it is cut or stalled,
the disk under SQLite is filled. At the end: nothing that was accepted is lost, every answer is the library's
own, every service is ready without anybody's help, and its memory has not grown by more than 10 % in the
last part, in which it is not killed. Exit status 1 otherwise.

Filling the disk mounts a small file system, which takes root; without, that fault is left out and said so.
``test_soak.py`` runs a short form.
"""

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.harness.conditions import write_json
from tests.api.forwarder import Forwarder
from tests.api.postgresql import PostgresqlServer, find_postgresql
from tests.api.process import ServiceProcess
from tests.load.soak_clients import Load

MOST_GROWTH = 0.10
DISK_BYTES = 64 * 2**20
FAULT_S = 2.0
SHORTEST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 30.0
READY_TIMEOUT_S = 120.0
SAMPLE_S = 0.1
SHORT_PAUSE_S = 0.15
# Of a service's memory: 15 s, of which the first five are its warm-up.
LEAST_SAMPLES = 150


def kill_workers(service: ServiceProcess) -> None:
    """Kill -9 every process that works for the service."""
    for worker in service.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


def kill_fork_server(service: ServiceProcess) -> None:
    """Kill -9 the process from which workers are forked, and then a worker, so that another is needed."""
    workers = service.workers()
    for child in psutil.Process(service.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.children():
                child.kill()
    for worker in workers[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


def kill_service(service: ServiceProcess) -> None:
    """Kill -9 the service and start it again."""
    service.kill()
    service.start()


def replace_service(service: ServiceProcess) -> None:
    """Stop the service as an orchestrator would, and start it again."""
    service.stop()
    service.start()


def lose_network(network: Forwarder, chance: random.Random) -> None:
    """Cut all connections to the database for a while, or let nothing through them."""
    with chance.choice([network.cut, network.stalled])():
        time.sleep(FAULT_S)


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


def growth(sizes: list[int]) -> float:
    """Return how much memory grew from after the warm-up, the first third, to the end."""
    third = len(sizes) // 3
    return statistics.median(sizes[2 * third :]) / statistics.median(sizes[third : 2 * third]) - 1


def sample(services: Sequence[ServiceProcess], sizes: Sequence[list[int]]) -> None:
    """Add what each service's memory is now, in bytes."""
    for held, service in zip(sizes, services, strict=True):
        held.append(psutil.Process(service.pid).memory_info().rss)


def await_ready(services: Sequence[ServiceProcess], load: Load) -> None:
    """Wait until every service says that it is ready, by itself and without a request that does work."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    for service in services:
        status = 0
        while status != 200 and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                status = service.http.get("/readyz").status_code
            time.sleep(0.1)
        if status != 200:
            load.faults.append(f"{service.url} was not ready {READY_TIMEOUT_S:g} s after the last fault")


def soak(
    folder: Path, database: str, seconds: float | None, *, num_clients: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Run everything; ``faults`` of the result is empty if all went well.

    Without `seconds`, every kind of fault comes once.
    """
    chance = random.Random(seed)
    pause_s = SHORTEST_PAUSE_S
    if seconds is not None:
        pause_s = min(max(seconds / 20, pause_s), LONGEST_PAUSE_S)
    with contextlib.ExitStack() as stack:
        disk = None
        if database == "postgresql":
            programs = find_postgresql()
            if programs is None:
                raise SystemExit("PostgreSQL is not installed (Debian: apt-get install postgresql)")
            server = stack.enter_context(PostgresqlServer(programs))
            network = stack.enter_context(Forwarder())
            network.port = server.port
            url = server.create_database().replace(f":{server.port}/", f":{network.own_port}/")
        else:
            disk = stack.enter_context(small_disk(folder))
            url = f"sqlite:///{(disk or folder) / 'pace.db'}"
        # Small caches are full soon: what grows afterwards is a leak.
        settings: dict[str, Any] = {
            "lease_s": 1,
            "max_attempts": 1000,
            "answer_cache_bytes": 2**20,
            "drain_s": 2,
            "solve_timeout_s": 250,
        }
        num_processes = 2 if database == "postgresql" else 1
        services = [
            stack.enter_context(ServiceProcess(folder, url, **settings)) for _ in range(num_processes)
        ]
        # The short form is one test of many that run at the same time.
        load = Load(services, pause_s=SHORT_PAUSE_S if seconds is None else 0.0)
        gentle: list[Callable[[], None]] = [
            lambda: kill_workers(chance.choice(services)),
            lambda: kill_fork_server(chance.choice(services)),
        ]
        if database == "postgresql":
            gentle += [lambda: restart(server), lambda: lose_network(network, chance)]
        elif disk is not None:
            gentle.append(lambda: fill_disk(disk, load))
        rough: list[Callable[[], None]] = [
            lambda: kill_service(chance.choice(services)),
            partial(replace_service, services[-1]),
        ]
        load.start(num_clients)
        sizes: list[list[int]] = [[] for _ in services]
        num_faults = 0
        try:
            for faults in (rough if seconds is None else gentle + rough, gentle):
                until = math.inf if seconds is None else time.monotonic() + seconds / 2
                for inject in _in_random_order(faults, chance, again=seconds is not None):
                    pause_until = min(until, time.monotonic() + pause_s)
                    while time.monotonic() < pause_until:
                        if faults is gentle:
                            sample(services, sizes)
                        time.sleep(SAMPLE_S)
                    if time.monotonic() >= until or load.faults:
                        break
                    # Killed again before it has done anything, the service would show nothing.
                    load.wait_for_work()
                    inject()
                    num_faults += 1
            while len(sizes[0]) < LEAST_SAMPLES and not load.faults:
                sample(services, sizes)
                time.sleep(SAMPLE_S)
        finally:
            load.stop()
        await_ready(services, load)
        load.check()
        # With fewer samples there is a fault already.
        grown = max(map(growth, sizes)) if len(sizes[0]) >= LEAST_SAMPLES else None
        if grown is not None and grown > MOST_GROWTH:
            load.faults.append(f"memory grew by {grown:.1%}")
        return {
            "database": database,
            "seconds": seconds,
            "seed": seed,
            "disk_was_filled": disk is not None,
            "faults_injected": num_faults,
            "kinds_of_faults": len(gentle + rough),
            "service_processes": len(services),
            "accepted": len(load.accepted),
            "deleted": load.num_deleted,
            "statuses": dict(sorted(load.statuses.items())),
            "memory_bytes": [held[-1] for held in sizes if held],
            "memory_samples": len(sizes[0]),
            "memory_growth": grown,
            "faults": load.faults,
        }


def _in_random_order(
    faults: Sequence[Callable[[], None]], chance: random.Random, *, again: bool
) -> Iterator[Callable[[], None]]:
    """Yield every fault once, in any order; if wanted, again and again."""
    yield from chance.sample(faults, len(faults))
    while again:
        yield from chance.sample(faults, len(faults))


def main() -> None:
    """Soak and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the faults and their order")
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = soak(
            Path(name), given.database, 60 * given.minutes, num_clients=given.clients, seed=given.seed
        )
    print(json.dumps(result, indent=2))
    write_json(given.json, result)
    if result["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
