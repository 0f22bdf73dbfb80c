"""Attacks of one tenant on a service, and what another tenant notices.

    .venv/bin/python -m tests.load.attacks [--seconds S] [--json OUT]

The attacker sends from processes of its own with the lowest priority: headers that never end, bodies that
grow or stop, six large profiles at once, small requests without a pause (by wrk, which must be installed),
lists of 1,000 rows, invalid keys, unknown methods. The other tenant posts small new profiles one after
another and asks for /healthz. Medians with and without the attacker are compared in one run. Server and
clients share one machine. Exit status 1 if a median is more than 3 times as long.

All attacks take about 3 minutes on an idle machine.
"""

import argparse
import contextlib
import gzip
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.harness.conditions import write_json
from benchmarks.harness.serving import large_profile
from pace.api.settings import Settings
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

JSON = "application/json"
NUM_LISTED = 1000
MOST_RATIO = 3.0


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def slow_clients(url: str, token: str, stop: Event) -> None:
    """Keep 400 connections whose requests never end."""
    head = f"POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n".encode()
    connections: list[socket.socket] = []
    while not stop.is_set():
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection(_address(url), timeout=10))
            connections[-1].sendall(head)
        if len(connections) >= 400:
            for connection in connections[:50]:
                connection.close()
            del connections[:50]
            time.sleep(0.5)


def memory(url: str, token: str, stop: Event) -> None:
    """Post bodies of 240 MiB once decompressed, and 25 of 60 MiB that stop before their end."""
    profile = json.dumps({"profile": layered_profile(3)}).encode()
    bomb = gzip.compress(profile[:-1] + b" " * (240 * 2**20) + b"}", 9)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": JSON}

    def unfinished() -> None:
        size = 60 * 2**20
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        first = f"POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {size}\r\n\r\n"
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(_address(url), timeout=10) as body:
                body.sendall(first.encode())
                for _ in range(59):
                    body.sendall(b" " * 2**20)
                stop.wait(5)

    def bombs() -> None:
        with httpx.Client(
            headers={**headers, "Content-Encoding": "gzip"}, timeout=20, trust_env=False
        ) as http:
            while not stop.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    http.post(f"{url}/v1/schedules", content=bomb)

    _in_threads([unfinished] * 25 + [bombs] * 4)


def large_bodies(url: str, token: str, stop: Event) -> None:
    """Keep six bodies of 13.5 MB under way."""
    # Written once: what the attacker's own machine would do must not take this one's cores.
    text = json.dumps({"profile": large_profile() | {"name": "large"}}).encode()

    def post(number: int) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": JSON, "Prefer": "respond-async"}
        turn = 0
        with httpx.Client(headers=headers, timeout=120, trust_env=False) as http:
            while not stop.is_set():
                turn += 1
                body = text.replace(b'"large"', f'"large {number} {turn}"'.encode(), 1)
                with contextlib.suppress(httpx.HTTPError):
                    http.post(f"{url}/v1/schedules", content=body)

    _in_threads([partial(post, number) for number in range(6)])


def requests(url: str, token: str, stop: Event) -> None:
    """Ask on 64 connections for what costs next to nothing, as fast as answers come."""
    bearer = f"Bearer {token}"
    body = {"profile": layered_profile(4)}
    stored = httpx.post(
        f"{url}/v1/schedules", json=body, headers={"Authorization": bearer}, timeout=120, trust_env=False
    )
    path = stored.headers["location"]
    _flood(["-H", f"Authorization: {bearer}", url + path], stop)


def lists(url: str, token: str, stop: Event) -> None:
    """Read the longest lists of schedules and of jobs on 8 connections, as fast as answers come."""
    headers = {"Authorization": f"Bearer {token}"}

    def read(number: int) -> None:
        path = ("/v1/schedules", "/v1/jobs")[number % 2]
        with httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False) as http:
            while not stop.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    http.get(path, params={"limit": NUM_LISTED})

    _in_threads([partial(read, number) for number in range(8)])


