"""What the service tells about itself: metrics, logs, ids, headers."""

import contextlib
import json
import os
import platform
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select

from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.records import TaskRecord
from pace.version import __version__
from tests.api.postgresql import ALONE_ON_SQLITE, ON_SQLITE
from tests.api.process import Caller, ServiceProcess, new_client, run_program, serving_on
from tests.api.profiles import layered_profile


def _samples(
    service: ServiceProcess | Caller, authorization: str = ""
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = service.http.get("/metrics", headers=[(b"authorization", authorization.encode())]).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(own_service: ServiceProcess) -> None:
    """Requests by route, not by path; solves by size; cache hits; the queue and the workers."""
    service = own_service
    created = service.post_schedule(layered_profile(12))
    for _ in range(3):
        service.http.get(created.headers["location"])
    service.post_schedule(layered_profile(2), options={"oracle": "lp"})
    service.http.get("/v1/nothing")
    samples = _samples(service)
    got = (("method", "GET"), ("route", "/v1/schedules/{question_id}"), ("status", "200"))
    assert samples["pace_request_seconds_count", got] == 3
    posted = (("method", "POST"), ("route", "/v1/schedules"), ("status", "201"))
    assert samples["pace_request_seconds_count", posted] == 1
    assert samples["pace_solve_seconds_count", (("gradients", "100"),)] == 1
    assert samples["pace_solve_failures_total", (("problem", "invalid-options"),)] == 1
    assert samples["pace_answer_cache_total", (("result", "hit"),)] == 3
    assert samples["pace_tasks_queued", ()] == samples["pace_kind_queued", (("kind", "schedule"),)] == 0
    assert samples["pace_queue_wait_seconds_count", (("kind", "schedule"),)] == 2
    assert samples["pace_turn_wait_seconds_count", (("work", "body"),)] == 2
    assert samples["pace_database_seconds_count", ()] > 2
    assert samples["pace_worker_restarts_total", (("pool", "schedule"),)] == 0
    assert samples["pace_workers_memory_bytes", (("pool", "schedule"),)] > 2**20
    assert samples["process_resident_memory_bytes", ()] > 2**20
    assert 0 < samples["process_open_fds", ()] < samples["process_max_fds", ()]
    build = (("python", platform.python_version()), ("version", __version__))
    assert samples["pace_build_info", build] == 1
    assert not [name for name, _ in samples if name.startswith("pace_tenant")]
    assert samples["pace_solvers_alive", ()] == 1
    assert samples["pace_event_loop_lag_max_seconds", ()] >= 0
    assert not [name for name, labels in samples if dict(labels).get("route") == "/v1/nothing"]


def test_tenants_have_metrics_if_wanted(tmp_path: Path) -> None:
    """So many by name, the rest together; only those with the token see them."""
    token = "a-token-of-many-characters"
    with ServiceProcess(tmp_path, auth="required", metrics_tenants=1, metrics_token=token) as service:
        for tenant in ("one", "two", "three"):
            headers = {"Authorization": f"Bearer {service.token(tenant, 'submit')}"}
            request = {"profile": layered_profile(3)}
            assert service.http.post("/v1/schedules", json=request, headers=headers).status_code == 201
        service.events("solved", 3)
        samples = _samples(service, f"Bearer {token}")
        for sent in (
            "",
            "Bearer",
            "Bearer another-token-of-many",
            f"Basic {token}",
            f"Bearer {token}x",
            "Bearer é",
        ):
            assert not [name for name, _ in _samples(service, sent) if name.startswith("pace_tenant")]
    for tenant, count in (("one", 1), ("other", 2)):
        assert samples["pace_tenant_requests_total", (("tenant", tenant),)] == count
        assert samples["pace_tenant_body_bytes_total", (("tenant", tenant),)] > 100
        worked = (("kind", "schedule"), ("tenant", tenant))
        assert samples["pace_tenant_work_seconds_total", worked] > 0


@ALONE_ON_SQLITE
def test_replaced_workers_are_counted(own_service: ServiceProcess) -> None:
    """Whoever ended them."""
    own_service.post_schedule(layered_profile(3)).raise_for_status()
    for worker in own_service.workers():
        worker.kill()
    own_service.events("worker-restarted", 2)
    samples = _samples(own_service)
    assert samples["pace_worker_restarts_total", (("pool", "schedule"),)] == 1
    assert samples["pace_worker_restarts_total", (("pool", "reader"),)] == 1


@ALONE_ON_SQLITE
def test_a_killed_fork_server_costs_no_request(own_service: ServiceProcess) -> None:
    """Also while it starts a process: the service starts another server and asks that."""
    profile = own_service.http.post("/v1/profiles", json=layered_profile(3)).json()
    (server,) = [child for child in psutil.Process(own_service.pid).children() if child.children()]
    server.suspend()
    asked = {"profile_id": profile["id"], "policies": ["ddp"]}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(own_service.http.post, "/v1/simulations", json=asked)
        time.sleep(1)  # the first simulation starts a process
        server.kill()
        assert answer.result().status_code == 200, answer.result().text
    assert own_service.post_schedule(layered_profile(4)).status_code == 201


@ON_SQLITE
def test_request_ids_join_the_caller_and_the_log(service: Caller) -> None:
    """The caller's id is kept if it is harmless, and is in the answer, the problem and the log."""
    name = f"rank-0.step-17.{service.tenant}"
    answer = service.http.get("/v1/schedules/0", headers={"X-Request-ID": name})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == name
    logged = service.process.events("request", 1, request_id=name)
    assert [(entry["event"], entry["status"]) for entry in logged] == [("request", 422)]
    forged = service.http.get("/healthz", headers={"X-Request-ID": '"}{"event": "forged'})
    assert re.fullmatch("[0-9a-f]{32}", forged.headers["x-request-id"])


def test_every_line_of_the_log_is_json(tmp_path: Path) -> None:
    """Those of the libraries as well, from start to end."""
    with ServiceProcess(tmp_path) as service:
        service.post_schedule(layered_profile(2))
    lines = service.log_path.read_text().splitlines()
    assert len(lines) > 5
    for line in lines:
        assert {"event", "level", "timestamp", "logger"} <= json.loads(line).keys()


def test_a_terminal_shows_lines_for_people(tmp_path: Path) -> None:
    """Whoever starts the service by hand reads no JSON, and no caller controls the terminal."""
    ours, theirs = os.openpty()
    with serving_on(os.ttyname(theirs), tmp_path) as process:
        said = b""
        while (url := re.search(rb"http://127\.0\.0\.1:\d+(?=\D)", said)) is None:
            said += os.read(ours, 4096)
        with new_client() as http:
            http.get(f"{url[0].decode()}/%1b]0;title%07")
        while b"0;title" not in said:
            said += os.read(ours, 4096)
        os.close(theirs)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while True:
                os.read(ours, 4096)
    os.close(ours)
    assert b"listening" in said
    assert b'{"' not in said
    assert b"\x1b]0;title" not in said


@ON_SQLITE
def test_invented_methods_share_one_label(service: Caller) -> None:
    """Nobody fills the metrics with names of their own."""
    for number in range(3):
        service.http.request(f"INVENTED{number}", "/healthz")
    methods = {dict(labels).get("method") for _, labels in _samples(service)}
    assert "other" in methods
    assert not [method for method in methods if method is not None and method.startswith("INVENTED")]


@ALONE_ON_SQLITE
def test_a_client_that_goes_away_is_no_error_of_the_service(own_service: ServiceProcess) -> None:
    """One that breaks off in the middle of its body is counted as that, without a traceback."""
    address = httpx.URL(own_service.url)
    head = "POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.host, address.port or 0), timeout=30) as client:
        client.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + b" " * 50_000)
    assert [entry["status"] for entry in own_service.events("request", 1)] == [499]
    assert not own_service.events("request-failed")
    gone = (("method", "POST"), ("route", "/v1/schedules"), ("status", "499"))
    assert _samples(own_service)["pace_request_seconds_count", gone] == 1


