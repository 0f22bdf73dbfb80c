"""Predictions over HTTP: answered as the library would, followed while they run, refused in one line."""

import json
from typing import Any

import pytest

from pace import InvalidSteps, StepsDocument
from pace_servers import PredictionOptions, predict
from pace_servers.service.client import ServersClient
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller

STEPS: dict[str, Any] = {
    "name": "two layers",
    "batch": 16,
    "ops": [
        {"name": "down/a", "resource": "downlink", "size_bytes": 3_000_000},
        {"name": "down/b", "resource": "downlink", "size_bytes": 1_000_000},
        {"name": "compute", "resource": "worker", "deps": ["down/a", "down/b"]},
        {"name": "up/a", "resource": "uplink", "size_bytes": 3_000_000, "deps": ["compute"]},
        {"name": "up/b", "resource": "uplink", "size_bytes": 1_000_000, "deps": ["compute"]},
    ],
    "steps": [{"duration_s": [0, 0, seconds, 0, 0]} for seconds in (0.5, 0.7, 1.1)],
    "link": {"bytes_per_s": 1e7},
}
OPTIONS = {"workers": [1, 2, 3], "servers": [1, 2], "steps": 40, "skip": 4, "seeds": 2}


@ON_SQLITE
def test_the_answer_is_the_librarys(service: Caller) -> None:
    """All numbers to the last bit; the same question again is answered from storage; CSV on request."""
    question = {"steps": STEPS, "options": OPTIONS}
    answer = service.http.post("/v1/predictions", json=question)
    assert answer.status_code == 201, answer.text
    expected = predict(
        StepsDocument.model_validate(STEPS), PredictionOptions.model_validate(OPTIONS), threads=2
    )
    assert answer.json()["prediction"] == json.loads(expected.model_dump_json())
    assert answer.json()["num_points"] == 6
    path = answer.headers["location"]
    assert service.http.get(path).content == answer.content
    again = service.http.post("/v1/predictions", json=question)
    assert (again.status_code, again.content) == (201, answer.content)
    assert service.events("prediction-answered", 1) == 1
    text = service.http.get(path, headers={"Accept": "text/csv"})
    assert text.text == expected.to_csv()
    listed = service.http.get("/v1/predictions").json()["items"]
    assert [item["id"] for item in listed] == [answer.json()["id"]]
    assert service.http.get("/v1/profiles").json()["items"] == []
    assert service.http.delete(path).status_code == 204
    assert service.http.get(path).status_code == 404
    assert service.http.delete(path).status_code == 404


@ON_SQLITE
def test_the_client_follows_the_task(service: Caller) -> None:
    """Every point is counted once, and the client returns the library's own object."""
    counted: list[int] = []
    steps = StepsDocument.model_validate(STEPS)
    options = PredictionOptions(workers=(1, 2), steps=60, skip=5, seeds=1)
    with ServersClient(service.url, service.token, timeout_s=250) as client:
        assert client.predict(steps, options, progress=counted.append) == predict(steps, options)
        assert sum(counted) in (0, 2)  # nothing is counted where the answer came at once
        with pytest.raises(InvalidSteps, match="cycle"):
            client.predict(_cyclic(steps), options)


def _cyclic(steps: StepsDocument) -> StepsDocument:
    ops = (steps.ops[0].model_copy(update={"deps": ("compute",)}), *steps.ops[1:])
    return steps.model_copy(update={"ops": ops})


@pytest.mark.parametrize(
    ("change", "status", "type_", "words"),
    [
        ({"steps": {**STEPS, "steps": []}}, 422, "invalid-steps", "steps"),
        (
            {"steps": {**STEPS, "link": {"bytes_per_s": 0}}},
            422,
            "invalid-steps",
            "bytes_per_s: expected a number above 0",
        ),
        ({"options": {**OPTIONS, "workers": [0]}}, 422, "invalid-options", "workers"),
        ({"options": {**OPTIONS, "skip": 40}}, 422, "invalid-options", "nothing is left"),
        ({"more": 1}, 422, "invalid-request", "more"),
        ({"options": {**OPTIONS, "discipline": "window"}}, 422, "invalid-options", "needs a window"),
        ({"options": {"workers": list(range(1, 1000)), "seeds": 1000}}, 413, "too-large", "simulations"),
    ],
)
@ON_SQLITE
def test_refusals_name_what_is_wrong(
    service: Caller, change: dict[str, Any], status: int, type_: str, words: str
) -> None:
    """One line, at once or when the task has found out."""
    answer = service.http.post("/v1/predictions", json={"steps": STEPS, "options": OPTIONS} | change)
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:pace:problem:{type_}"
    assert words in problem["detail"]
    assert "\n" not in problem["detail"]
