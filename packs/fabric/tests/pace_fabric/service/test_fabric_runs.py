"""Simulated fabric runs over HTTP: tasks like others, answered as the library would."""

import json
from typing import Any

import pytest

from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation import simulate_fabric
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller

pytestmark = ON_SQLITE

SCENARIO: dict[str, Any] = {"name": "small", "machines": 3, "duration_s": 3, "delay_bound": 10}


def test_the_runs_are_the_librarys(service: Caller) -> None:
    """All numbers; the same question again is answered from storage; deleted, it is gone."""
    question = {"scenario": SCENARIO, "policies": ["mlfabric-a", "async", "ring"]}
    answer = service.http.post("/v1/fabric-runs", json=question)
    assert answer.status_code == 201, answer.text
    expected = [
        simulate_fabric(FabricScenario.model_validate(SCENARIO), policy).to_document()
        for policy in ("mlfabric-a", "async", "ring")
    ]
    assert answer.json()["run"]["policies"] == json.loads(json.dumps(expected))
    path = answer.headers["location"]
    assert service.http.get(path).content == answer.content
    again = service.http.post("/v1/fabric-runs", json=question)
    assert (again.status_code, again.content) == (201, answer.content)
    assert service.events("fabric-run-answered", 1) == 1
    listed = service.http.get("/v1/fabric-runs").json()["items"]
    assert [item["id"] for item in listed] == [answer.json()["id"]]
    assert service.http.delete(path).status_code == 204
    assert service.http.get(path).status_code == 404


def test_a_run_is_a_task_that_can_be_followed(service: Caller) -> None:
    """Asked for without waiting, it is a task with progress, and its location leads to the result."""
    question = {"scenario": SCENARIO | {"duration_s": 20}, "policies": ["mlfabric-s", "tree"]}
    answer = service.http.post("/v1/fabric-runs", json=question, headers={"Prefer": "respond-async"})
    assert answer.status_code in (201, 202)
    if answer.status_code == 202:
        assert (answer.json()["kind"], answer.json()["num_total"]) == ("fabric-run", 2)
    done = service.http.post("/v1/fabric-runs", json=question)
    assert [row["policy"] for row in done.json()["run"]["policies"]] == ["mlfabric-s", "tree"]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"policies": ["magic"]}, 422, "policies"),
        ({"scenario": {"machines": 0}}, 422, "machines"),
        ({"scenario": {"duration_s": 100_000}, "policies": ["ring", "async"]}, 413, "duration_s is 100000"),
    ],
)
def test_faults_are_named(service: Caller, change: dict[str, Any], status: int, words: str) -> None:
    """What is wrong, and where."""
    answer = service.http.post("/v1/fabric-runs", json={"scenario": SCENARIO} | change)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
