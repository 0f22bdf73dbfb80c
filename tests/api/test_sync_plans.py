"""Sync plans over HTTP: planned as the library would, refused in one line."""

import json

from pace import WeightSync, plan_sync
from pace.api.questions.registry import KINDS
from pace.documents.sync.sync_plan import parse_sync_plan
from tests.api.process import Caller


def test_the_plan_is_the_librarys(service: Caller) -> None:
    """It is stored together with its weight-sync document."""
    document = KINDS["sync"].example["sync"]
    answer = service.http.post("/v1/sync-plans", json={"sync": document})
    assert answer.status_code == 201, answer.text
    sync = WeightSync.model_validate_json(json.dumps(document))
    assert parse_sync_plan(json.dumps(answer.json()["plan"])) == plan_sync(sync)
    brought = service.http.get(f"{answer.headers['location']}/sync")
    assert WeightSync.model_validate_json(brought.content) == sync
    assert service.http.get("/v1/sync-plans").json()["items"][0]["name"] == sync.name


def test_faults_are_named(service: Caller) -> None:
    """The receiver or the tensor at fault."""
    document = json.loads(json.dumps(KINDS["sync"].example["sync"]))
    document["receivers"][1]["work"] = []
    answer = service.http.post("/v1/sync-plans", json={"sync": document})
    assert answer.status_code == 422
    assert 'receiver "engine 1" has no rate' in answer.json()["detail"]
