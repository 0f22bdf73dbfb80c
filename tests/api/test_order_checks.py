"""Order checks over HTTP: answered as the library would, refused in one line."""

import json
from typing import Any

import pytest

from pace import InvalidJobProgram, check_order, parse_job_program
from pace.client import Client
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller

pytestmark = ON_SQLITE

SUM = {"op": "all-reduce", "group": "world", "size_bytes": 4, "wait": "thread"}


def program(*calls: int) -> dict[str, Any]:
    """Return a job whose ranks sum so many times each."""
    return {
        "name": "sums",
        "groups": [{"name": "world", "communicators": [list(range(len(calls)))]}],
        "programs": [
            {"ranks": [rank], "threads": [{"operations": [SUM] * count}]} for rank, count in enumerate(calls)
        ],
    }


def test_the_answer_is_the_librarys(service: Caller) -> None:
    """A proof and a counterexample; asked again, it is answered from storage."""
    for job, streams in ((program(3, 3), "side-by-side"), (program(3, 2), "launch-order")):
        question = {"program": job, "streams": streams}
        answer = service.http.post("/v1/order-checks", json=question)
        assert answer.status_code == 201, answer.text
        expected = check_order(parse_job_program(json.dumps(job)), streams=streams)  # type: ignore[arg-type]
        assert answer.json()["report"] == json.loads(expected.model_dump_json())
        assert service.http.post("/v1/order-checks", json=question).content == answer.content
        assert service.http.get(answer.headers["location"]).content == answer.content
        brought = service.http.get(f"{answer.headers['location']}/program").content
        assert parse_job_program(brought) == parse_job_program(json.dumps(job))
    assert service.events("order-answered", 2) == 2
    listed = service.http.get("/v1/order-checks").json()["items"]
    assert [item["name"] for item in listed] == ["sums", "sums"]


def test_the_client_returns_what_the_library_would(service: Caller) -> None:
    """A proof and a counterexample; what is no job program is refused as the library refuses it."""
    with Client(service.url, service.token, timeout_s=250) as client:
        for document in (program(2, 2), program(2, 1)):
            job = parse_job_program(json.dumps(document))
            expected = check_order(job, streams="launch-order", launch_slots=3)
            assert client.check_order(job, streams="launch-order", launch_slots=3) == expected
        with pytest.raises(InvalidJobProgram, match="no such group"):
            client.check_order(job.model_copy(update={"groups": ()}))


def test_faults_are_named(service: Caller) -> None:
    """The group or the option at fault."""
    strange = program(1, 1)
    strange["groups"][0]["name"] = "other"
    for body, words in (
        ({"program": strange}, 'calls group "world": no such group'),
        ({"program": program(1, 1), "launch_slots": 0}, "launch_slots"),
        ({}, "program"),
    ):
        answer = service.http.post("/v1/order-checks", json=body)
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
