"""Profiles, schedules and reports as resources: stored, listed, named by content, deleted."""

import base64
import gzip
import hashlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from xml.etree import ElementTree

import httpx
import psutil
import pytest

from pace import optimize, parse_profile
from pace.simulation import make_policy, run_policy
from pace.view.perfetto import chrome_trace
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller, new_client
from tests.api.profiles import layered_profile


def test_a_stored_profile_can_be_scheduled_by_its_id(service: Caller) -> None:
    """The id is the hash of the content; a schedule of the id is the schedule of the profile."""
    document = layered_profile(7)
    stored = service.http.post("/v1/profiles", json=document)
    assert stored.status_code == 201
    profile = parse_profile(json.dumps(document))
    assert stored.json()["id"] == profile.sha256
    assert (stored.json()["num_ops"], stored.json()["num_gradients"]) == (14, 7)
    resource = service.http.get(stored.headers["location"]).json()
    assert parse_profile(json.dumps(resource["profile"])) == profile
    by_id = service.http.post("/v1/schedules", json={"profile_id": profile.sha256})
    assert by_id.status_code == 201
    assert by_id.content == service.post_schedule(document).content
    unknown = service.http.post("/v1/schedules", json={"profile_id": "0" * 64})
    assert (unknown.status_code, unknown.json()["type"]) == (422, "urn:pace:problem:invalid-request")


def test_tasks_are_listed_over_http(service: Caller) -> None:
    """By state and kind, in pages; what is no state is refused."""
    for number in (3, 4, 5):
        service.post_schedule(layered_profile(number)).raise_for_status()
    page = service.http.get("/v1/tasks", params={"limit": 2, "state": "done"}).raise_for_status().json()
    rest = service.http.get("/v1/tasks", params={"limit": 2, "cursor": page["next"]}).json()
    tasks = [*page["items"], *rest["items"]]
    assert len({task["id"] for task in tasks}) == 3
    assert rest["next"] is None
    assert [task["created_at"] for task in tasks] == sorted(
        (task["created_at"] for task in tasks), reverse=True
    )
    for task in tasks:
        assert task == service.http.get(f"/v1/tasks/{task['id']}").json()
        assert service.http.get(task["location"]).status_code == 200
    assert service.http.get("/v1/tasks", params={"kind": "what-if"}).json()["items"] == []
    assert service.http.get("/v1/tasks", params={"state": "lost"}).status_code == 422
    assert service.http.get("/v1/tasks", params={"cursor": "x"}).status_code == 422


@ON_SQLITE
def test_compressed_bodies_are_read(service: Caller) -> None:
    """The same request, compressed or not, has the same answer."""
    request = json.dumps({"profile": layered_profile(7)}).encode()
    plain = {"Content-Type": "application/json"}
    headers = {"Content-Encoding": "gzip", **plain}
    answer = service.http.post("/v1/schedules", content=gzip.compress(request), headers=headers)
    assert answer.status_code == 201
    assert answer.content == service.http.post("/v1/schedules", content=request, headers=plain).content
    for broken in (request, gzip.compress(request)[:-20], gzip.compress(request) + b"more"):
        assert service.http.post("/v1/schedules", content=broken, headers=headers).status_code == 422


