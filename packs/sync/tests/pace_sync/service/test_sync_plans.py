"""Sync plans over HTTP: planned as the library would, refused in one line."""

import functools
import json
from typing import Any

import pytest

from pace.api.http.app import create_app
from pace.api.questions.all_kinds import KINDS
from pace.api.settings import Settings
from pace_sync import (
    DeltaPlan,
    DeltaSync,
    InvalidSync,
    OuterSync,
    Resharding,
    WeightSync,
    check_deltas,
    check_outer,
    check_reshard,
    parse_delta_plan,
    parse_reshard_plan,
    plan_deltas,
    plan_outer,
    plan_reshard,
    plan_sync,
)
from pace_sync.documents.outer_plan import parse_outer_plan
from pace_sync.documents.sync_plan import parse_sync_plan
from pace_sync.service.client import SyncClient
from pace_sync.service.sync_plans import EXAMPLE_DELTAS, EXAMPLE_OUTER, EXAMPLE_RESHARDING
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller

pytestmark = ON_SQLITE


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


def resharding(**changed: Any) -> Resharding:
    """Return the example of shards, with some fields changed."""
    return Resharding.model_validate_json(json.dumps(EXAMPLE_RESHARDING | changed))


def deltas(**changed: Any) -> DeltaSync:
    """Return the example of deltas, with some fields changed."""
    return DeltaSync.model_validate_json(json.dumps(EXAMPLE_DELTAS | changed))


@functools.cache
def planned_deltas() -> DeltaPlan:
    """Return the library's plan for it, which takes seconds."""
    return plan_deltas(deltas())


def test_plans_of_shards_and_of_deltas_are_the_librarys(service: Caller) -> None:
    """They pass their checkers, are stored with their documents, and listed by the documents' names."""
    for asked, name in ((EXAMPLE_RESHARDING, "rows to columns"), (EXAMPLE_DELTAS, "two engines")):
        answer = service.http.post("/v1/sync-plans", json={"sync": asked})
        assert answer.status_code == 201, answer.text
        text = json.dumps(answer.json()["plan"])
        if asked is EXAMPLE_RESHARDING:
            streams = parse_reshard_plan(text)
            assert streams == plan_reshard(resharding())
            assert check_reshard(resharding(), streams) == []
        else:
            rule = parse_delta_plan(text)
            assert rule == planned_deltas()
            assert check_deltas(deltas(), rule) == []
        assert service.http.post("/v1/sync-plans", json={"sync": asked}).content == answer.content
        brought = service.http.get(f"{answer.headers['location']}/sync").json()
        assert brought == json.loads((resharding() if asked is EXAMPLE_RESHARDING else deltas()).to_json())
        assert service.http.get("/v1/sync-plans").json()["items"][0]["name"] == name


def test_every_example_of_the_description_is_answered(service: Caller) -> None:
    """One of each kind of document."""
    body = create_app(Settings()).openapi()["paths"]["/v1/sync-plans"]["post"]["requestBody"]
    examples = body["content"]["application/json"]["examples"]
    assert sorted(examples) == ["default", "delta-sync", "outer-sync", "resharding"]
    for example in examples.values():
        assert service.http.post("/v1/sync-plans", json=example["value"]).status_code == 201


def test_the_client_returns_what_the_library_would(service: Caller) -> None:
    """For all kinds of documents; what torchft has no form for is refused as the library refuses it."""
    weights = WeightSync.model_validate_json(json.dumps(KINDS["sync"].example["sync"]))
    with SyncClient(service.url, service.token, timeout_s=250) as client:
        assert client.plan_sync(weights) == plan_sync(weights)
        assert client.plan_sync(resharding()) == plan_reshard(resharding())
        assert client.plan_sync(deltas()) == planned_deltas()
        assert client.plan_sync(outer_sync()) == plan_outer(outer_sync())
        assert client.plan_sync(outer_sync(), torchft=True) == plan_outer(outer_sync(), torchft=True)
        with pytest.raises(InvalidSync, match="torchft is for outer-sync documents"):
            client.plan_sync(weights, torchft=True)  # type: ignore[call-overload]  # what the test is about
        with pytest.raises(InvalidSync, match="this is a resharding document"):
            client.plan_sync(resharding(), torchft=True)  # type: ignore[call-overload]  # likewise
        lost = resharding().model_copy(update={"senders": resharding().senders[::2]})
        with pytest.raises(InvalidSync, match=r'no sender holds up.*, which receiver "engine 0" wants'):
            client.plan_sync(lost)
        with pytest.raises(InvalidSync, match="two layers are named"):
            client.plan_sync(outer_sync().model_copy(update={"layers": outer_sync().layers[:1] * 2}))
        with pytest.raises(InvalidSync, match="a multiple of its 3 fragments; it is 20"):
            client.plan_sync(outer_sync(cutting="none"), torchft=True)


def test_faults_are_named(service: Caller) -> None:
    """The receiver, the tensor, the layer or the limit at fault, in one line."""
    lazy = json.loads(json.dumps(KINDS["sync"].example["sync"]))
    lazy["receivers"][1]["work"] = []
    layers = [{"name": f"layer {number}", "size_bytes": 4} for number in range(600)]
    holder, wanter = EXAMPLE_RESHARDING["senders"][0], EXAMPLE_RESHARDING["receivers"][0]
    rows = [{"tensor": "up", "begin": [row, 0], "shape": [1, 1024]} for row in range(2001)]
    columns = [{"tensor": "up", "begin": [0, place], "shape": [4096, 1]} for place in range(1024)]
    grid = {"senders": [holder | {"shards": rows[:2000]}], "receivers": [wanter | {"wants": columns}]}
    many = [wanter | {"name": f"engine {number}"} for number in range(20)]
    for body, status, words in (
        ({"sync": lazy}, 422, 'receiver "engine 1" has no rate'),
        ({"sync": EXAMPLE_OUTER | {"layers": [{"name": "a", "size_bytes": 3}]}}, 422, 'layer "a"'),
        ({"sync": EXAMPLE_OUTER | {"max_delay_steps": 20}}, 422, "max_delay_steps 20 is not less"),
        ({"sync": KINDS["sync"].example["sync"], "torchft": True}, 422, "torchft is for outer-sync"),
        ({"sync": 3}, 422, "object"),
        (
            {"sync": EXAMPLE_RESHARDING | {"senders": [holder | {"shards": [rows[0], rows[0]]}]}},
            422,
            'sender "trainer 0": up[0:1, 0:1024] and up[0:1, 0:1024] overlap',
        ),
        (
            {"sync": EXAMPLE_RESHARDING | {"senders": [holder | {"shards": rows}]}},
            422,
            "2001 boxes of tensor",
        ),
        ({"sync": EXAMPLE_RESHARDING | {"receiver": []}}, 422, "receiver: Extra inputs are not permitted"),
        (
            {"sync": EXAMPLE_RESHARDING | grid | {"receivers": [*grid["receivers"], *many[1:]]}},
            413,
            "product",
        ),
        (
            {"sync": EXAMPLE_DELTAS | {"changed": 1.5}},
            422,
            "changed: expected a number from 0 to 1",
        ),
        ({"sync": EXAMPLE_DELTAS | {"sync": lazy}}, 422, 'receiver "engine 1" has no rate'),
        ({"sync": EXAMPLE_DELTAS, "torchft": True}, 422, "this is a delta-sync document"),
        ({"sync": EXAMPLE_OUTER | {"layers": layers, "period_steps": 10_000}}, 413, "600 layers"),
    ):
        answer = service.http.post("/v1/sync-plans", json=body)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"]
        assert "\n" not in answer.json()["detail"]
