"""Schedules in memory are answered as soon as their requests arrive, by the rules of all other requests."""

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pace.api.access import RateWindows
from pace.api.fairness.loop_shares import LoopShares
from pace.api.http.answers import PreparedAnswer
from pace.api.http.app import create_app
from pace.api.http.fast_path import Application
from pace.api.settings import Settings
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile

_ID = "0123456789abcdef" * 2
_LINE = f"GET /v1/schedules/{_ID} HTTP/1.1\r\n".encode()
_HOST = b"Host: 127.0.0.1:8080\r\n"
_PLAIN = _LINE + _HOST + b"\r\n"
_DATE = (b"date", b"now")


def _with_application(
    folder: Path, test: Callable[[Application], Awaitable[None]], **settings: object
) -> None:
    """Run a test with an application that has started, in which each tenant has a schedule of the same id."""
    url = f"sqlite:///{folder / 'pace.db'}"
    app = create_app(Settings.model_validate({"database_url": url, "solver_processes": 1, **settings}))

    async def run() -> None:
        async with app.router.lifespan_context(app):
            for tenant in ("default", "one", "two"):
                body = f'{{"of": "{tenant}"}}'.encode()
                answers = app.state.question_answers
                answers._cache._ttl_s = 600.0
                answers._cache.put(tenant, f"schedule/{_ID}", PreparedAnswer.of(body))
            await test(app)

    asyncio.run(run())


def _answer(app: Application, request: bytes) -> bytes | None:
    """Return what is answered at once."""
    written: list[bytes] = []
    answered = app.answer_at_once(request, [_DATE], written.append)
    assert answered == (len(written) == 1)
    return written[0] if answered else None


def _has_key(token: str) -> bytes:
    return _LINE + _HOST + f"Authorization: Bearer {token}\r\n\r\n".encode()


def test_what_is_in_memory_is_answered_at_once(tmp_path: Path) -> None:
    """With the headers that every answer has, and counted, whatever harmless headers the request has."""

    async def read(app: Application) -> None:
        for more in (
            b"",
            b"Connection: Keep-Alive\r\n",
            b"Accept: */*\r\nUser-Agent: a (b; c)\r\nX-Forwarded-For: 192.0.2.1\r\nx-empty:\r\n",
        ):
            answer = _answer(app, _LINE + more + _HOST + b"X-Request-Id:\t mine \r\n\r\n")
            assert answer is not None
            head, _, body = answer.partition(b"\r\n\r\n")
            assert body == b'{"of": "default"}'
            lines = head.split(b"\r\n")
            assert lines[:2] == [b"HTTP/1.1 200 OK", b"date: now"]
            assert b"content-length: %d" % len(body) in lines
            assert b"x-request-id: mine" in lines
            assert b"x-content-type-options: nosniff" in lines
            assert b"ratelimit-limit: 60000" in lines
        count = (
            rb'pace_request_seconds_count{method="GET",route="/v1/schedules/{question_id}",status="200"} 3.0'
        )
        metrics: bytes = app.state.service.metrics.render(tenants=False)
        assert count in metrics
        assert b'pace_answer_cache_total{result="hit"} 3.0' in metrics

    _with_application(tmp_path, read)


_OTHERS = (
    _PLAIN.replace(b"GET", b"HEAD"),
    _PLAIN.replace(b"1.1\r", b"1.0\r"),
    _PLAIN.replace(b"GET ", b"get "),
    _PLAIN.replace(b" HTTP", b"?a=b HTTP"),
    _PLAIN.replace(b"/v1/", b"http://127.0.0.1/v1/"),
    _PLAIN.replace(_ID.encode(), b"0" * 32),
    _PLAIN.replace(_ID.encode(), _ID.upper().encode()),
    _PLAIN[:-2],
    _PLAIN + _PLAIN,
    _PLAIN.replace(b"\r\n", b"\n"),
    _LINE + b"\r\n",
    _LINE + b"Host: elsewhere.example\r\n\r\n",
    *(
        _LINE + _HOST + more + b"\r\n"
        for more in (
            b"Host: 127.0.0.1\r\n",
            b"Connection: close\r\n",
            b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
            b"Content-Length: 0\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Expect: 100-continue\r\n",
            b"Origin: http://elsewhere.example\r\n",
            b"If-None-Match: *\r\n",
            b"x : y\r\n",
            b"x: a\r\n folded\r\n",
            b"x: \x00\r\n",
            b"x: \xe9\r\n",
            b"nothing\r\n",
            b"x: " + 5000 * b"y" + b"\r\n",
        )
    ),
)


def test_other_requests_are_left_to_the_application(tmp_path: Path) -> None:
    """Those in another form, those on whose headers more depends, and those for what is not in memory."""

    async def read(app: Application) -> None:
        for request in _OTHERS:
            assert _answer(app, request) is None, request
        assert _answer(app, _PLAIN) is not None

    _with_application(tmp_path, read)