def test_a_hundred_clients_at_once_cost_one_solve(service: Caller) -> None:
    """All get the same bytes; the log knows of one solve."""
    request = {"profile": layered_profile(60), "job": "storm"}
    together = threading.Barrier(100)

    def ask(_: int) -> httpx.Response:
        together.wait()
        # A connection each, as from a hundred processes.
        with new_client(headers=service.http.headers) as http:
            return http.post(f"{service.url}/v1/schedules", json=request)

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(ask, range(100)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert service.events("solved", 1) == 1


@ON_SQLITE
def test_an_unchanged_schedule_is_not_sent_again(service: Caller) -> None:
    """If-None-Match with the entity tag is answered 304 without a body."""
    created = service.post_schedule(layered_profile(4))
    path, tag = created.headers["location"], created.headers["etag"]
    for asked in (tag, f'"other", W/{tag}', "*"):
        answer = service.http.get(path, headers={"If-None-Match": asked})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert service.http.get(path, headers={"If-None-Match": '"other"'}).content == created.content


def _pages(service: Caller, path: str, **question: Any) -> list[list[dict[str, Any]]]:
    pages = []
    cursor: dict[str, Any] = {}
    while True:
        page = service.http.get(path, params=question | cursor).raise_for_status().json()
        pages.append(page["items"])
        if page["next"] is None:
            return pages
        cursor = {"cursor": page["next"]}


def test_lists_come_in_pages(service: Caller) -> None:
    """Newest first, each item once, also when items come and go between pages."""
    ids = [
        service.post_schedule(layered_profile(number + 1), job="train").json()["id"] for number in range(5)
    ]
    service.post_schedule(layered_profile(1), job="other")
    pages = _pages(service, "/v1/schedules", job="train", limit=2)
    assert [[item["id"] for item in page] for page in pages] == [
        [ids[4], ids[3]],
        [ids[2], ids[1]],
        [ids[0]],
    ]
    first = service.http.get("/v1/schedules", params={"job": "train", "limit": 2}).json()
    service.post_schedule(layered_profile(9), job="train")
    service.http.delete(f"/v1/schedules/{ids[3]}")
    second = service.http.get("/v1/schedules", params={"job": "train", "limit": 2, "cursor": first["next"]})
    assert [item["id"] for item in second.json()["items"]] == [ids[2], ids[1]]
    assert sum(map(len, _pages(service, "/v1/profiles", limit=4))) == 6


def test_what_is_deleted_is_gone(service: Caller) -> None:
    """A schedule goes; its profile only when nothing refers to it; asking again solves again."""
    profile = layered_profile(6)
    created = service.post_schedule(profile, job="train")
    path = created.headers["location"]
    profile_path = f"/v1/profiles/{created.json()['profile_sha256']}"
    assert service.http.get(path).status_code == 200
    assert service.http.delete(profile_path).status_code == 409
    assert service.http.delete(path).status_code == 204
    assert service.http.get(path).status_code == 404
    assert service.http.delete(path).status_code == 404
    assert service.http.delete(profile_path).status_code == 204
    assert service.http.get(profile_path).status_code == 404
    again = service.post_schedule(profile, job="train")
    assert again.json()["id"] == created.json()["id"]
    assert again.json()["schedule"] == created.json()["schedule"]
    assert service.events("solved", 2) == 2


def test_deleting_one_jobs_schedule_leaves_the_others(service: Caller) -> None:
    """Two jobs with the same profile share a solve, not a fate."""
    one, other = (service.post_schedule(layered_profile(6), job=job) for job in ("one", "other"))
    assert service.http.delete(one.headers["location"]).status_code == 204
    assert service.http.get(other.headers["location"]).content == other.content


def test_an_answer_need_not_be_waited_for(service: Caller) -> None:
    """Prefer: respond-async gives a task, which leads to the schedule."""
    request = {"profile": layered_profile(40), "options": {"max_segment_bytes": 64}}
    answer = service.http.post("/v1/schedules", json=request, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202
    path = answer.headers["location"]
    while (task := service.http.get(path).raise_for_status().json())["state"] in ("queued", "running"):
        assert task["location"] is None
        time.sleep(0.02)
    assert task["state"] == "done"
    assert service.http.get(task["location"]).status_code == 200
    again = service.http.post("/v1/schedules", json=request, headers={"Prefer": "respond-async"})
    assert again.status_code == 201


def test_reports_are_kept(service: Caller) -> None:
    """What a job measured can be read next to what was predicted."""
    report = {
        "job": "train",
        "fingerprint": "0" * 64,
        "profile_sha256": "1" * 64,
        "predicted_iteration_s": 0.1,
        "measured_iteration_s": 0.11,
        "num_iterations": 50,
    }
    for measured_s in (0.11, 0.12):
        stored = service.http.post("/v1/reports", json=report | {"measured_iteration_s": measured_s})
        assert stored.status_code == 201
    service.http.post("/v1/reports", json=report | {"job": "other", "plain_iteration_s": 0.2})
    reports = service.http.get("/v1/reports", params={"job": "train"}).json()["items"]
    assert [item["measured_iteration_s"] for item in reports] == [0.12, 0.11]
    assert service.http.post("/v1/reports", json=report | {"num_iterations": 0}).status_code == 422


def test_a_report_with_a_key_is_kept_once(service: Caller) -> None:
    """However often it comes; the key of one report is no other's, and another tenant's is its own."""
    report = {
        "job": "train",
        "fingerprint": "0" * 64,
        "profile_sha256": "1" * 64,
        "predicted_iteration_s": 0.1,
        "measured_iteration_s": 0.11,
        "num_iterations": 50,
    }
    keyed = {"Idempotency-Key": "first"}
    first, again = (service.http.post("/v1/reports", json=report, headers=keyed) for _ in range(2))
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert first.status_code == 201
    other = service.http.post("/v1/reports", json=report | {"job": "other"}, headers=keyed)
    assert (other.status_code, other.json()["type"]) == (422, "urn:pace:problem:invalid-request")
    assert "Idempotency-Key" in other.json()["detail"]
    second = service.http.post("/v1/reports", json=report, headers={"Idempotency-Key": "second"})
    assert second.json()["id"] != first.json()["id"]
    assert len(service.http.get("/v1/reports").json()["items"]) == 2
    long = service.http.post("/v1/reports", json=report, headers={"Idempotency-Key": "x" * 201})
    assert long.status_code == 422
    with service.process.tenant() as stranger:
        theirs = stranger.http.post("/v1/reports", json=report | {"job": "other"}, headers=keyed)
        assert theirs.status_code == 201


@pytest.mark.parametrize("name", ["nul\0byte", "ünïcode", "a" * 200, "quote'\"; --"])
def test_names_of_jobs_are_only_names(service: Caller, name: str) -> None:
    """Whatever a job is called, it is found again under that name, or refused."""
    created = service.post_schedule(layered_profile(2, name=name), job=name)
    assert service.http.post("/v1/profiles", json=layered_profile(3, name=name)).status_code == 201
    question = {"job": name, "fingerprint": parse_profile(json.dumps(layered_profile(2))).fingerprint}
    found = service.http.get("/v1/schedules", params=question)
    if "\0" in name:
        assert created.status_code == found.status_code == 422
    else:
        assert (found.status_code, found.content) == (200, created.content)


@ON_SQLITE
def test_a_schedule_can_be_looked_at(service: Caller) -> None:
    """As the library's own timeline, and as a picture."""
    document = layered_profile(5)
    path = service.post_schedule(document).headers["location"]
    profile = parse_profile(json.dumps(document))
    assert service.http.get(f"{path}/timeline").json() == chrome_trace(profile, optimize(profile))
    picture = service.http.get(f"{path}/chart")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert ElementTree.fromstring(picture.text).tag.endswith("svg")


@ON_SQLITE
def test_policies_can_be_simulated(service: Caller) -> None:
    """The answer is the library's; unknown policies are refused by name."""
    document = layered_profile(5)
    profile_id = service.http.post("/v1/profiles", json=document).json()["id"]
    request = {"profile_id": profile_id, "policies": ["fifo", "pace"], "iterations": 3, "jitter": 0.1}
    answer = service.http.post("/v1/simulations", json=request)
    assert answer.status_code == 200
    profile = parse_profile(json.dumps(document))
    for result in answer.json()["results"]:
        expected = run_policy(profile, make_policy(result["policy"]), iterations=3, jitter=0.1)
        assert result["iterations_s"] == list(expected.iterations_s)
    unknown = service.http.post("/v1/simulations", json=request | {"policies": ["magic"]})
    assert (unknown.status_code, unknown.json()["type"]) == (422, "urn:pace:problem:invalid-options")
    assert "magic" in unknown.json()["detail"]


@ON_SQLITE
def test_a_large_profile_is_answered_in_pieces(service: Caller) -> None:
    """The same bytes, digest and tag as one that fits; not in the memory of the service for every reader."""
    profile = layered_profile(3) | {"metadata": {"blob": " " * 12_000_000}}
    body = gzip.compress(json.dumps(profile).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    stored = service.http.post("/v1/profiles", content=body, headers=headers).raise_for_status().json()
    assert stored["size_bytes"] > 12_000_000
    path = f"/v1/profiles/{stored['id']}"
    answer = service.http.get(path)
    resource = answer.json()
    assert parse_profile(json.dumps(resource.pop("profile"))) == parse_profile(json.dumps(profile))
    assert resource == stored
    assert answer.headers["content-length"] == str(len(answer.content))
    digest = base64.b64encode(hashlib.sha256(answer.content).digest()).decode()
    assert answer.headers["content-digest"] == f"sha-256=:{digest}:"
    assert service.http.get(path, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    process = psutil.Process(service.process.pid)
    before = process.memory_info().rss
    with ExitStack() as readers:
        for _ in range(10):
            reader = readers.enter_context(service.http.stream("GET", path))
            assert reader.status_code == 200
        assert process.memory_info().rss - before < 10 * stored["size_bytes"] / 2
