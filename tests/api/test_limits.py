"""Limits: runaway solves, full queues, fairness, rates, bombs."""

import contextlib
import gzip
import json
import multiprocessing
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import structlog
from sqlalchemy import select, update

from pace.api.errors import LimitExceeded
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.records import TaskRecord
from pace.api.workers.pool import LOOK_EVERY_S, WorkerCall, WorkerPool
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile

ASYNC = {"Prefer": "respond-async"}


def _worker_pids(service: ServiceProcess) -> set[int]:
    return {worker.pid for worker in service.workers()}


@pytest.mark.races_with_machine(reason="the small solve after it must end within 0.3 s")
def test_a_solve_beyond_its_time_is_stopped_and_reported(tmp_path: Path) -> None:
    """The runaway is ended, the caller is told why, and the next solve finds a new process."""
    with ServiceProcess(tmp_path, solve_timeout_s=0.3) as service:
        runaway = service.post_schedule(layered_profile(5000), options={"fusion": "paper"})
        assert runaway.status_code == 422
        assert runaway.json()["type"] == "urn:pace:problem:limit-exceeded"
        assert "0.3 s" in runaway.json()["detail"]
        assert service.post_schedule(layered_profile(3)).status_code == 201


def test_a_solve_beyond_its_memory_is_stopped_and_reported(tmp_path: Path) -> None:
    """A process that may take next to nothing more refuses a large profile and lives for a small one."""
    with ServiceProcess(tmp_path, solve_memory_bytes=2**26) as service:
        runaway = service.post_schedule(layered_profile(20_000))
        assert runaway.status_code in (422, 500)
        assert runaway.json()["type"].rpartition(":")[2] in ("limit-exceeded", "worker-died")
        assert service.post_schedule(layered_profile(3)).status_code == 201


def _stay_beyond(num_bytes: int) -> None:
    # As compiled code does that waits for a lock after it got no memory.
    held = bytearray(num_bytes)
    time.sleep(1000)
    del held


def test_a_process_beyond_its_memory_is_ended_even_if_it_does_nothing_more() -> None:
    """Long before its time is over; the next call gets a new process."""
    pool = WorkerPool("the test", 1, 2**26)
    try:
        with pytest.raises(LimitExceeded, match="more memory than one request may use"):
            pool.call(WorkerCall(_stay_beyond, (2**26 + 2**25,), 1000.0, None))
        assert pool.call(WorkerCall(len, ("abc",), 60.0, None)) == 3
    finally:
        pool.close()


def _double(num_bytes: int) -> None:
    # As compiled code does that parses JSON: it aborts where it gets no memory.
    held = [np.empty(num_bytes, np.uint8)]
    try:
        held.append(np.empty(2 * num_bytes, np.uint8))
    except MemoryError:
        os.abort()
    time.sleep(1000)


def test_compiled_code_that_doubles_its_memory_is_ended_before_it_aborts() -> None:
    """A death would be no fault of the caller, and the call would be tried again."""
    pool = WorkerPool("the test", 1, 2**26)
    try:
        with pytest.raises(LimitExceeded, match="more memory than one request may use"):
            pool.call(WorkerCall(_double, (2**26 - 2**22,), 1000.0, None))
    finally:
        pool.close()


