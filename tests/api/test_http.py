"""HTTP itself, as proxies and other clients speak it: RFC 9110 and RFC 9112."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

POST = b"POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def spoken_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service that all these tests speak to."""
    with ServiceProcess(tmp_path_factory.mktemp("http")) as process:
        yield process


def _said(service: ServiceProcess, sent: bytes) -> bytes:
    """Send bytes; return all that comes back until the connection ends."""
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(sent)
        with connection.makefile("rb") as answer:
            return answer.read()


def test_a_body_with_two_lengths_ends_the_connection(spoken_to: ServiceProcess) -> None:
    """What is behind it may be part of its body for a proxy: it is no request."""
    said = _said(
        spoken_to,
        POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG"
        b"ET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    )
    assert said.count(b"HTTP/1.1 ") == 1
    assert said.startswith(b"HTTP/1.1 400")
    assert b"urn:pace:problem:ambiguous-length" in said


@pytest.mark.parametrize(
    "path", ["/v1/schedules", "/v1/usage", "/healthz", "/", "/web/page.js", "/openapi.json", "/docs"]
)
def test_head_has_the_head_of_get(spoken_to: ServiceProcess, path: str) -> None:
    """The same status and length, and no body, on every route that can be read."""
    read, head = spoken_to.http.get(path), spoken_to.http.head(path)
    assert (head.status_code, head.content) == (read.status_code, b"")
    for name in ("content-type", "content-length", "etag", "content-digest"):
        assert head.headers.get(name) == read.headers.get(name)


def test_head_of_one_resource_is_answered_from_either_way(spoken_to: ServiceProcess) -> None:
    """Of a schedule, of one that is not there, and of events that would go on."""
    made = spoken_to.post_schedule(layered_profile(3))
    path = made.headers["location"]
    assert spoken_to.http.head(path).headers["etag"] == spoken_to.http.get(path).headers["etag"]
    assert spoken_to.http.head(f"/v1/schedules/{'0' * 32}").status_code == 404
    long = {"fusion": "paper", "oracle": "lp", "slot_s": 1e-4}
    task = spoken_to.http.post(
        "/v1/schedules",
        json={"profile": layered_profile(400), "options": long},
        headers={"Prefer": "respond-async"},
    ).json()
    assert spoken_to.http.head(f"/v1/tasks/{task['id']}/events").status_code == 200
    spoken_to.http.delete(f"/v1/tasks/{task['id']}")
    assert 'route="/v1/tasks/{task_id}/events"' in spoken_to.http.get("/metrics").text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/schedules", "GET, HEAD, POST"),
        ("POST", f"/v1/schedules/{'0' * 32}", "DELETE, GET, HEAD"),
        ("HEAD", "/v1/simulations", "POST"),
        ("DELETE", "/", "GET, HEAD"),
        ("POST", "/web/page.js", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_allowed_is_told_which_are(
    spoken_to: ServiceProcess, method: str, path: str, allowed: str
) -> None:
    """All of the path, not those of its first route."""
    answer = spoken_to.http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_a_slash_too_many_is_not_found(spoken_to: ServiceProcess) -> None:
    """A redirect would name the host that the caller gave, and http even behind a proxy with TLS."""
    answer = spoken_to.http.get("/v1/schedules/")
    assert (answer.status_code, "location" in answer.headers) == (404, False)
    for page in ("/docs", "/"):
        assert spoken_to.http.get(page, follow_redirects=True).status_code == 200


def test_a_target_may_be_a_whole_url(spoken_to: ServiceProcess) -> None:
    """Its host counts and not the header's."""
    for target, host, status in (
        (b"http://127.0.0.1/v1/usage", b"other.example", b"200"),
        (b"http://localhost:1?limit=1", b"localhost", b"200"),
        (b"http://other.example/v1/usage", b"127.0.0.1", b"421"),
        (b"http://[/v1/usage", b"127.0.0.1", b"422"),
    ):
        said = _said(spoken_to, b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))
        assert said.split()[1] == status, said
        assert (b"script-src 'self'" in said) == (b"limit" in target)


def test_heads_are_bounded_whatever_parser_is_installed(tmp_path: Path) -> None:
    """With httptools at hand, a long head and one with two Hosts are refused as without it."""
    beside = tmp_path / "beside"
    beside.mkdir()
    # Enough to be chosen by a server that takes what is there.
    (beside / "httptools.py").write_text("HttpRequestParserUpgrade = HttpParserError = Exception\n")
    path = os.pathsep.join((str(beside), os.environ.get("PYTHONPATH", "")))
    environment = {"PYTHONPATH": path.rstrip(os.pathsep)}
    with ServiceProcess(tmp_path, command=[sys.executable], environment=environment) as service:
        said = _said(service, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 80_000)
        assert said.startswith(b"HTTP/1.1 400")
        said = _said(service, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: other.example\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400")
