"""Bad requests: each is refused with a problem document that says what is wrong."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

LIMIT_BYTES = 20_000


@pytest.fixture(scope="module")
def small_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start one service for all: it takes small bodies only, and refusals leave nothing behind."""
    folder: Path = tmp_path_factory.mktemp("refusals")
    with ServiceProcess(folder, max_body_bytes=LIMIT_BYTES) as process:
        process.http.headers["Content-Type"] = "application/json"
        yield process


def _refused(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["type"] == f"urn:pace:problem:{kind}"
    assert problem["status"] == status
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    return problem


def test_an_invalid_profile_is_refused_with_the_validators_words(small_service: ServiceProcess) -> None:
    """The message names the op at fault."""
    profile = layered_profile(3)
    profile["ops"][0]["deps"] = ["bwd/nowhere"]
    problem = _refused(small_service.post_schedule(profile), 422, "invalid-profile")
    assert 'op "bwd/2" depends on "bwd/nowhere"' in problem["detail"]


@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf")])
def test_impossible_durations_are_refused(small_service: ServiceProcess, duration: float) -> None:
    """Negative, NaN and infinite times name their op, also where JSON itself has no such number."""
    profile = layered_profile(3)
    profile["ops"][1]["duration_s"] = duration
    answer = small_service.http.post("/v1/schedules", content=json.dumps({"profile": profile}))
    assert 'op "bwd/1"' in _refused(answer, 422, "invalid-profile")["detail"]


REPORT = (
    b'"job":"b","fingerprint":"%s","profile_sha256":"%s","predicted_iteration_s":1,'
    b'"measured_iteration_s":1,"num_iterations":1' % (b"0" * 64, b"1" * 64)
)
PROFILE = json.dumps(layered_profile(3)).encode()


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/reports", b'{"job":"a",%s}' % REPORT, "job"),
        ("/v1/profiles", PROFILE.replace(b'"dtype"', b'"dtype": "x", "dtype"'), "dtype"),
        ("/v1/schedules", b'{"job":"a","profile":%s,"job":"b"}' % PROFILE, "job"),
        ("/v1/what-if", b'{"profile":%s,"grid":{"workers":[2],"workers":[4]}}' % PROFILE, "workers"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(
    small_service: ServiceProcess, path: str, body: bytes, key: str
) -> None:
    """Which of the two counts, readers of JSON do not agree on."""
    answer = small_service.http.post(path, content=body)
    assert f'"{key}" is twice' in _refused(answer, 422, "invalid-request")["detail"]


def test_names_that_differ_only_in_their_unicode_form_are_refused(small_service: ServiceProcess) -> None:
    """Of gradients in one profile, and of jobs; one of such names alone is fine in a profile."""
    profile = layered_profile(3)
    composed, apart = "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"
    text = json.dumps(profile)
    alone = json.loads(text.replace("1.weight", apart))
    assert small_service.post_schedule(alone, job=composed).status_code == 201
    both = json.loads(text.replace("1.weight", apart).replace("2.weight", composed))
    problem = _refused(small_service.post_schedule(both), 422, "invalid-profile")
    assert "differ only in how Unicode" in problem["detail"]
    problem = _refused(small_service.post_schedule(profile, job=apart), 422, "invalid-request")
    assert "job" in problem["detail"]


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a" * 201])
def test_job_names_that_nobody_can_read_are_refused(small_service: ServiceProcess, name: str) -> None:
    """Nothing, spaces alone, several lines, and more than 200 characters."""
    problem = _refused(small_service.post_schedule(layered_profile(3), job=name), 422, "invalid-request")
    assert "job" in problem["detail"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(small_service: ServiceProcess, number: float) -> None:
    """Also where any value may stand: it would come back as another one."""
    profile = layered_profile(3) | {"metadata": {"measured": [1.0, number]}}
    answer = small_service.http.post("/v1/schedules", content=json.dumps({"profile": profile}))
    assert "metadata" in _refused(answer, 422, "invalid-profile")["detail"]


def test_unknown_options_are_refused(small_service: ServiceProcess) -> None:
    """Options are strict as well."""
    answer = small_service.post_schedule(layered_profile(3), options={"fusion": "magic"})
    assert "fusion" in _refused(answer, 422, "invalid-options")["detail"]


def test_options_that_do_not_fit_one_another_are_refused(small_service: ServiceProcess) -> None:
    """What only the optimizer can know is told in the same way."""
    answer = small_service.post_schedule(layered_profile(3), options={"oracle": "lp"})
    assert "slot" in _refused(answer, 422, "invalid-options")["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"profile": 1}',
        b'{"options": {}}',
        b'{"profile": "\\ud800"}',
        b"[" * 5000,
        b'{"profile":' * 1000,
    ],
)
def test_malformed_bodies_are_refused(small_service: ServiceProcess, body: bytes) -> None:
    """Whatever the bytes, the answer is a problem and the service lives on."""
    answer = small_service.http.post("/v1/schedules", content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert small_service.http.get("/healthz").status_code == 200


def test_unknown_fields_are_refused(small_service: ServiceProcess) -> None:
    """A misspelt field is never ignored."""
    answer = small_service.http.post("/v1/schedules", json={"profile": layered_profile(2), "jib": "train"})
    assert "jib" in _refused(answer, 422, "invalid-request")["detail"]


@pytest.mark.parametrize("media_type", ["application/yaml", "text/plain", ""])
@pytest.mark.parametrize(
    "path", ["/v1/schedules", "/v1/profiles", "/v1/what-if", "/v1/simulations", "/v1/reports"]
)
def test_other_media_types_are_refused(small_service: ServiceProcess, path: str, media_type: str) -> None:
    """Only what says that it is JSON is read: a browser lets any page send the rest."""
    answer = small_service.http.post(path, content=b"{}", headers={"Content-Type": media_type})
    _refused(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8080"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_pages_of_other_hosts_are_refused(small_service: ServiceProcess, headers: dict[str, str]) -> None:
    """A service without keys serves who calls it by loopback's names, and no page from elsewhere."""
    for path in ("/v1/profiles", f"/v1/schedules/{'0' * 32}", "/docs", "/metrics"):
        _refused(small_service.http.get(path, headers=headers), 421, "foreign-host")
    answer = small_service.http.post("/v1/schedules", json={"profile": layered_profile(2)}, headers=headers)
    _refused(answer, 421, "foreign-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.2", "[::1]:8080"])
def test_loopback_has_many_names(small_service: ServiceProcess, host: str) -> None:
    """All of them are the service's own."""
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert small_service.http.get("/v1/profiles", headers=headers).status_code == 200


def test_an_announced_large_body_is_refused(small_service: ServiceProcess) -> None:
    """Content-Length is enough to refuse."""
    answer = small_service.http.post("/v1/schedules", content=b" " * (LIMIT_BYTES + 1))
    assert str(LIMIT_BYTES) in _refused(answer, 413, "too-large")["detail"]


def test_a_large_body_without_a_length_is_refused_while_it_arrives(small_service: ServiceProcess) -> None:
    """A body in chunks that never ends is refused at the limit, before its end."""
    address = urlsplit(small_service.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        # Not one byte more than is needed: what the service would not read could reset the connection.
        for size in (LIMIT_BYTES // 2, LIMIT_BYTES // 2, 1):
            connection.sendall(b"%x\r\n%s\r\n" % (size, b" " * size))
        # No last chunk: an answer now means that the service did not wait for one.
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 413")


@pytest.mark.pack("fabric")
@pytest.mark.parametrize(
    ("method", "path", "taken"),
    [
        ("GET", "/v1/jobs?limit=5&min_drfit=0.9", "min_drift"),
        ("GET", "/v1/usage?min_drfit=1", "none"),
        ("GET", f"/v1/schedules/{'0' * 32}?min_drfit=1", "none"),
        ("POST", "/v1/schedules?min_drfit=1", "none"),
        ("POST", "/v1/transfer-plans?min_drfit=1", "none"),
    ],
)
def test_unknown_query_parameters_are_refused(
    small_service: ServiceProcess, method: str, path: str, taken: str
) -> None:
    """On every route, those of the fast path and of packs included, with the names that are known."""
    answer = small_service.http.request(method, path, json={} if method == "POST" else None)
    detail = _refused(answer, 422, "invalid-request")["detail"]
    assert 'unknown query parameter "min_drfit"; this route takes' in detail
    assert taken in detail


@pytest.mark.parametrize("cursor", ["x", "é", "bm9uZQ==", "A" * 2000, "WyJqb2JzIiwxXQ=="])
@pytest.mark.parametrize("path", ["/v1/schedules", "/v1/profiles", "/v1/what-if", "/v1/reports", "/v1/jobs"])
def test_cursors_that_no_page_gave_are_refused(small_service: ServiceProcess, path: str, cursor: str) -> None:
    """Whatever they say, encoded or not."""
    answer = small_service.http.get(path, params={"cursor": cursor})
    assert "cursor" in _refused(answer, 422, "invalid-request")["detail"]


@pytest.mark.parametrize(
    "query",
    [f"?job=&fingerprint={'0' * 64}", "?job=train&fingerprint=short", "?limit=0", "?cursor=x", "?limit=many"],
)
def test_senseless_questions_are_refused(small_service: ServiceProcess, query: str) -> None:
    """Parameters are named in the refusal."""
    _refused(small_service.http.get(f"/v1/schedules{query}"), 422, "invalid-request")