def _kill_all(pids: set[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service whose processes tests kill, one after the other."""
    with ServiceProcess(tmp_path_factory.mktemp("victim")) as process:
        yield process


def test_killed_workers_are_replaced(victim: ServiceProcess) -> None:
    """Kill -9 of every worker process: requests are answered all the same."""
    assert victim.post_schedule(layered_profile(3)).status_code == 201
    before = _worker_pids(victim)
    assert before  # two, or one where the test before this one killed the other
    _kill_all(before)
    assert victim.post_schedule(layered_profile(4)).status_code == 201
    assert not before & _worker_pids(victim)


def test_workers_that_die_while_idle_are_replaced(victim: ServiceProcess) -> None:
    """No request is needed for that, and the log tells of it."""
    assert victim.post_schedule(layered_profile(5)).status_code == 201
    told = len(victim.events("worker-restarted"))
    before = _worker_pids(victim)
    _kill_all(before)
    assert len(victim.events("worker-restarted", told + len(before))) == told + len(before)
    assert "SIGKILL" in victim.events("worker-restarted")[-1]["reason"]
    assert victim.http.get("/readyz").json()["workers"] == "ok"
    assert len(_worker_pids(victim)) == len(before)
    assert not before & _worker_pids(victim)


def _wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_a_pool_is_there_once_a_process_is_ready(tmp_path: Path) -> None:
    """Processes that still load and compile do not count; nobody needs to ask for anything."""
    pool = WorkerPool("the test", 1, 2**32, prepare=partial(_wait_for_file, tmp_path / "go"))
    pool.start()
    try:
        assert pool.num_alive == 0
        (tmp_path / "go").touch()
        while pool.num_alive == 0:
            time.sleep(0.01)
        assert pool.num_alive == 1
    finally:
        pool.close()


def test_the_log_tells_of_a_task_that_waits_for_code(tmp_path: Path) -> None:
    """Who waits for the first compilation sees why."""
    pool = WorkerPool("the test", 1, 2**32, prepare=partial(_wait_for_file, tmp_path / "go"))
    with structlog.testing.capture_logs() as logs, ThreadPoolExecutor(1) as thread:
        try:
            answer = thread.submit(pool.call, WorkerCall(abs, (-1,), 60.0, None))
            while not logs:
                time.sleep(0.01)
            (tmp_path / "go").touch()
            assert answer.result() == 1
            assert [(told["event"], told["purpose"]) for told in logs] == [("worker-pending", "the test")]
        finally:
            pool.close()


def test_a_worker_has_loaded_what_it_needs_and_no_more() -> None:
    """Not the program that started the service, and no library that few requests need: memory is shared."""
    pool = WorkerPool("the test", 1, 2**32)
    try:
        loaded = set(pool.call(WorkerCall(eval, ("list(__import__('sys').modules)",), 60.0, None)))
    finally:
        pool.close()
    assert {"numba", "pace.kinds", "structlog"} <= loaded
    assert loaded.isdisjoint({"pytest", "pace.cli", "scipy.optimize", "pulp"})


def test_only_the_first_process_is_started_before_it_is_needed() -> None:
    """A fresh service is small; calls at the same time each get a process, which then stays."""
    pool = WorkerPool("the test", 3, 2**32)
    pool.start()
    try:
        while pool.num_alive == 0:
            time.sleep(0.01)
        time.sleep(2 * LOOK_EVERY_S)
        assert pool.num_alive == 1
        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(pool.call, WorkerCall(time.sleep, (1.0,), 60.0, None)) for _ in range(2)]
            for call in calls:
                call.result()
        assert pool.num_alive == 2
        assert pool.num_restarts == 0
    finally:
        pool.close()


def test_every_death_is_told_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools that replace their workers at the same time do not take exit statuses from each other."""
    read = forkserver.read_signed

    def read_slowly(descriptor: int) -> int:
        time.sleep(0.05)
        return int(read(descriptor))

    monkeypatch.setattr(forkserver, "read_signed", read_slowly)
    pools = [WorkerPool(f"test {number}", 1, 2**32) for number in range(4)]
    with structlog.testing.capture_logs() as logs, ExitStack() as stack:
        for pool in pools:
            stack.callback(pool.close)
            pool.start()
        for _ in range(3):
            logs.clear()
            while sum(pool.num_alive for pool in pools) < 4:
                time.sleep(0.01)
            workers = [child for child in multiprocessing.active_children() if "pace-test" in child.name]
            _kill_all({worker.pid for worker in workers if worker.pid is not None})
            while len(logs) < 4:
                time.sleep(0.01)
            assert all("SIGKILL" in entry["reason"] for entry in logs)


def _kill_workers_at_work(service: ServiceProcess, answer: Future[httpx.Response]) -> None:
    while service.http.get("/metrics").text.find("pace_tasks_running 1.0") < 0:
        assert not answer.done()
    _kill_all(_worker_pids(service))


@pytest.mark.races_with_machine(reason="the worker must be killed while it solves")
def test_a_solve_whose_worker_was_killed_is_done_by_another(victim: ServiceProcess) -> None:
    """The caller notices nothing but the time it took."""
    assert victim.post_schedule(layered_profile(3)).status_code == 201
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(victim.post_schedule, layered_profile(3000), options={"fusion": "paper"})
        _kill_workers_at_work(victim, answer)
        assert answer.result().status_code == 201
    assert victim.events("worker-died", 1)


@pytest.mark.races_with_machine(reason="the worker must be killed while it solves")
def test_a_solve_that_keeps_killing_its_worker_is_reported(tmp_path: Path) -> None:
    """After so many attempts the caller hears how it ended; other solves work."""
    with ServiceProcess(tmp_path, max_attempts=1) as service, ThreadPoolExecutor(1) as pool:
        assert service.post_schedule(layered_profile(3)).status_code == 201
        answer = pool.submit(service.post_schedule, layered_profile(3000), options={"fusion": "paper"})
        _kill_workers_at_work(service, answer)
        assert answer.result().status_code == 500
        assert answer.result().json()["type"] == "urn:pace:problem:worker-died"
        assert "SIGKILL" in answer.result().json()["detail"]
        assert service.post_schedule(layered_profile(4)).status_code == 201


def test_workers_do_not_outlive_their_service(victim: ServiceProcess) -> None:
    """After kill -9 of the service no process of its is left."""
    assert victim.post_schedule(layered_profile(3)).status_code == 201
    assert victim.workers()
    family = psutil.Process(victim.pid).children(recursive=True)
    victim.kill()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []
    victim.start()


def _long_question(caller: Caller) -> dict[str, Any]:
    """Return what keeps a process busy for minutes unless it is cancelled; another one every time."""
    profile = layered_profile(200, name=uuid.uuid4().hex)
    profile_id = caller.http.post("/v1/profiles", json=profile).raise_for_status().json()["id"]
    return {"profile_id": profile_id, "grid": {"bandwidth_gbps": [1 + step / 10 for step in range(4000)]}}


def _ask(caller: Caller) -> httpx.Response:
    return caller.http.post("/v1/what-if", json=_long_question(caller), headers=ASYNC)


def _state(caller: Caller, answer: httpx.Response) -> str:
    return str(caller.http.get(answer.headers["location"]).raise_for_status().json()["state"])


def _wait_until_running(caller: Caller, answer: httpx.Response) -> None:
    while _state(caller, answer) != "running":
        time.sleep(0.05)


def test_a_full_queue_says_when_to_come_back(tmp_path: Path, database_url: str) -> None:
    """Beyond its bound the queue takes nothing more until there is room; of solves neither."""
    with (
        ServiceProcess(tmp_path, database_url, max_queued=2, drain_s=0.1) as service,
        service.caller() as caller,
    ):
        running = _ask(caller)
        _wait_until_running(caller, running)
        queued = [_ask(caller) for _ in range(2)]
        assert [answer.status_code for answer in queued] == [202, 202]
        for refused in (_ask(caller), caller.post_schedule(layered_profile(3))):
            assert refused.status_code == 429
            assert refused.json()["type"] == "urn:pace:problem:queue-full"
            assert int(refused.headers["retry-after"]) > 0
        caller.http.delete(queued[0].headers["location"]).raise_for_status()
        assert caller.post_schedule(layered_profile(3)).status_code == 201


@pytest.mark.races_with_machine(reason="a task must be seen while it runs")
def test_tenants_take_turns(tmp_path: Path, database_url: str) -> None:
    """One tenant's long queue does not keep another's single request waiting behind all of it."""
    with (
        ServiceProcess(tmp_path, database_url, auth="required", drain_s=0.1) as service,
        service.tenant() as greedy,
        service.tenant() as modest,
    ):
        first, *others = (_ask(greedy) for _ in range(4))
        _wait_until_running(greedy, first)
        single = _ask(modest)
        assert _state(modest, single) == "queued"
        greedy.http.delete(first.headers["location"]).raise_for_status()
        _wait_until_running(modest, single)
        assert [_state(greedy, answer) for answer in others] == ["queued"] * 3


def test_too_many_requests_are_slowed_down(tmp_path: Path) -> None:
    """A tenant beyond its rate is told when to come back; health stays open."""
    with ServiceProcess(tmp_path, rate_limit="3/hour") as service:
        answers = [service.http.get("/v1/profiles") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
        assert {answer.headers["ratelimit-limit"] for answer in answers} == {"3"}
        assert all(0 < int(answer.headers["ratelimit-reset"]) <= 3600 for answer in answers)
        assert int(service.http.get("/v1/profiles").headers["retry-after"]) > 0
        assert "ratelimit-limit" not in service.http.get("/healthz").raise_for_status().headers


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service that takes little."""
    folder = tmp_path_factory.mktemp("narrow")
    with ServiceProcess(folder, max_decoded_bytes=2**20, max_ops=11, max_gradients=4) as process:
        yield process


def test_a_gzip_bomb_is_refused(narrow: ServiceProcess) -> None:
    """A small body that would become large is refused at the limit, unread beyond it."""
    bomb = gzip.compress(b" " * 2**26)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = narrow.http.post("/v1/schedules", content=bomb, headers=headers)
    assert len(bomb) < 2**18
    assert answer.status_code == 413
    assert str(2**20) in answer.json()["detail"]


@pytest.mark.parametrize(("num_layers", "said"), [(5, "at most 4"), (6, "at most 11")])
def test_profiles_beyond_the_limits_are_refused(narrow: ServiceProcess, num_layers: int, said: str) -> None:
    """The refusal says how many there are and how many may be: of gradients with 10 ops, of ops with 12."""
    profile = layered_profile(num_layers)
    for path, body in (("/v1/schedules", {"profile": profile}), ("/v1/profiles", profile)):
        answer = narrow.http.post(path, json=body)
        assert answer.status_code == 413
        assert said in answer.json()["detail"]


@pytest.mark.races_with_machine(reason="the service must be stopped while it solves")
def test_a_stopping_service_lets_solves_end(tmp_path: Path) -> None:
    """SIGTERM during a solve: the caller still gets the schedule, the process ends with status 0."""
    with ServiceProcess(tmp_path) as service, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(service.post_schedule, layered_profile(1500), options={"fusion": "paper"})
        while service.http.get("/metrics").text.find("pace_tasks_running 1.0") < 0:
            assert not answer.done()
        service.terminate()
        assert answer.result().status_code == 201
        assert service.wait() == 0


def test_a_service_stopped_in_a_hurry_keeps_its_tasks(tmp_path: Path, database_url: str) -> None:
    """What could not end within the drain is queued again, and done after the restart."""
    with ServiceProcess(tmp_path, database_url, drain_s=0.1) as service:
        request = {"profile": layered_profile(1500), "options": {"fusion": "paper"}}
        accepted = service.http.post("/v1/schedules", json=request, headers=ASYNC)
        assert accepted.status_code == 202
        service.stop()
        service.start()
        path = accepted.headers["location"]
        while (task := service.http.get(path).json())["state"] in ("queued", "running"):
            time.sleep(0.05)
        assert task["state"] == "done", json.dumps(task)


def _start(path: Path, task_id: str) -> object:
    database = Database(Settings(database_url=f"sqlite:///{path}").parsed_database_url)
    with database.read() as connection:
        row = connection.execute(
            select(TaskRecord.state, TaskRecord.started_at).where(TaskRecord.id == task_id)
        ).one()
    database.close()
    return tuple(row)


def _wait_until_stopping(address: httpx.URL) -> None:
    """Wait until nobody is let in any more: the service claims nothing from just before that on."""
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            socket.create_connection((address.host, address.port or 0), timeout=30).close()
            time.sleep(0.02)


@pytest.mark.races_with_machine(reason="the caller must be told before the two seconds of the drain are over")
def test_a_stopping_service_lets_go_of_those_who_wait(tmp_path: Path) -> None:
    """Who waits for a task learns where it is, nothing new is begun, and an unfinished request is told."""
    with (
        ServiceProcess(tmp_path, drain_s=2, lease_s=0.3) as service,
        service.caller() as caller,
        ThreadPoolExecutor(1) as pool,
    ):
        running = _ask(caller)
        _wait_until_running(caller, running)
        waiting = pool.submit(caller.http.post, "/v1/what-if", json=_long_question(caller))
        while "pace_tasks_queued 1.0" not in service.http.get("/metrics").text:
            time.sleep(0.05)
        address = httpx.URL(service.url)
        with socket.create_connection((address.host, address.port or 0), timeout=30) as unfinished:
            head = "POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            unfinished.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            service.terminate()
            _wait_until_stopping(address)
            # The place becomes free, and is not given to the task that waits.
            database = Database(
                Settings(database_url=f"sqlite:///{tmp_path / 'pace.db'}").parsed_database_url
            )
            with database.write() as connection:
                ended = update(TaskRecord).where(TaskRecord.state == "running").values(state="cancelled")
                connection.execute(ended)
            database.close()
            answer = waiting.result()
            said = b"".join(iter(lambda: unfinished.recv(100_000), b""))
        assert answer.status_code == 202, answer.text
        assert said.startswith(b"HTTP/1.1 503")
        assert b"urn:pace:problem:stopping" in said
        assert service.wait() == 0
    assert _start(tmp_path / "pace.db", answer.json()["id"]) == ("queued", None)


def test_a_report_that_is_repeated_with_its_key_is_never_refused(tmp_path: Path) -> None:
    """Neither the rate limit nor a full quota stands between a client and the answer that it missed."""
    report = {
        "job": "train",
        "fingerprint": "0" * 64,
        "profile_sha256": "1" * 64,
        "predicted_iteration_s": 0.1,
        "measured_iteration_s": 0.11,
        "num_iterations": 50,
    }
    with ServiceProcess(tmp_path, rate_limit="3/hour", max_stored_per_tenant_bytes=1100) as service:

        def post(key: str) -> httpx.Response:
            return service.http.post("/v1/reports", json=report, headers={"Idempotency-Key": key})

        first = post("first")
        assert first.status_code == 201
        assert post("second").json()["type"] == "urn:pace:problem:quota-exceeded"
        for _ in range(5):
            again = post("first")
            assert (again.status_code, again.content) == (201, first.content)
        limited = [
            post("third"),
            service.http.post("/v1/reports", json=report),
            service.http.get("/v1/reports"),
        ]
        assert {answer.status_code for answer in limited} == {429}
        elsewhere = service.http.post(
            "/v1/schedules", json={"profile": layered_profile(3)}, headers={"Idempotency-Key": "first"}
        )
        assert elsewhere.status_code == 429


def test_few_bytes_take_little_of_a_readers_time(tmp_path: Path) -> None:
    """Kilobytes of gzip that hold minutes of work are given up after seconds of work."""
    head, tail = json.dumps(layered_profile(3) | {"ops": [0]}).split("[0]")
    body = gzip.compress((head + "[" + ",".join(["{}"] * 6_000_000) + "]" + tail).encode(), 1)
    with ServiceProcess(tmp_path) as service:
        answer = service.http.post(
            "/v1/profiles",
            content=body,
            headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
        )
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:pace:problem:limit-exceeded")
        # Whichever comes first on this machine.
        assert re.search("more than 11 s of CPU time|more memory than", answer.json()["detail"])
        assert service.http.post("/v1/profiles", json=layered_profile(3)).status_code == 201