@ON_SQLITE
def test_an_answer_carries_nothing_of_the_one_before(service: Caller) -> None:
    """The page under /docs is the same every time, and so are its headers, but for the request's id."""
    first, second = (service.http.get("/docs", headers={"X-Request-ID": name}) for name in ("one", "two"))
    assert [*first.headers] == [*second.headers]
    assert len(first.headers.raw) == len(second.headers.raw)
    assert second.headers.get_list("x-request-id") == ["two"]


@ON_SQLITE
def test_answers_carry_safe_headers(service: Caller) -> None:
    """Nothing of the service may be framed, sniffed or scripted; nothing tells of its insides."""
    for path in ("/healthz", "/v1/schedules", "/v1/nothing", "/docs"):
        headers = service.http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers
    assert service.http.get("/v1/nothing").headers["cache-control"] == "no-store"


def test_lines_of_a_task_have_the_id_of_its_request(tmp_path: Path) -> None:
    """Also of those that had to wait for a solver."""
    with ServiceProcess(tmp_path) as service:
        for number in range(5):
            service.http.post(
                "/v1/schedules",
                json={"profile": layered_profile(100 + number), "options": {"fusion": "paper"}},
                headers={"X-Request-ID": f"request-{number}", "Prefer": "respond-async"},
            ).raise_for_status()
        solved = service.events("solved", 5)
    assert sorted(entry["request_id"] for entry in solved) == [f"request-{number}" for number in range(5)]


