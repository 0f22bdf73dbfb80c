"""The asynchronous server without a plan: it commits what arrives, and TCP shares its link."""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.studies.fabric.setting import ChangingLinks, Trained, sleep_until
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.simulation.draws import Computations

_PORT = 5301


def train_plainly(scenario: FabricScenario, server: Host, on: Sequence[Host]) -> Trained:
    """Train with one server and every worker apart, as many on a host as the scenario says."""
    links = ChangingLinks(scenario, on)
    links.shape(0.0)
    with (
        ranks("server", [server], _serve, scenario, server.address, undisturbed=False) as serving,
        ranks("worker", on, _work, scenario, server.address, undisturbed=False) as workers,
    ):
        with serving.awake():
            workers.ask("connect")
        began = time.monotonic() + 0.5
        links.start(began)
        try:
            workers.ask("begin", began)
            with workers.awake():
                commits = serving.ask("run", began, timeout_s=scenario.duration_s + 60)[0]
        finally:
            links.stop()
    delays = [delay for _, delay in commits]
    return Trained(commits=[(at, 1) for at, _ in commits], facts={"greatest_delay": max(delays, default=0)})


def _serve(_rank: int, scenario: FabricScenario, address: str) -> Answer:
    listener = socket.create_server((address, _PORT), backlog=256)
    model = np.zeros(scenario.update_bytes // 4, dtype=np.float32)
    commits: list[tuple[float, int]] = []
    connections: list[socket.socket] = []
    began_s = [0.0]
    lock = threading.Lock()

    def attend(connection: socket.socket) -> None:
        update = np.empty_like(model)
        has = 0
        while True:
            if not receive(connection, bytes_of(update)):
                return
            with lock:
                commits.append((time.monotonic() - began_s[0], len(commits) - has))
                np.add(model, update, out=model)
                has, reply = len(commits), model.tobytes()
            with contextlib.suppress(OSError):
                connection.sendall(reply)

    def accept() -> None:
        while True:
            connection = listener.accept()[0]
            connections.append(connection)
            threading.Thread(target=attend, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()

    def answer(_request: str, arguments: tuple[Any, ...]) -> Any:
        (began_s[0],) = arguments
        sleep_until(began_s[0] + scenario.duration_s)
        with lock:
            found = [commit for commit in commits if commit[0] <= scenario.duration_s]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return found

    return answer


def bytes_of(numbers: Vector) -> memoryview:
    """Return an array's memory."""
    return memoryview(numbers.view(np.uint8).data)


def receive(connection: socket.socket, into: memoryview) -> bool:
    """Fill a buffer; return whether the other end sent enough."""
    got = 0
    while got < len(into):
        try:
            more = connection.recv_into(into[got:])
        except OSError:
            return False
        if not more:
            return False
        got += more
    return True


def _work(rank: int, scenario: FabricScenario, address: str) -> Answer:
    share = scenario.workers_per_machine
    workers = range(rank * share, (rank + 1) * share)
    connections: dict[int, socket.socket] = {}

    def train(worker: int, began_s: float) -> None:
        compute, connection = Computations(scenario), connections[worker]
        update = np.full(scenario.update_bytes // 4, 1e-3, dtype=np.float32)
        model = np.empty_like(update)
        sleep_until(began_s)
        with contextlib.suppress(OSError):
            while True:
                time.sleep(compute.draw_s(worker))
                connection.sendall(bytes_of(update))
                if not receive(connection, bytes_of(model)):
                    return

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "connect":
            for worker in workers:
                connections[worker] = socket.create_connection((address, _PORT), timeout=30)
                connections[worker].settimeout(None)
            return
        for worker in workers:
            threading.Thread(target=train, args=(worker, *arguments), daemon=True).start()

    return answer
