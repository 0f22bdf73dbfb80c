"""Clients that send a little and wait: they lose their connections, and nobody else loses anything."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

pytestmark = pytest.mark.races_with_machine(
    reason="what a client sends at once must arrive within the service's time-outs of 0.3 s"
)

HEAD = b"POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service that waits for nobody."""
    folder: Path = tmp_path_factory.mktemp("impatient")
    with ServiceProcess(folder, header_timeout_s=0.3, body_timeout_s=0.3) as process:
        yield process


def _connect(service: ServiceProcess) -> socket.socket:
    address = urlsplit(service.url)
    return socket.create_connection((address.hostname, address.port), timeout=30)


@pytest.mark.parametrize("sent", [b"", b"G", HEAD], ids=["nothing", "a byte", "half a head"])
def test_a_head_that_does_not_come_is_not_waited_for(impatient: ServiceProcess, sent: bytes) -> None:
    """The connection ends, and its end says why."""
    with _connect(impatient) as connection:
        connection.sendall(sent)
        with connection.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 408")


def test_a_second_head_that_does_not_come_is_not_waited_for(impatient: ServiceProcess) -> None:
    """A connection that was of use once is not kept for ever either."""
    with _connect(impatient) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(1).startswith(b"H")
        with connection.makefile("rb") as answer:
            while answer.readline() != b"\r\n":
                pass
            connection.sendall(b"GET /hea")
            assert b"HTTP/1.1 408" in answer.read()


def test_a_body_that_does_not_come_is_not_waited_for(impatient: ServiceProcess) -> None:
    """The request is answered with a problem, and the connection ends."""
    with _connect(impatient) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        with connection.makefile("rb") as answer:
            said = answer.read()
    assert said.startswith(b"HTTP/1.1 408")
    assert b"urn:pace:problem:timeout" in said


def test_requests_that_take_long_are_not_cut(impatient: ServiceProcess) -> None:
    """What has arrived has all the time it needs."""
    answer = impatient.post_schedule(layered_profile(1500), options={"fusion": "paper"})
    assert answer.status_code == 201


def test_more_connections_than_descriptors(tmp_path: Path) -> None:
    """Of 330 that send nothing useful, the oldest make way for who comes with a request."""
    with ServiceProcess(tmp_path, max_descriptors=300) as service, ExitStack() as stack:
        for _ in range(330):
            connection = stack.enter_context(_connect(service))
            connection.sendall(HEAD)
        service.http.close()
        with service.caller() as caller:
            assert caller.http.get("/healthz").status_code == 200
            assert caller.post_schedule(layered_profile(3)).status_code == 201
        assert "out of system resource" not in service.log_path.read_text()  # nobody had to wait for them