def test_the_id_of_its_request_outlives_a_restart(tmp_path: Path) -> None:
    """Who asked is stored with the task: another process that does it logs the same id."""
    with ServiceProcess(tmp_path, lease_s=1) as service:
        for number, layers in enumerate((1500, 100, 100)):
            service.http.post(
                "/v1/schedules",
                json={"profile": layered_profile(layers, name=f"{number}"), "options": {"fusion": "paper"}},
                headers={"X-Request-ID": f"request-{number}", "Prefer": "respond-async"},
            ).raise_for_status()
        service.kill()
        killed, start = datetime.now(UTC), service.log_path.stat().st_size
        service.start()
        # The first process may have died between the end of a task and its line.
        done_again = _begun_since(killed, str(service.settings["database_url"]))
        assert "request-0" in done_again
        for request_id in done_again:
            service.events("solved", 1, request_id=request_id)
        logged = {line["request_id"] for line in service.log(start) if line["event"] == "solved"}
    assert logged == done_again


def _begun_since(moment: datetime, database_url: str) -> set[str]:
    """Wait until every task is done; return whose last attempt began after a moment."""
    database = Database(Settings(database_url=database_url).parsed_database_url)
    while True:
        with database.read() as connection:
            tasks = connection.execute(
                select(TaskRecord.request_id, TaskRecord.state, TaskRecord.started_at)
            ).all()
        if {task.state for task in tasks} <= {"done", "failed"}:
            database.close()
            begun = {task.request_id for task in tasks if task.started_at and task.started_at > moment}
            return {request_id for request_id in begun if request_id is not None}
        time.sleep(0.05)


# In a process of its own: workers write where the first of the process did.
LET_A_WORKER_FAIL = """
import contextlib
from pace.api.errors import WorkerFailed
from pace.api.workers.pool import WorkerCall, WorkerPool

pool = WorkerPool("the test", 1, 2**32)
with contextlib.suppress(WorkerFailed):
    pool.call(WorkerCall(eval, ("int('nobody foresaw this')",), 60, None))
pool.close()
"""


def test_errors_of_workers_are_one_line_of_json(tmp_path: Path) -> None:
    """With their tracebacks inside."""
    code, said = run_program(LET_A_WORKER_FAIL, tmp_path)
    assert code == 0, said
    (line,) = (line for line in said.splitlines() if "nobody foresaw this" in line)
    entry = json.loads(line)
    assert entry["event"] == "worker-failed"
    assert "Traceback" in entry["exception"]
    assert "nobody foresaw this" in entry["exception"]