def fill_lists(url: str, token: str) -> None:
    """Store what ``lists`` reads."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False) as http:
        for number in range(NUM_LISTED):
            body = {"profile": layered_profile(3), "job": f"job {number}"}
            http.post("/v1/schedules", json=body).raise_for_status()


def invalid_keys(url: str, token: str, stop: Event) -> None:
    """The same with a key that is none."""
    _flood(["-H", f"Authorization: Bearer {token[:-1]}_", f"{url}/v1/schedules"], stop)


def _flood(arguments: list[str], stop: Event) -> None:
    flood = subprocess.Popen(["wrk", "-t1", "-c64", "-d1h", *arguments], stdout=subprocess.DEVNULL)
    stop.wait()
    flood.terminate()
    flood.wait()


def methods(url: str, token: str, stop: Event) -> None:
    """Invent methods and paths as fast as possible."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        number = 0
        while not stop.is_set():
            number += 1
            with contextlib.suppress(httpx.HTTPError):
                http.request(f"M{number}", f"/v1/{number}")


def _in_threads(deeds: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=deed) for deed in deeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS: dict[str, Callable[[str, str, Event], None]] = {
    "slow clients": slow_clients,
    "memory": memory,
    "large bodies": large_bodies,
    "requests": requests,
    "lists": lists,
    "invalid keys": invalid_keys,
    "invented methods": methods,
}
BY_WRK = {"requests", "invalid keys"}


def attack(name: str, url: str, token: str, stop: Event) -> None:
    """Attack, in a process of its own; on a machine of its own it would not take the service's cores."""
    os.nice(19)
    ATTACKS[name](url, token, stop)


class Victim:
    """A tenant that posts small profiles, and something that watches the service's health."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=120, trust_env=False
        )
        self._watcher = httpx.Client(base_url=url, timeout=120, trust_env=False)
        self._number = 0

    def measure(self, seconds: float) -> dict[str, float]:
        """Return medians and the like over so many seconds, of 10 POSTs at least."""
        posts: list[float] = []
        health: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until or len(posts) < 10:
            self._number += 1
            body = {"profile": layered_profile(20, duration_s=0.001 + 1e-7 * self._number)}
            posts.append(_timed(partial(self._http.post, "/v1/schedules", json=body), 201))
            health.append(_timed(partial(self._watcher.get, "/healthz"), 200))
        return {
            "post_median_s": statistics.median(posts),
            "post_max_s": max(posts),
            "posts": len(posts),
            "healthz_median_s": statistics.median(health),
            "healthz_max_s": max(health),
        }


def _timed(ask: Callable[[], httpx.Response], status: int) -> float:
    before = time.perf_counter()
    answer = ask()
    seconds = time.perf_counter() - before
    if answer.status_code != status:
        raise SystemExit(f"{answer.status_code} {answer.text}")
    return seconds


def under_attack(service: ServiceProcess, seconds: float, names: Sequence[str]) -> dict[str, Any]:
    """Measure the victim alone and under each of these attacks."""
    attacker, victim = service.token("attacker", "read", "submit"), service.token("victim", "read", "submit")
    watched = Victim(service.url, victim)
    watched.measure(2.0)
    results: dict[str, Any] = {}
    spawn = multiprocessing.get_context("spawn")
    for name in names:
        if name == "lists":
            fill_lists(service.url, attacker)
        alone = watched.measure(seconds)
        stop = spawn.Event()
        process = spawn.Process(target=attack, args=(name, service.url, attacker, stop))
        process.start()
        time.sleep(5.0)
        attacked = watched.measure(seconds)
        stop.set()
        process.join(130)
        process.kill()
        ratio = attacked["post_median_s"] / alone["post_median_s"]
        results[name] = {"alone": alone, "attacked": attacked, "post_ratio": ratio}
    return results


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement")
    parser.add_argument("--attack", action="append", choices=list(ATTACKS), help="only this; repeatable")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    given = parser.parse_args()
    names = given.attack or list(ATTACKS)
    if shutil.which("wrk") is None and not BY_WRK.isdisjoint(names):
        parser.error("wrk is not installed: choose other attacks with --attack")
    with tempfile.TemporaryDirectory() as name:
        usual = Settings()
        limits: dict[str, Any] = {
            "auth": "required",
            "header_timeout_s": 5,
            "reader_processes": usual.reader_processes,
            "solver_processes": usual.solver_processes,
        }
        with ServiceProcess(Path(name), **limits) as service:
            results = under_attack(service, given.seconds, names)
    print(json.dumps(results, indent=2))
    write_json(given.json, {"attacks": results})
    if any(result["post_ratio"] > MOST_RATIO for result in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
