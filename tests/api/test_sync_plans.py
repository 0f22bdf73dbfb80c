"""Sync plans over HTTP: planned as the library would, refused in one line."""

import json
from typing import Any

import pytest

from pace import InvalidSync, OuterSync, WeightSync, check_outer, plan_outer, plan_sync
from pace.api.questions.registry import KINDS
from pace.api.questions.sync_plans import EXAMPLE_OUTER
from pace.client import Client
from pace.documents.sync.outer_plan import parse_outer_plan
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


def outer_sync(**changed: Any) -> OuterSync:
    """Return the example of streaming DiLoCo, with some fields changed."""
    return OuterSync.model_validate_json(json.dumps(EXAMPLE_OUTER | changed))


@pytest.mark.parametrize("torchft", [False, True])
def test_the_plan_of_streaming_diloco_is_the_librarys(service: Caller, torchft: bool) -> None:
    """It passes the checker, is stored with its document, and is answered from storage when asked again."""
    question = {"sync": EXAMPLE_OUTER, "torchft": torchft}
    answer = service.http.post("/v1/sync-plans", json=question)
    assert answer.status_code == 201, answer.text
    plan = parse_outer_plan(json.dumps(answer.json()["plan"]))
    assert plan == plan_outer(outer_sync(), torchft=torchft)
    assert check_outer(outer_sync(), plan) == []
    assert service.http.post("/v1/sync-plans", json=question).content == answer.content
    assert service.http.get(answer.headers["location"]).content == answer.content
    brought = service.http.get(f"{answer.headers['location']}/sync")
    assert OuterSync.model_validate_json(brought.content) == outer_sync()
    assert service.http.get("/v1/sync-plans").json()["items"][0]["name"] == "three layers"


def test_the_client_returns_what_the_library_would(service: Caller) -> None:
    """For both kinds of documents; what torchft has no form for is refused as the library refuses it."""
    weights = WeightSync.model_validate_json(json.dumps(KINDS["sync"].example["sync"]))
    with Client(service.url, service.token, timeout_s=250) as client:
        assert client.plan_sync(weights) == plan_sync(weights)
        assert client.plan_sync(outer_sync()) == plan_outer(outer_sync())
        assert client.plan_sync(outer_sync(), torchft=True) == plan_outer(outer_sync(), torchft=True)
        with pytest.raises(InvalidSync, match="torchft is for outer-sync documents"):
            client.plan_sync(weights, torchft=True)  # type: ignore[call-overload]  # what the test is about
        with pytest.raises(InvalidSync, match="two layers are named"):
            client.plan_sync(outer_sync().model_copy(update={"layers": outer_sync().layers[:1] * 2}))
        with pytest.raises(InvalidSync, match="3 fragments divide; period_steps is 20"):
            client.plan_sync(outer_sync(cutting="none"), torchft=True)


def test_faults_are_named(service: Caller) -> None:
    """The receiver, the tensor, the layer or the limit at fault, in one line."""
    lazy = json.loads(json.dumps(KINDS["sync"].example["sync"]))
    lazy["receivers"][1]["work"] = []
    layers = [{"name": f"layer {number}", "size_bytes": 4} for number in range(600)]
    for body, status, words in (
        ({"sync": lazy}, 422, 'receiver "engine 1" has no rate'),
        ({"sync": EXAMPLE_OUTER | {"layers": [{"name": "a", "size_bytes": 3}]}}, 422, 'layer "a"'),
        ({"sync": EXAMPLE_OUTER | {"max_delay_steps": 20}}, 422, "max_delay_steps 20 is not less"),
        ({"sync": KINDS["sync"].example["sync"], "torchft": True}, 422, "torchft is for outer-sync"),
        ({"sync": 3}, 422, "object"),
        ({"sync": EXAMPLE_OUTER | {"layers": layers, "period_steps": 10_000}}, 413, "600 layers"),
    ):
        answer = service.http.post("/v1/sync-plans", json=body)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"]
        assert "\n" not in answer.json()["detail"]
