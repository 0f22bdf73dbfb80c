"""The client against a real service, and against services that are gone, slow or lying."""

import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from pace import (
    Grid,
    InvalidOptions,
    InvalidUse,
    Options,
    PaceError,
    RequestRefused,
    ServiceUnavailable,
    optimize,
    parse_profile,
    what_if,
)
from pace.client import Client
from pace.version import __version__
from tests.api.answering import answering, behind_a_path, send
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile

PROFILE = parse_profile(json.dumps(layered_profile(6)))
NOT_FOUND = json.dumps(
    {"type": "urn:pace:problem:not-found", "title": "Not found", "status": 404, "detail": "no schedule"}
).encode()


@ON_SQLITE
def test_a_proxy_may_serve_the_service_under_a_path_of_its_own(service: Caller) -> None:
    """Also where an answer names the task, and then the result, by a path."""
    asked: list[str] = []
    with behind_a_path(service, asked) as url, Client(url, service.token, timeout_s=250) as client:
        schedule = client.create_schedule(PROFILE, job="train")
        assert client.newest_schedule("train", PROFILE.fingerprint) == schedule
        grid = Grid(bandwidth_gbps=(1.0, 2.0))
        assert client.what_if(PROFILE, grid, progress=lambda _: None) == what_if(PROFILE, grid)
    assert any(path.startswith("/pace/v1/tasks/") for path in asked)


@ON_SQLITE
def test_the_client_speaks_with_the_service(service: Caller) -> None:
    """Created, then found by job and fingerprint, as the library itself would compute it."""
    with Client(service.url, service.token, timeout_s=250) as client:
        assert client.healthy()
        assert client.newest_schedule("train", PROFILE.fingerprint) is None
        schedule = client.create_schedule(PROFILE, Options(fusion="none"), job="train")
        assert schedule == optimize(PROFILE, Options(fusion="none"))
        assert client.newest_schedule("train", PROFILE.fingerprint) == schedule
        with pytest.raises(InvalidOptions, match="slot"):
            client.create_schedule(PROFILE, Options(oracle="lp"))
        programs = Options(oracle="lp", slot_s=0.001, fusion="paper", lp_solver="pulp")
        record = client.create_schedule(PROFILE, programs).solver
        num_programs = optimize(PROFILE, programs).solver.num_programs
        assert (record.lp_solver, record.num_programs) == ("pulp", num_programs)
        for refused, words in (
            (lambda: client.create_schedule(PROFILE, job=""), "job"),
            (lambda: client.newest_schedule("train", "zz"), "fingerprint"),
            (lambda: client.what_if(PROFILE, Grid(bandwidth_gbps=tuple(range(1, 20_000)))), "grid"),
        ):
            with pytest.raises(RequestRefused, match=words):
                refused()
        client.send_report(schedule, "train", 0.012, 50, plain_iteration_s=0.015)
        (report,) = service.http.get("/v1/reports", params={"job": "train"}).json()["items"]
        assert report["predicted_iteration_s"] == schedule.predicted.iteration_s
        assert (report["measured_iteration_s"], report["plain_iteration_s"]) == (0.012, 0.015)
    with (
        Client(f"{service.url}/elsewhere", service.token) as client,
        pytest.raises(ServiceUnavailable, match="404"),
    ):
        client.create_schedule(PROFILE)


