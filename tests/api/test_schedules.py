"""Schedules over HTTP: asked for, read again, found by job, kept over a restart."""

import base64
import hashlib
import json
import re
import threading
import time
from pathlib import Path

import httpx
import pytest

from pace import Options, check, optimize, parse_profile
from pace.client.documents import ScheduleResource, example_profile
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller, ServiceProcess, new_client
from tests.api.profiles import layered_profile


def test_a_posted_profile_comes_back_as_its_schedule(service: Caller) -> None:
    """The answer is the very schedule that the library computes, and can be read again."""
    document = layered_profile(20)
    answer = service.post_schedule(document, options={"fusion": "paper"}, job="train")
    assert answer.status_code == 201
    resource = ScheduleResource.model_validate_json(answer.content)
    profile = parse_profile(json.dumps(document))
    assert resource.schedule == optimize(profile, Options(fusion="paper"))
    assert (resource.job, resource.fingerprint) == ("train", profile.fingerprint)
    assert answer.headers["location"] == f"/v1/schedules/{resource.id}"
    again = service.http.get(answer.headers["location"])
    assert again.status_code == 200
    assert again.content == answer.content


def test_slots_that_are_too_long_are_told_with_numbers(service: Caller) -> None:
    """The document says what rounding costs and which slots would do."""
    answer = service.post_schedule(layered_profile(20), options={"slot_s": 1.0})
    assert answer.status_code == 201
    method = answer.json()["schedule"]["solver"]["method"]
    assert "with slots of 1 s, the iteration takes " in method
    assert "slot_s of" in method


@ON_SQLITE
def test_profiles_with_a_norm_come_back_sharded(service: Caller) -> None:
    """The default follows the update rule, what is asked for does not; every exchange has its timeline."""
    document = layered_profile(6) | {"update": "global-norm"}
    profile = parse_profile(json.dumps(document))
    answer = service.post_schedule(document)
    resource = ScheduleResource.model_validate_json(answer.content)
    assert resource.schedule.exchange == "sharded"
    assert resource.schedule == optimize(profile)
    assert check(profile, resource.schedule) == []
    whole = service.post_schedule(document, options={"exchange": "allreduce"}).json()["schedule"]
    assert whole["exchange"] == "allreduce"
    trace = service.http.get(f"{answer.headers['location']}/timeline")
    assert trace.status_code == 200
    assert trace.json()["traceEvents"]
    assert service.post_schedule(document, options={"exchange": "sharded", "slot_s": 1.0}).status_code == 422


def test_the_newest_schedule_of_a_job_is_the_one_asked_for_last(service: Caller) -> None:
    """Asking again for an old schedule makes it the newest."""
    first = layered_profile(5)
    second = layered_profile(5, duration_s=0.002)
    ids = [service.post_schedule(profile, job="train").json()["id"] for profile in (first, second, first)]
    assert ids[0] == ids[2] != ids[1]
    question = {"job": "train", "fingerprint": parse_profile(json.dumps(first)).fingerprint}
    assert service.http.get("/v1/schedules", params=question).json()["id"] == ids[0]
    service.post_schedule(second, job="other")
    assert service.http.get("/v1/schedules", params=question).json()["id"] == ids[0]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/schedules/00000000000000000000000000000000",
        "/v1/tasks/00000000000000000000000000000000",
        f"/v1/schedules?job=nobody&fingerprint={'0' * 64}",
        "/v1/nothing",
    ],
)
def test_what_is_not_there_is_a_problem(service: Caller, path: str) -> None:
    """Unknown ids, jobs and paths are 404 problem documents."""
    answer = service.http.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 404
    assert answer.json()["detail"] != "Not Found"  # says what is not there, or where to look


def test_a_restart_loses_nothing(tmp_path: Path, database_url: str) -> None:
    """What was answered once is answered the same after a crash, without solving again."""
    with ServiceProcess(tmp_path, database_url) as service:
        answer = service.post_schedule(layered_profile(8), job="train")
        service.kill()
        service.start()
        assert service.http.get(answer.headers["location"]).content == answer.content
        assert service.post_schedule(layered_profile(8), job="train").content == answer.content
        assert len(service.events("solved", 1)) == 1


@pytest.mark.races_with_machine(reason="a service must renew its hold on a task within half a second")
def test_an_accepted_task_outlives_a_crash(tmp_path: Path, database_url: str) -> None:
    """A service killed with work in its queue does that work after its restart."""
    with ServiceProcess(tmp_path, database_url, lease_s=0.5) as service:
        prefer = {"Prefer": "respond-async"}
        answers = [
            service.http.post(
                "/v1/schedules",
                json={"profile": layered_profile(400, duration_s=duration / 1000)},
                headers=prefer,
            )
            for duration in range(1, 5)
        ]
        assert {answer.status_code for answer in answers} <= {201, 202}
        service.kill()
        service.start()
        for answer in answers:
            path = answer.headers["location"]
            while path.startswith("/v1/tasks/"):
                task = service.http.get(path).json()
                assert task["state"] != "failed", task
                path = task.get("location") or path
                time.sleep(0.02)
            assert service.http.get(path).status_code == 200


@pytest.mark.races_with_machine(reason="twenty answers must arrive while one solve is under way")
@ON_SQLITE
def test_the_service_answers_others_while_it_solves(service: Caller) -> None:
    """Health answers arrive between a large profile's request and its answer."""
    solved = threading.Event()
    answers: list[httpx.Response] = []

    def solve() -> None:
        with new_client(base_url=service.url, headers=service.http.headers) as http:
            answers.append(
                http.post(
                    "/v1/schedules", json={"profile": layered_profile(1500), "options": {"fusion": "paper"}}
                )
            )
        solved.set()

    thread = threading.Thread(target=solve)
    thread.start()
    answered_before = 0
    # More would take the processor from the solve, which gives way to them.
    while not solved.is_set() and answered_before < 20:
        assert service.http.get("/healthz").status_code == 200
        answered_before += not solved.is_set()
    thread.join()
    assert answers[0].status_code == 201
    assert answered_before >= 20


@ON_SQLITE
def test_the_interface_describes_itself(service: Caller) -> None:
    """The documentation page loads nothing from elsewhere, and its example is a request that succeeds."""
    page = service.http.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 3
    for path in loaded:
        assert not path.startswith("/"), "a proxy may serve the service under a path of its own"
        assert service.http.get(path).status_code == 200, path
    assert "http" not in page.headers["content-security-policy"]
    script = re.search("<script>(.*?)</script>", page.text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page.headers["content-security-policy"]
    document = service.http.get("/openapi.json").json()
    body = document["paths"]["/v1/schedules"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"]["profile"] == example_profile()
    assert service.http.post("/v1/schedules", json=body["example"]).status_code == 201
