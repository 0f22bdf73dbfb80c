"""Clients that ask and do not read: they hold little memory, and lose their connections."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

MIB = 2**20
# Of 4 bytes each, and names have up to 1,000 characters: few gradients make a large schedule.
LONG = "\N{MATHEMATICAL BOLD NABLA}" * 990
NUM_GRADIENTS = 2000
NUM_READERS = 40


def large_profile(name: str = "large") -> dict[str, Any]:
    """Return a profile whose schedule has 8 MiB."""
    document = json.dumps(layered_profile(NUM_GRADIENTS, name=name), ensure_ascii=False)
    return dict(json.loads(document.replace('.weight"', f'{LONG}"')))


def connect(service: ServiceProcess) -> socket.socket:
    """Open a connection that reads nothing by itself."""
    address = urlsplit(service.url)
    return socket.create_connection((address.hostname, address.port), timeout=100)


def ask(path: str, *more: str) -> bytes:
    """Return a GET as it is sent."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *more, "\r\n")).encode()


def rss_bytes(service: ServiceProcess) -> int:
    """Return the memory of the serving process."""
    return int(psutil.Process(service.pid).memory_info().rss)


def status_of(connection: socket.socket) -> int:
    """Wait for the answer on a connection; read no more than its first bytes."""
    return int(connection.recv(12).split()[1])


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service that ends no slow reader while a test looks."""
    with ServiceProcess(tmp_path_factory.mktemp("patient"), answer_timeout_s=1000) as service:
        yield service


@pytest.fixture(scope="module")
def paths(patient: ServiceProcess) -> dict[str, str]:
    """Return what large answers can be read, by name."""
    answer = patient.post_schedule(large_profile(), options={"fusion": "none"})
    assert answer.status_code == 201, answer.text
    schedule = answer.headers["location"]
    profile = f"/v1/profiles/{answer.json()['schedule']['profile_sha256']}"
    return {"schedule": schedule, "timeline": f"{schedule}/timeline", "profile": profile}


@pytest.mark.parametrize("more", [(), ("If-None-Match: x",)], ids=["from memory", "by the application"])
@pytest.mark.parametrize("times", [1, 20], ids=["alone", "pipelined"])
@pytest.mark.parametrize("what", ["schedule", "profile"])
def test_answers_that_nobody_reads_hold_little_memory(
    patient: ServiceProcess, paths: dict[str, str], what: str, times: int, more: tuple[str, ...]
) -> None:
    """40 connections share the bytes of an answer, and each holds less than 1 MiB for itself."""
    whole = patient.http.get(paths[what]).content
    assert len(whole) > 7 * MIB
    before = rss_bytes(patient)
    with ExitStack() as stack:
        for _ in range(NUM_READERS):
            connection = stack.enter_context(connect(patient))
            connection.sendall(ask(paths[what], *more) * times)
            assert status_of(connection) == 200
        assert rss_bytes(patient) - before < 2 * len(whole) + NUM_READERS * MIB
        # Others are answered meanwhile, and get all of it.
        assert patient.http.get(paths[what]).content == whole


def test_answers_of_different_bytes_have_a_limit(tmp_path: Path) -> None:
    """Bytes that a reader shares with nobody are a body in transfer; beyond the limit they are refused."""
    with ServiceProcess(tmp_path, max_bodies_bytes=20 * MIB, answer_timeout_s=1000) as service:
        one, other = (
            service.post_schedule(large_profile(name), options={"fusion": "none"}).headers["location"]
            for name in ("one", "other")
        )
        with ExitStack() as stack:
            for _ in range(5):  # they share them
                connection = stack.enter_context(connect(service))
                connection.sendall(ask(one))
                assert status_of(connection) == 200
            for more in ({}, {"Accept": "application/json", "If-None-Match": "x"}):
                refused = service.http.get(other, headers=more)
                assert refused.status_code == 429
                assert refused.json()["type"] == "urn:pace:problem:queue-full"
            assert service.http.get("/v1/schedules").status_code == 200
        while service.http.get(other).status_code == 429:  # until the ends of the connections are seen
            time.sleep(0.05)
        assert service.http.get(other).json()["id"] == other.rpartition("/")[2]


def test_the_framework_does_not_hide_that_an_answer_has_no_room(tmp_path: Path) -> None:
    """Routes outside of the fast path refuse in the same way: the framework takes a held head for sent."""
    with ServiceProcess(tmp_path, max_bodies_bytes=20 * MIB, answer_timeout_s=1000) as service:
        one, other = (
            service.post_schedule(large_profile(name), options={"fusion": "none"})
            for name in ("one", "other")
        )
        job = {"job": "a", "fingerprint": other.json()["schedule"]["fingerprint"]}
        service.post_schedule(large_profile("other"), options={"fusion": "none"}, job="a")
        with connect(service) as connection:
            connection.sendall(ask(one.headers["location"]))
            assert status_of(connection) == 200
            refused = service.http.get("/v1/schedules", params=job)
            assert refused.status_code == 429
            assert refused.json()["type"] == "urn:pace:problem:queue-full"


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service that waits a second for a reader."""
    with ServiceProcess(tmp_path_factory.mktemp("impatient"), answer_timeout_s=1) as service:
        yield service


@pytest.fixture(scope="module")
def location(impatient: ServiceProcess) -> str:
    """Return the path of a large schedule."""
    return impatient.post_schedule(large_profile(), options={"fusion": "none"}).headers["location"]


@pytest.mark.timeout(900)  # on a busy machine each of thousands of answers takes long
@pytest.mark.parametrize("path", ["large", "/openapi.json", "/web/app.js", "/metrics", "/v1/nothing"])
def test_who_does_not_read_is_ended(impatient: ServiceProcess, location: str, path: str) -> None:
    """Also while little waits: many answers of any kind on one connection, until the system takes no more."""
    asked = ask(location if path == "large" else path)
    before = len(impatient.events("slow-reader-ended"))
    with connect(impatient) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        ended = False
        while not ended:
            try:
                connection.send(asked * 100)
            except BlockingIOError:
                time.sleep(0.05)
            except (BrokenPipeError, ConnectionResetError):
                ended = True
    assert len(impatient.events("slow-reader-ended", before + 1)) == before + 1
    counted = impatient.http.get("/metrics").text
    assert "pace_slow_readers_total 0.0" not in counted


def test_who_reads_a_little_again_and_again_gets_all(impatient: ServiceProcess, location: str) -> None:
    """A reader that takes several time-outs for an answer is served to the end."""
    whole = impatient.http.get(location).content
    with connect(impatient) as connection:
        connection.sendall(ask(location, "Connection: close"))
        received = bytearray()
        while piece := connection.recv(2**16):
            received += piece
            time.sleep(0.04)
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == whole