def test_no_service_is_an_error_and_not_a_hang() -> None:
    """Nobody listens: the time-out ends it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Client(url, timeout_s=0.5) as client:
        assert not client.healthy()
        with pytest.raises(ServiceUnavailable, match="cannot be reached"):
            client.newest_schedule("train", PROFILE.fingerprint)


def test_mistakes_of_a_caller_are_no_errors_of_python() -> None:
    """Each is refused in one line, before anything is sent."""
    url = "http://127.0.0.1:1"
    for timeout_s in (None, "5", 0, -1, math.nan, math.inf, 1e308, True):
        with pytest.raises(InvalidOptions, match=r"timeout_s is .*: expected a positive number of seconds"):
            Client(url, timeout_s=timeout_s)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidOptions, match="api_key is of type bytes: expected text"):
        Client(url, b"secret")  # type: ignore[arg-type]  # what is refused
    with Client(url, timeout_s=1) as client, pytest.raises(InvalidOptions, match="an Options is needed"):
        client.create_schedule(PROFILE, {"fusion": "paper"})  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidUse, match="the client is closed"):
        client.create_schedule(PROFILE)


@ON_SQLITE
def test_the_client_waits_for_a_service_that_comes_late(service: Caller) -> None:
    """The start-up of a job and of the service may overlap: connection errors are tried again."""
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        relay = threading.Timer(0.5, _relay_once, [late, service.url])
        relay.start()
        url = f"http://127.0.0.1:{late.getsockname()[1]}"
        with Client(url, service.token, timeout_s=30) as client:
            assert client.newest_schedule("train", PROFILE.fingerprint) is None
        relay.join()


def _relay_once(late: socket.socket, url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    late.listen()
    with late.accept()[0] as near, socket.create_connection((host, int(port))) as far:
        answers = threading.Thread(target=_pump, args=[far, near])
        answers.start()
        _pump(near, far)  # until the client hangs up
        answers.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copies until the end: an answer may come in as many pieces as it likes."""
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def test_overload_is_tried_again() -> None:
    """After two answers of 503 the third counts."""
    left = [503, 429, 404]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, left.pop(0), NOT_FOUND)

    with answering(answer) as url, Client(url, timeout_s=30) as client:
        assert client.newest_schedule("train", PROFILE.fingerprint) is None
    assert left == []


@pytest.mark.parametrize(
    "body",
    [b"<html>no such page</html>", b"{}", NOT_FOUND.replace(b"not-found", b"http")],
    ids=["another server", "JSON", "a path before the service's own"],
)
def test_another_servers_404_does_not_mean_that_there_is_no_schedule(body: bytes) -> None:
    """A wrong address is an error, which names it."""
    with answering(lambda handler: send(handler, 404, body)) as url, Client(url, timeout_s=30) as client:
        with pytest.raises(ServiceUnavailable, match="not the address of a PACE service") as raised:
            client.newest_schedule("train", PROFILE.fingerprint)
        assert url in str(raised.value)


def test_a_service_that_says_when_is_not_asked_before() -> None:
    """An hour is more than the time-out: it is asked once. What is no time, or past, holds nothing up."""
    asked: list[str] = []
    told = ["3600"]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        if told[-1] == "3600" or len(asked) == 1:
            send(handler, 503, b"{}", Retry_After=told[-1])
        else:
            send(handler, 404, NOT_FOUND)

    with answering(answer) as url, Client(url, timeout_s=30) as client:
        with pytest.raises(ServiceUnavailable, match="503"):
            client.newest_schedule("train", PROFILE.fingerprint)
        assert len(asked) == 1
        for said in ("0", "soon", "-1", "Wed, 21 Oct 2015 07:28:00 GMT", f"{10**20} Jan 2026 10:00:00 GMT"):
            told.append(said)
            asked.clear()
            assert client.newest_schedule("train", PROFILE.fingerprint) is None
            assert len(asked) == 2


def test_a_report_that_gets_lost_is_sent_again(service: Caller) -> None:
    """With the same key, so that the service counts it once."""
    keys: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        key = handler.headers["Idempotency-Key"]
        report = {
            "job": "train",
            "fingerprint": PROFILE.fingerprint,
            "profile_sha256": PROFILE.sha256,
            "predicted_iteration_s": 0.1,
            "measured_iteration_s": 0.2,
            "num_iterations": 5,
        }
        headers = {"Authorization": f"Bearer {service.token}", "Idempotency-Key": key}
        stored = service.http.post("/v1/reports", json=report, headers=headers)
        keys.append(key)
        # The first answer is lost.
        send(handler, stored.status_code if len(keys) > 1 else 502, stored.content)

    with answering(answer) as url, Client(url, timeout_s=60) as client:
        client.send_report(optimize(PROFILE), "train", 0.2, 5)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert len(service.http.get("/v1/reports", params={"job": "train"}).json()["items"]) == 1