def test_a_key_is_looked_up_before_it_opens_anything(tmp_path: Path) -> None:
    """By the application; then each tenant gets its own, until the key expires from memory or is revoked."""

    async def read(app: Application) -> None:
        access, keys = app.state.service.access, app.state.service.keys
        one, two = (keys.create(tenant, f"{tenant}'s", ("read",)) for tenant in ("one", "two"))
        writer = keys.create("one", "one's", ("submit",))
        for token in (one, two, writer):
            assert _answer(app, _has_key(token)) is None
            await access.admit(token, "submit" if token == writer else "read")
        for token, tenant in ((one, b"one"), (two, b"two")):
            answer = _answer(app, _has_key(token))
            assert answer is not None
            assert answer.endswith(b'{"of": "%s"}' % tenant)
        for refused in (
            _has_key(writer),
            _has_key(one[:-1] + "~"),
            _has_key(one).replace(b"Bearer", b"Basic"),
        ):
            assert _answer(app, refused) is None
        assert _answer(app, _PLAIN) is None
        access.forget(one.split("_")[1])
        assert _answer(app, _has_key(one)) is None
        assert _answer(app, _has_key(two)) is not None

    _with_application(tmp_path, read, auth="required")


def test_the_rate_limit_holds(tmp_path: Path) -> None:
    """What is beyond it is left to the application, which refuses it."""

    async def read(app: Application) -> None:
        left = []
        while (answer := _answer(app, _PLAIN)) is not None:
            left += re.findall(rb"ratelimit-remaining: (\d+)", answer)
        assert left == [b"2", b"1", b"0"]

    _with_application(tmp_path, read, rate_limit="3/hour")


def test_reads_are_charged_and_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who uses the event loop most is left to the application, where it waits; others are answered."""
    counted: list[tuple[str, float]] = []
    count = LoopShares._count

    def counting(self: LoopShares, tenant: str, seconds: float, paid_s: float) -> None:
        counted.append((tenant, seconds))
        count(self, tenant, seconds, paid_s)

    monkeypatch.setattr(LoopShares, "_count", counting)

    async def read(app: Application) -> None:
        service = app.state.service
        one, two = (service.keys.create(tenant, f"{tenant}'s", ("read",)) for tenant in ("one", "two"))
        for token in (one, two):
            await service.access.admit(token, "read")
            assert _answer(app, _has_key(token)) is not None
        assert [tenant for tenant, _ in counted] == ["one", "two"]
        assert all(0 < seconds < 10 for _, seconds in counted)
        app.state.loop_shares.charge("one", 1e6)
        assert _answer(app, _has_key(one)) is None
        assert _answer(app, _has_key(two)) is not None

    _with_application(tmp_path, read, auth="required")


def test_an_audit_of_reads_misses_none(tmp_path: Path) -> None:
    """All go to the application, which writes the audit log."""

    async def read(app: Application) -> None:
        assert _answer(app, _PLAIN) is None

    _with_application(tmp_path, read, audit="all")


def _read(connection: socket.socket, *pieces: bytes) -> tuple[list[bytes], bytes]:
    """Send a request in pieces; return the lines of its answer's head and its body.

    Lines that differ each time are left out.
    """
    for number, piece in enumerate(pieces):
        time.sleep(0.1 * bool(number))
        connection.sendall(piece)
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        assert more, received
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    (size,) = re.findall(rb"content-length: (\d+)", head.lower())
    while len(body) < int(size):
        more = connection.recv(65536)
        assert more, received
        body += more
    varies = (b"date:", b"ratelimit-remaining:", b"ratelimit-reset:")
    return [line for line in head.split(b"\r\n") if not line.startswith(varies)], body


def test_both_ways_answer_the_same(service: Caller) -> None:
    """One piece of a request is answered at once; the application answers what comes in two.

    It also answers a request that has a length.
    """
    created = service.post_schedule(layered_profile(4))
    path = created.headers["location"]
    lines = f"Host: 127.0.0.1\r\nAuthorization: Bearer {service.token}\r\nX-Request-Id: mine\r\n\r\n"
    request = f"GET {path} HTTP/1.1\r\n{lines}".encode()
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        answers = [
            _read(connection, *pieces)
            for pieces in (
                [request],
                [request[:20], request[20:]],
                [request],
                [request],
                [request[:-1], b"\n"],
                [request[:-2] + b"Content-Length: 0\r\n\r\n"],
            )
        ]
    assert answers[0][1] == created.content
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.races_with_machine(reason="what a client sends at once must arrive within 0.3 s")
def test_a_head_that_does_not_come_after_such_an_answer_is_not_waited_for(tmp_path: Path) -> None:
    """The time for it begins with its first byte."""
    with ServiceProcess(tmp_path, header_timeout_s=0.3) as service:
        path = service.post_schedule(layered_profile(3)).headers["location"]
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        address = urlsplit(service.url)
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            for _ in range(3):
                assert b"HTTP/1.1 200 OK" in _read(connection, request)[0]
                time.sleep(0.5)  # nothing of the next one has come yet
            connection.sendall(request[:20])
            with connection.makefile("rb") as answer:
                assert answer.read().startswith(b"HTTP/1.1 408")


def test_windows_of_a_rate_begin_with_the_first_event() -> None:
    """And end after their length; those that ended are forgotten."""
    now_s = 100.0
    rates = RateWindows("2/minute", lambda: now_s)
    assert [rates.count("a"), rates.is_full("a")] == [1, False]
    now_s += 30
    assert [rates.count("a"), rates.is_full("a"), rates.reset_s("a")] == [2, True, 30]
    assert [rates.count("a"), rates.count("b"), rates.is_full("b")] == [3, 1, False]
    now_s += 30
    assert not rates.is_full("a")
    assert [rates.count("a"), rates.reset_s("a")] == [1, 60]
    now_s += 60
    for number in range(5000):
        rates.count(f"other {number}")
    assert "a" not in rates._windows
    assert len(rates._windows) == 5000
