"""Clients of the soak: what they send, what they note, and what must be there at the end.

Most of what they ask for stays. Some is their own: schedules of jobs that only one client has, all made from
few profiles, so that many jobs share a document. Each client asks for its own, reads, and deletes it while
others do the same with the same documents; what a client has not deleted must be there for it.
"""

import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from pace import optimize, parse_profile
from pace.whatif import Grid, what_if
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

REFUSALS = {429, 503, 507}
GRID: dict[str, Any] = {"bandwidth_gbps": [1.0, 10.0], "policies": ["ddp", "pace"]}
LONG_GRID = {"bandwidth_gbps": [1 + step / 10 for step in range(4000)]}
NUM_SHARED = 3
MOST_WAIT_S = 30.0
ANSWERED_TIMEOUT_S = 600.0


def profile_of(number: int) -> dict[str, Any]:
    """Return one of many small profiles."""
    return layered_profile(5 + number % 40, duration_s=0.001 + number * 1e-6)


def shared_profile(number: int) -> dict[str, Any]:
    """Return one of the few profiles whose schedules come and go."""
    return layered_profile(6 + number, duration_s=0.002)


class Load:
    """Clients; they note what was accepted, and what was answered that should not have been.

    Parameters
    ----------
    services
        Processes of one service; each request goes to one of them.
    pause_s
        Seconds that a client waits after each of its requests.
    """

    def __init__(self, services: Sequence[ServiceProcess], *, pause_s: float = 0.0) -> None:
        self.services = services
        self._pause_s = pause_s
        self.num_deleted = 0
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

    def wait_for_work(self) -> None:
        """Wait until one more request was accepted, on a busy machine for long."""
        before, deadline = self.num_accepted, time.monotonic() + MOST_WAIT_S
        while self.num_accepted == before and not self.faults and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def num_accepted(self) -> int:
        """How many requests were answered 201 or 202."""
        return self.statuses[201] + self.statuses[202]

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        deeds = [*[self._post] * 4, self._what_if, self._repeat, self._cancel, self._nonsense, self._vanish]
        deeds += [lambda chance: self._own(chance, f"job-{seed}")] * 3
        while not self._stop.wait(self._pause_s):
            try:
                chance.choice(deeds)(chance)
            except (httpx.TransportError, OSError):
                time.sleep(0.05)  # the service is being restarted

    def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        url = random.choice(self.services).url + path
        answer = httpx.request(method, url, timeout=60, trust_env=False, verify=False, **arguments)
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
        # It must not stay: it would keep the only process for what-ifs busy for minutes. Where no answer
        # came, it may have been accepted; asked for again, it is the same task.
        body = {"profile": profile_of(chance.randrange(1000)), "grid": LONG_GRID}
        answer = self._insist(
            "POST", "/v1/what-if", {201, 202}, json=body, headers={"Prefer": "respond-async"}
        )
        if answer.status_code == 202:
            self._insist("DELETE", answer.headers["location"], {200})

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
        port = int(chance.choice(self.services).url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall((head + body)[: chance.randrange(len(head + body) + 1)])

    def _own(self, chance: random.Random, job: str) -> None:
        """Ask for a schedule of one's own, read it, delete it; sometimes also try to delete its profile."""
        profile = shared_profile(chance.randrange(NUM_SHARED))
        body: dict[str, Any] = {"profile": profile, "job": job}
        if chance.random() < 0.5:
            known = self._insist("POST", "/v1/profiles", {200, 201}, json=profile)
            body = {"profile_id": known.json()["id"], "job": job}
        asked = self._insist("POST", "/v1/schedules", {201, 202, 404, 409, 422, *REFUSALS}, json=body)
        if asked.status_code == 422 and "there is no profile" in asked.text and "profile_id" in body:
            return  # another client was faster to delete it
        if asked.status_code in REFUSALS:
            return
        if asked.status_code not in (201, 202):
            self.faults.append(f"{job}: {asked.status_code} {asked.text}")
            return
        path = asked.headers["location"]
        while path.startswith("/v1/tasks/"):
            task = self._insist("GET", path, {200}).json()
            if task["state"] in ("failed", "cancelled"):
                self.faults.append(f"{job}: {task}")
                return
            path = task["location"] or path
        read = self._insist("GET", path, {200, 404})
        if read.status_code != 200:
            self.faults.append(f"{job}: acknowledged and gone: {path}")
        if self._insist("DELETE", path, {204, 404}).status_code == 204:
            self.num_deleted += 1
        if chance.random() < 0.5:
            sha256 = read.json().get("profile_sha256", "0" * 64)
            self._insist("DELETE", f"/v1/profiles/{sha256}", {204, 404, 409})

    def _insist(self, method: str, path: str, expected: set[int], **arguments: Any) -> httpx.Response:
        """Ask until there is an answer that says something; one that is not expected is a fault."""
        while True:
            try:
                answer = self._ask(method, path, **arguments)
            except (httpx.TransportError, OSError):
                answer = httpx.Response(503)
            if answer.status_code not in REFUSALS:
                break
            time.sleep(0.05)
        if answer.status_code not in expected:
            self.faults.append(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    def check(self) -> None:
        """Read everything that was accepted and compare it with what the library computes."""
        deadline = time.monotonic() + ANSWERED_TIMEOUT_S
        for turn, ((kind, number), location) in enumerate(self.accepted.items()):
            http = self.services[turn % len(self.services)].http
            path = location
            while path.startswith("/v1/tasks/"):
                task = http.get(path).raise_for_status().json()
                if task["state"] in ("failed", "cancelled"):
                    self.faults.append(f"lost: {task}")
                    break
                if task["location"] is None and time.monotonic() > deadline:
                    self.faults.append(f"not answered {ANSWERED_TIMEOUT_S:g} s after the end: {task}")
                    return
                if task["location"] is None:
                    time.sleep(0.1)
                path = task["location"] or path
            else:
                found = http.get(path).raise_for_status().json()
                profile = parse_profile(json.dumps(profile_of(number)))
                if kind == "schedule":
                    right = found["schedule"] == json.loads(optimize(profile).to_json())
                else:
                    grid = Grid(bandwidth_gbps=(1.0, 10.0), policies=("ddp", "pace"))
                    right = found["what_if"] == what_if(profile, grid).to_document()
                if not right:
                    self.faults.append(f"wrong: {kind} {number}")
