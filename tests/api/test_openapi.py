"""The OpenAPI document: every operation is described, and real answers have its headers and its form.

The examples in ``api/http/examples.json`` are answers of a real service. To write them anew, run
``PACE_WRITE_EXAMPLES=1 pytest tests/api/test_openapi.py``.
"""

import asyncio
import json
import os
import re
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from datamodel_code_generator import Formatter, InputFileType, generate
from fastapi.routing import APIRoute
from starlette.routing import Route

from pace.api.http.app import create_app
from pace.api.http.openapi import EXAMPLES, PATH, tags
from pace.api.http.pack_parts import http_parts
from pace.api.questions.all_kinds import KINDS
from pace.api.settings import Settings
from tests.api.process import Caller, ServiceProcess

# RFC 9110: no part of an answer's description, but of the connection or of its content.
_OF_THE_MESSAGE = {"content-type", "content-length", "date", "transfer-encoding"}
_LONGEST_TEXT = 600
_LAYERS = "name,forward_ms,backward_ms,parameter_bytes\nconv,1.5,3.0,1000000\nfc,0.5,1.0,4000000\n"

Operations = dict[str, tuple[str, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def operations() -> Operations:
    """Return method, path and description of every operation, by its id."""
    document = create_app(Settings()).openapi()
    return {
        operation["operationId"]: (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def successes(operations: Operations) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield id, status, media type and content of every success answer with a body."""
    for name, (_, _, operation) in operations.items():
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                for media, content in response.get("content", {}).items():
                    yield name, status, media, content


def test_every_operation_has_a_name_a_tag_and_a_summary(operations: Operations) -> None:
    """Names are those of functions; tags are described."""
    known = {tag["name"] for tag in tags()}
    for name, (_, _, operation) in operations.items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert set(operation["tags"]) <= known, name
        assert len(operation["tags"]) == 1, name
        assert operation["summary"], name
        assert operation["description"].rstrip().endswith((".", "`")), name
    assert {operation["tags"][0] for _, _, operation in operations.values()} == known


def test_the_document_is_written_once() -> None:
    """Anybody may ask for it, and writing it takes the event loop longer than most requests."""
    app = create_app(Settings())
    (route,) = [each for each in app.routes if isinstance(each, Route) and each.path == PATH]
    one, other = [asyncio.run(route.endpoint()) for _ in range(2)]
    assert one.body is other.body
    assert json.loads(one.body) == json.loads(json.dumps(app.openapi()))


def test_the_document_asks_for_keys_where_requests_do() -> None:
    """A service that listens on loopback only answers without one, so its document must not ask for any."""
    for settings, anybody in ((Settings(), True), (Settings(auth="required"), False)):
        paths = create_app(settings).openapi()["paths"]
        operations = [operation for methods in paths.values() for operation in methods.values()]
        needed = [operation["security"] for operation in operations if "security" in operation]
        assert len(needed) > 40
        assert all(({} in each) is anybody for each in needed)
        assert all({"HTTPBearer": []} in each for each in needed)


def test_a_clients_models_are_made_from_the_document(tmp_path: Path, operations: Operations) -> None:
    """By a generator that refuses dangling references; its models take the examples of all answers."""
    source, made = tmp_path / "openapi.json", tmp_path / "models.py"
    source.write_text(json.dumps(create_app(Settings()).openapi()), encoding="utf-8")
    generate(
        source,
        input_file_type=InputFileType.OpenAPI,
        output=made,
        formatters=[Formatter.BUILTIN],
        strict_refs=True,
    )
    models = runpy.run_path(str(made))
    read = 0
    for name, _, media, content in successes(operations):
        if media == "application/json" and "$ref" in content["schema"]:
            model = models[content["schema"]["$ref"].rpartition("/")[2]]
            assert model.model_validate_json(json.dumps(content["example"])), name
            read += 1
    assert read > 40


def test_every_success_answer_has_an_example(operations: Operations) -> None:
    """Whatever its type."""
    missing = [entry[:3] for entry in successes(operations) if "example" not in entry[3]]
    assert missing == []


def test_every_parameter_says_what_it_is(operations: Operations) -> None:
    """Identifiers in paths too."""
    bare = [
        (name, parameter["name"])
        for name, (_, _, operation) in operations.items()
        for parameter in operation.get("parameters", ())
        if not (parameter.get("description") or parameter.get("schema", {}).get("description"))
    ]
    assert bare == []


def test_real_answers_have_the_form_and_the_headers_of_the_document(
    tmp_path: Path, database_url: str, operations: Operations
) -> None:
    """Every header of an answer is described, and its fields are those of the example."""
    recorded: dict[str, dict[str, dict[str, Any]]] = {}
    with ServiceProcess(tmp_path, database_url, auth="required") as service, service.tenant() as caller:
        for name, answer in ask_everything(caller, operations):
            described = operations[name][2]["responses"]
            status = str(answer.status_code)
            assert status in described, (name, answer.text)
            sent = {header for header in answer.headers if header not in _OF_THE_MESSAGE}
            assert sent <= {header.lower() for header in described[status]["headers"]}, name
            media = answer.headers.get("content-type", "").partition(";")[0]
            if status.startswith("2") and answer.content:
                recorded.setdefault(name, {}).setdefault(status, {})[media] = body_of(answer, media)
    if os.environ.get("PACE_WRITE_EXAMPLES"):
        write_examples(recorded, operations)
        pytest.skip(f"wrote {EXAMPLES}, and those of packs")
    for name, status, media, content in successes(operations):
        if status == "202" and status not in recorded[name]:
            continue  # answered at once
        assert media in recorded[name][status], f"{name} {status}"
        assert form(recorded[name][status][media]) == form(content["example"]), f"{name} {status}"


def write_examples(recorded: dict[str, Any], operations: Operations) -> None:
    """Write answers to the files of the core and of packs, each its own."""
    left = dict(recorded)
    for part in http_parts():
        own = [name for name in recorded if part.tags.keys() & operations[name][2]["tags"]]
        taken = {name: left.pop(name) for name in own}
        part.examples.write_text(json.dumps(taken, indent=1) + "\n", encoding="utf-8")
    EXAMPLES.write_text(json.dumps(left, indent=1) + "\n", encoding="utf-8")


def ask_everything(caller: Caller, operations: Operations) -> Iterator[tuple[str, httpx.Response]]:
    """Ask for everything, each with the example of its body; yield the operation's id and the answer."""

    def ask(name: str, *, headers: dict[str, str] | None = None, **given: Any) -> tuple[str, httpx.Response]:
        method, path, operation = operations[name]
        parameters = {key: given.pop(key) for key in re.findall(r"{(\w+)}", path)}
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
        if "body" in given:
            body = given.pop("body")
        answer = caller.http.request(
            method, path.format(**parameters), json=body, params=given or None, headers=headers
        )
        return name, answer

    yield ask("healthz")
    while not (ready := ask("readyz"))[1].is_success:  # its processes start after it answers
        time.sleep(0.1)
    yield ready
    stored = ask("create_profile")
    yield stored
    profile = stored[1].json()
    table: dict[str, str | int] = {
        "format": "layers",
        "workers": 4,
        "bandwidth_gbps": 10,
        "name": "two-layers",
    }
    yield (
        "create_import",
        caller.http.post(
            "/v1/imports",
            params=table,
            content=_LAYERS,
            headers={"Content-Type": "application/octet-stream"},
        ),
    )
    about: dict[str, dict[str, Any]] = {}
    for kind in KINDS.values():
        name = kind.name.replace("-", "_")
        yield ask(f"create_{name}", body={**kind.example}, headers={"Prefer": "respond-async"})
        made = ask(f"create_{name}", body={**kind.example})
        yield made
        about[name] = made[1].json()
        for accept in ("application/json", *(["text/csv"] if kind.csv else [])):
            yield ask(f"get_{name}", question_id=about[name]["id"], headers={"Accept": accept})
        if brought := next(iter(operations.keys() & {f"get_{name}_{field}" for field in kind.example}), ""):
            yield ask(brought, question_id=about[name]["id"])
    one = about["schedule"]
    yield ask("find_schedules")
    yield ask("find_schedules", job=one["job"], fingerprint=one["fingerprint"])
    yield ask("get_timeline", question_id=one["id"])
    yield ask("get_chart", question_id=one["id"])
    for name in ("create_simulation", "create_windows"):
        asked = {"profile_id": profile["id"], "policies": ["ddp", "pace"]}
        yield ask(name, body=asked)
    asked = {"schedule_id": about["graph"]["id"], "policies": ["as-traced"]}
    yield ask("create_graph_windows", body=asked)
    for router in (router for part in http_parts() for router in part.routers):
        for route in router.routes:
            assert isinstance(route, APIRoute)
            yield ask(route.name)
    reported = operations["create_report"][2]["requestBody"]["content"]["application/json"]["example"]
    yield ask("create_report", body=reported | {"job": one["job"], "fingerprint": one["fingerprint"]})
    yield ask("list_reports")
    yield ask("list_jobs")
    listed = ask("list_tasks")
    yield listed
    task = listed[1].json()["items"][0]
    yield ask("get_task", task_id=task["id"])
    yield ask("follow_task", task_id=task["id"])
    long = {
        **KINDS["what-if"].example,
        "grid": {"bandwidth_gbps": [1 + n / 100 for n in range(2000)], "workers": [2, 4, 8]},
    }
    begun = caller.http.post("/v1/what-if", json=long, headers={"Prefer": "respond-async"})
    yield "create_what_if", begun
    yield ask("cancel_task", task_id=begun.json()["id"])
    key = ask("create_key")
    yield key
    yield ask("list_keys")
    yield ask("revoke_key", key_id=key[1].json()["id"])
    yield ask("get_usage")
    yield ask("metrics")
    yield ask("list_profiles")
    yield ask("get_profile", profile_id=profile["id"])
    for name, document in about.items():
        if f"list_{name}s" in operations:
            yield ask(f"list_{name}s")
        yield ask(f"delete_{name}", question_id=document["id"])
    # Refusals have headers too.
    yield ask("get_profile", profile_id="0" * 64)
    yield "get_usage", httpx.get(f"{caller.url}/v1/usage", trust_env=False, verify=False)


def body_of(answer: httpx.Response, media: str) -> Any:
    """Return a body as an example: JSON as it is, text cut short."""
    if media == "application/json":
        return answer.json()
    lines = answer.text.splitlines(keepends=True)
    text = ""
    for line in lines:
        if len(text) + len(line) > _LONGEST_TEXT:
            break
        text += line
    return text or answer.text[:_LONGEST_TEXT]


def form(example: Any) -> Any:
    """Return the names of an example's fields; of text, that it is text."""
    return sorted(example) if isinstance(example, dict) else type(example).__name__
