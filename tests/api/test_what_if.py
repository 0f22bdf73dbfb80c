"""What-ifs over HTTP: answered as the library would, followed while they run, cancelled in mid-grid."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from pace import InvalidOptions, parse_profile
from pace.client import Client
from pace.client.documents import TaskResource
from pace.whatif import Grid, what_if
from pace.whatif.target import answer_all
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile
from tests.pace.cli.process import pace

GRID = {"bandwidth_gbps": [1, 10], "workers": [4, 8], "policies": ["fifo", "ddp", "pace"]}
ASYNC = {"Prefer": "respond-async"}


def _events(service: Caller, path: str) -> Iterator[tuple[str, TaskResource]]:
    with service.http.stream("GET", f"{path}/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        event = ""
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                yield event, TaskResource.model_validate_json(value)


def _long(service: Caller, seed: int) -> dict[str, Any]:
    """Return a question that takes minutes; another one for every seed."""
    bandwidths = [1 + number / 10 for number in range(4000)]
    profile = layered_profile(200, duration_s=0.001 + seed * 1e-6)
    profile_id = service.http.post("/v1/profiles", json=profile).raise_for_status().json()["id"]
    return {"profile_id": profile_id, "grid": {"bandwidth_gbps": bandwidths}}


def test_the_answer_is_the_librarys(service: Caller) -> None:
    """All numbers to the last bit; the same question again is answered from storage; CSV on request."""
    document = layered_profile(6)
    question = {"profile": document, "grid": GRID | {"target_efficiency": 0.5}}
    answer = service.http.post("/v1/what-if", json=question)
    assert answer.status_code == 201, answer.text
    profile = parse_profile(json.dumps(document))
    grid = Grid(bandwidth_gbps=(1.0, 10.0), workers=(4, 8), policies=("fifo", "ddp", "pace"))
    expected = what_if(profile, grid)
    found = answer.json()["what_if"]
    assert found["cells"] == [asdict(cell) for cell in expected.cells]
    assert [target["bandwidth_gbps"] for target in found["targets"]] == [
        target.bandwidth_gbps for target in answer_all(profile, grid, 0.5)
    ]
    assert answer.json()["num_cells"] == 12
    path = answer.headers["location"]
    assert service.http.get(path).content == answer.content
    assert service.http.get(path, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    again = service.http.post("/v1/what-if", json=question, headers=ASYNC)
    assert (again.status_code, again.content) == (201, answer.content)
    assert service.events("what-if-answered", 1) == 1
    text = service.http.get(path, headers={"Accept": "text/csv"})
    assert text.headers["content-type"] == "text/csv; charset=utf-8"
    assert text.text == expected.to_csv()
    for accept, expected_type in {
        "text/csv;q=0": "application/json",
        "text/csv;q=0.5, application/json": "application/json",
        "*/*": "application/json",
        "text/csv, */*;q=0.1": "text/csv; charset=utf-8",
        "application/json;q=0.5, text/csv": "text/csv; charset=utf-8",
    }.items():
        given = service.http.get(path, headers={"Accept": accept})
        assert given.headers["content-type"] == expected_type, accept
    assert [item["id"] for item in service.http.get("/v1/what-if").json()["items"]] == [answer.json()["id"]]

    profile_path = f"/v1/profiles/{profile.sha256}"
    assert service.http.delete(profile_path).status_code == 409
    assert service.http.delete(path).status_code == 204
    assert service.http.get(path).status_code == 404
    assert service.http.delete(path).status_code == 404
    assert service.http.delete(profile_path).status_code == 204


def test_equal_questions_at_once_are_answered_once(service: Caller) -> None:
    """Two clients, one simulation, the same bytes."""
    question = {"profile": layered_profile(9), "grid": GRID}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: service.http.post("/v1/what-if", json=question), range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert service.events("what-if-answered", 1) == 1


@pytest.mark.races_with_machine(reason="the task must be cancelled while it runs")
def test_a_what_if_is_followed_and_cancelled(service: Caller) -> None:
    """Events tell of growing progress; after DELETE the last one says so, and the worker is free again."""
    question = _long(service, 1)
    path = service.http.post("/v1/what-if", json=question, headers=ASYNC).headers["location"]
    seen: list[TaskResource] = []
    for event, task in _events(service, path):
        assert event == task.state
        seen.append(task)
        if len(seen) > 1 and event == "running" and (task.num_done or 0) > 0:
            cancelled = service.http.delete(path)
            assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert seen[-1].state == "cancelled"
    assert seen[-1].problem is not None
    assert seen[-1].problem.type == "urn:pace:problem:cancelled"
    done = [task.num_done or 0 for task in seen]
    assert done == sorted(done)
    assert 0 < done[-1] < (seen[-1].num_total or 0) == 4000 * 5
    assert service.http.delete(path).status_code == 200  # again: nothing more to do
    # The only process for what-ifs would be busy for minutes had it not been ended.
    quick = service.http.post("/v1/what-if", json={"profile": layered_profile(3), "grid": GRID})
    assert quick.status_code == 201
    assert service.http.get("/v1/what-if").json()["items"] == [
        {name: quick.json()[name] for name in ("id", "profile_sha256", "num_cells", "created_at")}
    ]


def test_who_waits_for_a_cancelled_task_is_told(service: Caller) -> None:
    """A waiting POST gets the problem; asked again, the work begins anew; a finished task stays."""
    question = _long(service, 2)
    path = service.http.post("/v1/what-if", json=question, headers=ASYNC).headers["location"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.http.post, "/v1/what-if", json=question)
        while service.events("what-if-requested") < 2:
            time.sleep(0.05)
        assert service.http.delete(path).status_code == 200
        refused = waiting.result()
    assert refused.status_code == 409, refused.text
    assert refused.json()["type"] == "urn:pace:problem:cancelled"
    anew = service.http.post("/v1/what-if", json=question, headers=ASYNC)
    assert anew.status_code == 202
    assert anew.headers["location"] != path
    assert service.http.delete(anew.headers["location"]).status_code == 200

    service.http.post("/v1/schedules", json={"profile": layered_profile(120)}, headers=ASYNC)
    newest, *_ = service.http.get("/v1/tasks").json()["items"]  # it may be done already
    path = f"/v1/tasks/{newest['id']}"
    *_, (event, task) = _events(service, path)
    assert event == "done"
    assert task.location is not None
    assert service.http.get(task.location).status_code == 200
    assert service.http.delete(path).status_code == 409


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"grid": {"bandwidth_gbps": [0]}}, 422, "bandwidth_gbps"),
        ({"grid": {"policies": ["magic"]}}, 422, "magic"),
        ({"grid": {"batch": [32]}}, 422, "batch"),
        ({"grid": {"bandwidth_gbps": list(range(1, 10_001)), "workers": [2, 4]}}, 413, "at most 50000"),
        ({"profile_id": "0" * 64}, 422, "profile_id"),
        ({"grid": {"target_efficiency": 1.5}}, 422, "target_efficiency"),
        ({"grid": {}, "magic": 1}, 422, "magic"),
    ],
)
@ON_SQLITE
def test_senseless_questions_are_refused(
    service: Caller, change: dict[str, Any], status: int, words: str
) -> None:
    """The refusal names what is wrong, before anything is simulated."""
    question = {"profile": layered_profile(3), "grid": GRID} | change
    answer = service.http.post("/v1/what-if", json=question)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]


@ON_SQLITE
def test_the_client_asks_as_the_library_does(service: Caller) -> None:
    """The same result as computed here, progress on the way, the library's own errors."""
    profile = parse_profile(json.dumps(layered_profile(40)))
    grid = Grid(bandwidth_gbps=tuple(range(1, 21)), policies=("fifo", "pace"), target_efficiency=0.9)
    cells: list[int] = []
    with Client(service.url, api_key=service.token, timeout_s=120) as client:
        assert client.what_if(profile, grid, progress=cells.append) == what_if(profile, grid)
        assert sum(cells) == grid.num_cells
        with pytest.raises(InvalidOptions, match="batch"):
            client.what_if(profile, Grid(batch=(1,)))