def _resource(**changes: object) -> bytes:
    schedule = json.loads(optimize(PROFILE).to_json())
    return json.dumps(
        {
            "id": "0" * 32,
            "job": "train",
            "fingerprint": PROFILE.fingerprint,
            "profile_sha256": PROFILE.sha256,
            "created_at": "2026-01-01T00:00:00+00:00",
            "schedule": schedule | changes,
        }
    ).encode()


def _as_newer(answer: object) -> object:
    """Add a field to every object of an answer."""
    if isinstance(answer, dict):
        return {name: _as_newer(value) for name, value in answer.items()} | {"newer": {"is": "unknown"}}
    return [_as_newer(each) for each in answer] if isinstance(answer, list) else answer


@ON_SQLITE
def test_answers_of_a_newer_service(service: Caller) -> None:
    """Unknown fields are ignored, wherever they are; what cannot be read names both releases."""
    schema_version = 1

    def answer(handler: BaseHTTPRequestHandler) -> None:
        found = service.http.get(handler.path)
        document: Any = _as_newer(found.json())
        if "schedule" in document:
            document["schedule"]["schema_version"] = schema_version
        if "version" in document:
            document["version"] = "9.0.0"
        send(handler, found.status_code, json.dumps(document).encode())

    with Client(service.url, service.token, timeout_s=250) as client:
        schedule = client.create_schedule(PROFILE, job="newer")
    with answering(answer) as url, Client(url, timeout_s=60) as client:
        assert client.newest_schedule("newer", PROFILE.fingerprint) == schedule
        schema_version = 2
        with pytest.raises(
            ServiceUnavailable, match=r"the service has PACE 9\.0\.0, this is .*install the same"
        ):
            client.newest_schedule("newer", PROFILE.fingerprint)


