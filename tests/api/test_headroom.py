"""Headroom over HTTP: the kind of question that the documentation shows as an example."""

import json

from pace import parse_profile
from pace.whatif.headroom import headroom
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile

pytestmark = ON_SQLITE


def test_the_report_is_the_librarys(service: Caller) -> None:
    """All numbers; asked again, it is answered from storage; deleted, it is gone, and the profile stays."""
    profile = layered_profile(3)
    question = {"profile": profile, "clip": True}
    answer = service.http.post("/v1/headroom", json=question)
    assert answer.status_code == 201, answer.text
    expected = headroom(parse_profile(json.dumps(profile)), clip=True).to_document()
    assert answer.json()["headroom"] == json.loads(json.dumps(expected))
    path = answer.headers["location"]
    by_id = {"profile_id": answer.json()["profile_sha256"], "clip": True}
    assert service.http.post("/v1/headroom", json=by_id).content == answer.content
    assert service.http.post("/v1/headroom", json=by_id | {"clip": False}).json()["id"] not in path
    assert service.events("headroom-answered", 2) == 2
    listed = service.http.get("/v1/headroom").json()["items"]
    assert {item["profile_sha256"] for item in listed} == {by_id["profile_id"]}
    tasks = service.http.get("/v1/tasks?kind=headroom").json()["items"]
    assert path in [task["location"] for task in tasks]
    # Each kind finds its own.
    assert service.http.get(path.replace("headroom", "what-if")).status_code == 404
    assert service.http.delete(f"/v1/profiles/{by_id['profile_id']}").status_code == 409
    for item in listed:
        assert service.http.delete(f"/v1/headroom/{item['id']}").status_code == 204
    assert service.http.get(path).status_code == 404
    assert service.http.get(f"/v1/profiles/{by_id['profile_id']}").status_code == 200


def test_faults_are_named(service: Caller) -> None:
    """As for every question about a profile; unknown kinds of tasks are refused."""
    for body, words in (
        ({}, "profile_id"),
        ({"profile": {}}, "it has none of name, workers, ops, gradients"),
        ({"clip": 1}, "clip"),
    ):
        answer = service.http.post("/v1/headroom", json=body)
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
    assert service.http.get("/v1/tasks?kind=wish").status_code == 422