@ON_SQLITE
def test_the_command_line_asks_a_service(service: Caller, tmp_path: Path) -> None:
    """``pace what-if --service`` prints what ``pace what-if`` does."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(layered_profile(4)))
    options = ["--bandwidth-gbps", "1,10", "--policy", "ddp", "--csv"]
    asked = pace("what-if", path, *options, "--service", service.url, "--api-key", service.token)
    assert asked.returncode == 0, asked.stderr
    profile = parse_profile(path.read_text())
    assert asked.stdout == what_if(profile, Grid(bandwidth_gbps=(1.0, 10.0), policies=("ddp",))).to_csv()


@pytest.mark.races_with_machine(reason="the task must be cancelled while it runs")
def test_a_task_that_another_service_runs_is_cancelled(tmp_path: Path, database_url: str) -> None:
    """DELETE at one of two services ends the process of the other."""
    with ServiceProcess(tmp_path, database_url, lease_s=3, drain_s=0.1) as one, one.caller() as caller:
        path = caller.http.post("/v1/what-if", json=_long(caller, 3), headers=ASYNC).headers["location"]
        while not caller.http.get(path).raise_for_status().json()["num_done"]:
            time.sleep(0.1)
        with ServiceProcess(tmp_path, database_url) as other:
            assert other.http.delete(path).json()["state"] == "cancelled"
            while "pace_tasks_running 1.0" in caller.http.get("/metrics").text:
                time.sleep(0.1)
            waited = httpx.get(other.url + path, trust_env=False, verify=False).json()
            assert waited["state"] == "cancelled"