@pytest.mark.parametrize(
    ("status", "detail", "version", "told"),
    [
        (
            422,
            "a: Extra inputs are not permitted\nb: Field required",
            "0.0.9",
            "a: .*; b: .*PACE 0.0.9, this",
        ),
        (422, "a: Extra inputs are not permitted", __version__, "0.* of another commit: install the same"),
        (404, "Not Found", "0.0.9", "the service has PACE 0.0.9, this is .*install the same on both"),
    ],
    ids=["fields of an older release", "fields of an older commit", "a path of a newer release"],
)
def test_a_service_that_is_older_is_named_in_one_line(
    status: int, detail: str, version: str, told: str
) -> None:
    """With both releases, and what to do; also where the releases have the same name."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/healthz":
            send(handler, 200, json.dumps({"status": "ok", "version": version}).encode())
            return
        problem = {"type": "about:blank", "title": "Refused", "status": status, "detail": detail}
        send(handler, status, json.dumps(problem).encode())

    with answering(answer) as url, Client(url, timeout_s=60) as client, pytest.raises(PaceError) as raised:
        client.create_schedule(PROFILE)
    assert re.search(told, str(raised.value)), raised.value
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("body", "headers", "complaint"),
    [
        (b"<html>", {}, "sent a wrong answer"),
        (_resource()[:-200], {}, "sent a wrong answer"),
        (_resource(), {"Content_Digest": "sha-256=:AAAA:"}, "digest"),
        (_resource(fingerprint="0" * 64), {}, "fingerprint"),
        (_resource(transfers=[]), {}, "sent a wrong answer"),
    ],
    ids=["no JSON", "truncated", "wrong digest", "another model", "broken schedule"],
)
def test_lies_are_not_believed(body: bytes, headers: dict[str, str], complaint: str) -> None:
    """An answer that is not whole, or not to the question, is an error."""
    with (
        answering(lambda handler: send(handler, 200, body, **headers)) as url,
        Client(url, timeout_s=30) as client,
        pytest.raises(ServiceUnavailable, match=complaint),
    ):
        client.newest_schedule("train", PROFILE.fingerprint)


def test_the_answer_to_another_profile_is_not_believed() -> None:
    """Same tensors, other durations: the hash tells."""
    body = _resource(profile_sha256="0" * 64)
    with (
        answering(lambda handler: send(handler, 201, body)) as url,
        Client(url, timeout_s=30) as client,
        pytest.raises(ServiceUnavailable, match="another profile"),
    ):
        client.create_schedule(PROFILE)


def test_a_service_that_drips_does_not_hold_the_client() -> None:
    """Bytes that keep coming do not extend the time-out."""
    ended = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not ended.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    with answering(drip) as url, Client(url, timeout_s=0.5) as client:
        try:
            with pytest.raises(ServiceUnavailable, match="cannot be reached"):
                client.newest_schedule("train", PROFILE.fingerprint)
        finally:
            ended.set()


@pytest.mark.races_with_machine(reason="requests must reach the server within 0.5 s")
def test_headers_that_drip_do_not_hold_the_client() -> None:
    """Neither do headers that never end, for any question; the connection is cut, not left behind."""
    ended = threading.Event()
    cut: list[str] = []

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while not ended.wait(0.05):
                handler.wfile.write(b"x: y\r\n")
        except OSError:
            cut.append(handler.path)

    with answering(drip) as url, Client(url, timeout_s=0.5) as client:
        try:
            assert not client.healthy()
            with pytest.raises(ServiceUnavailable, match="cannot be reached"):
                client.newest_schedule("train", PROFILE.fingerprint)
            while len(cut) < 2:
                time.sleep(0.01)
        finally:
            ended.set()


def test_an_endless_answer_is_given_up() -> None:
    """Longer than any schedule: it is not kept in memory until the time-out."""

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(bytes(1 << 20))

    with (
        answering(flood) as url,
        Client(url, timeout_s=250) as client,
        pytest.raises(ServiceUnavailable, match="answered with more than 67108864 bytes"),
    ):
        client.newest_schedule("train", PROFILE.fingerprint)


def test_the_client_is_light() -> None:
    """A training process that fetches a schedule loads neither FastAPI nor SQLAlchemy."""
    code = "import sys, pace.client.http; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"fastapi", "starlette", "sqlalchemy", "torch", "uvicorn"} & set(loaded.split())


def _task(state: str) -> bytes:
    task = {"id": "0" * 32, "state": state, "created_at": "2026-01-01T00:00:00+00:00"}
    return json.dumps(task | ({"location": "/v1/schedules/1"} if state == "done" else {})).encode()


@pytest.mark.races_with_machine(reason="all but the wait that was asked for must take less than a second")
def test_a_slow_solve_is_followed() -> None:
    """The service is asked to wait less long than the client does, so that its task arrives in time."""
    states = ["running", "done"]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.command == "POST":
            time.sleep(int(handler.headers["Prefer"].removeprefix("wait=")))
            send(handler, 202, _task("queued"))
        elif handler.path.startswith("/v1/tasks/"):
            send(handler, 200, _task(states.pop(0)))
        else:
            send(handler, 200, _resource())

    with answering(answer) as url, Client(url, timeout_s=3) as client:
        assert client.create_schedule(PROFILE).fingerprint == PROFILE.fingerprint
    assert states == []


@pytest.mark.races_with_machine(reason="a first poll must be sent within a second")
def test_polling_a_task_does_not_extend_the_time_out() -> None:
    """Every poll is answered quickly enough; all of them together take longer than the call may."""
    polls = 0

    def answer(handler: BaseHTTPRequestHandler) -> None:
        nonlocal polls
        if handler.command == "POST":
            send(handler, 202, _task("queued"))
        elif handler.path.startswith("/v1/tasks/"):
            polls += 1
            time.sleep(0.3)
            with suppress(OSError):
                send(handler, 200, _task("running" if polls < 20 else "done"))
        else:
            send(handler, 200, _resource())

    with (
        answering(answer) as url,
        Client(url, timeout_s=1) as client,
        pytest.raises(ServiceUnavailable, match=r"is still running|cannot be reached"),
    ):
        client.create_schedule(PROFILE)
    assert 0 < polls < 20
