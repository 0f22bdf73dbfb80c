"""API keys: scopes, tenants, and the wall between tenants on every route."""

import json
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pace.api.questions.all_kinds import KINDS
from pace.cli import app
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile


def _run_keys(database_url: str, *arguments: str) -> Result:
    # In this process, as loading what it needs takes seconds; test_settings.py starts it as a program.
    done = CliRunner().invoke(app, ["keys", *arguments], env={"PACE_DATABASE_URL": database_url})
    assert done.exit_code == 0, done.output
    return done


def _keys(database_url: str, *arguments: str) -> Any:
    said = _run_keys(database_url, *arguments).stdout
    return json.loads(said) if "--json" in arguments else said


@pytest.fixture
def tenant() -> str:
    """Return the name of a tenant that is new."""
    return f"one-{uuid.uuid4().hex[:8]}"


def _as(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_scopes_are_kept(shared_service: ServiceProcess, tenant: str) -> None:
    """No key 401, wrong scope 403, right scope through; health needs none."""
    reader, submitter = shared_service.token(tenant, "read"), shared_service.token(tenant, "submit")
    request = {"profile": layered_profile(3)}
    forged = submitter[:-1] + ("A" if submitter[-1] != "A" else "B")
    for headers in ({}, _as("nonsense"), _as(forged), {"Authorization": "Basic eDp5"}):
        answer = shared_service.http.post("/v1/schedules", json=request, headers=headers)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
    assert shared_service.http.post("/v1/schedules", json=request, headers=_as(reader)).status_code == 403
    created = shared_service.http.post("/v1/schedules", json=request, headers=_as(submitter))
    assert created.status_code == 201
    path = created.headers["location"]
    assert shared_service.http.get(path, headers=_as(submitter)).status_code == 403
    assert shared_service.http.get(path, headers=_as(reader)).status_code == 200
    assert shared_service.http.delete(path, headers=_as(reader)).status_code == 403
    assert (
        shared_service.http.delete(path, headers=_as(shared_service.token(tenant, "admin"))).status_code
        == 204
    )
    for open_to_all in ("/healthz", "/readyz", "/metrics"):
        assert shared_service.http.get(open_to_all).status_code == 200


def test_a_revoked_key_opens_nothing(tmp_path: Path, database_url: str) -> None:
    """Revoked keys are listed as such, and refused at the latest after a restart."""
    with ServiceProcess(tmp_path, database_url, auth="required") as service:
        created = _keys(database_url, "create", "a key", "--tenant", "one", "--scope", "read", "--json")
        token = created["token"]
        assert service.http.get("/v1/profiles", headers=_as(token)).status_code == 200
        key_id = token.split("_")[1]
        _keys(database_url, "revoke", key_id)
        listed = _keys(database_url, "list", "--json")
        assert [(key["id"], key["revoked_at"] is None) for key in listed] == [(key_id, False)]
        service.kill()
        service.start()
        assert service.http.get("/v1/profiles", headers=_as(token)).status_code == 401


@pytest.mark.parametrize("ending", ["revoked", "expired"])
def test_the_events_of_a_task_end_with_the_key(shared_service: ServiceProcess, ending: str) -> None:
    """Who follows a task must not learn more than with a new request."""
    with shared_service.tenant() as admin:
        grid = {"bandwidth_gbps": [1 + number / 10 for number in range(4000)], "workers": [4, 8]}
        asked = {"profile": layered_profile(200), "grid": grid}
        task = admin.http.post("/v1/what-if", json=asked, headers={"Prefer": "respond-async"}).json()
        expires_at = (datetime.now(UTC) + timedelta(seconds=4)).isoformat() if ending == "expired" else None
        wanted = {"name": "follower", "scopes": ["read"], "expires_at": expires_at}
        key = admin.http.post("/v1/keys", json=wanted).raise_for_status().json()
        events = f"/v1/tasks/{task['id']}/events"
        with shared_service.http.stream("GET", events, headers=_as(key["token"]), timeout=30) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            next(lines)
            if ending == "revoked":
                admin.http.delete(f"/v1/keys/{key['id']}").raise_for_status()
            for _ in lines:
                pass
        assert admin.http.get(f"/v1/tasks/{task['id']}").json()["state"] in ("queued", "running")
        admin.http.delete(f"/v1/tasks/{task['id']}").raise_for_status()


def test_secrets_are_nowhere(tmp_path: Path) -> None:
    """The database and the log of a service that was used hold no secret."""
    url = f"sqlite:///{tmp_path / 'pace.db'}"
    with ServiceProcess(tmp_path, url, auth="required") as service:
        token = service.token("one", "read", "submit")
        service.http.post("/v1/schedules", json={"profile": layered_profile(2)}, headers=_as(token))
        secret = token.split("_", 2)[2]
        assert secret not in service.log_path.read_text()
        assert secret not in _keys(url, "list")
    with sqlite3.connect(tmp_path / "pace.db") as connection:
        assert secret not in "\n".join(connection.iterdump())
    connection.close()


def test_writes_are_audited(shared_service: ServiceProcess, tenant: str) -> None:
    """Each write leaves a line: what, by which key, of which tenant, in which request."""
    token = shared_service.token(tenant, "submit", "admin")
    headers = _as(token) | {"X-Request-ID": "from-the-test"}
    created = shared_service.http.post("/v1/schedules", json={"profile": layered_profile(3)}, headers=headers)
    shared_service.http.delete(created.headers["location"], headers=headers)
    audited = [entry for entry in shared_service.log() if entry.get("logger") == "pace.audit"]
    lines = [entry for entry in audited if entry["tenant"] == tenant]
    assert [line["event"] for line in lines] == ["schedule-requested", "schedule-deleted"]
    for line in lines:
        assert line["schedule"] == created.json()["id"]
        assert line["key"] == token.split("_")[1]
        assert line["request_id"] == created.headers["x-request-id"] == "from-the-test"


def test_keys_made_on_the_command_line_are_audited(tmp_path: Path) -> None:
    """Each leaves the line of the audit log on stderr: who, and which key; no secret."""
    url = f"sqlite:///{tmp_path / 'pace.db'}"
    created = _run_keys(url, "create", "a key", "--tenant", "one", "--scope", "read")
    token = created.stdout.strip()
    key_id = token.split("_")[1]
    revoked = _run_keys(url, "revoke", key_id)
    lines = [json.loads(done.stderr) for done in (created, revoked)]
    assert [line["event"] for line in lines] == ["key-created", "key-revoked"]
    assert (lines[0]["tenant"], lines[0]["scopes"], lines[0]["new_key"]) == ("one", "read", key_id)
    assert lines[1]["revoked_key"] == key_id
    assert all(line["logger"] == "pace.audit" and line["uid"] == os.getuid() for line in lines)
    assert token.split("_", 2)[2] not in created.stderr


@pytest.mark.parametrize("refused", ["a\udcff", "a\nb", "", " ", "x" * 201])
def test_names_that_the_service_refuses_are_refused(refused: str, tmp_path: Path) -> None:
    """Of a key and of a tenant, in one line."""
    for named, given in (("NAME", [refused]), ("--tenant", ["a key", "--tenant", refused])):
        url = f"sqlite:///{tmp_path / 'pace.db'}"
        done = CliRunner().invoke(app, ["keys", "create", *given, "--database-url", url])
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{named}: expected 1 to " in done.stderr


def test_a_key_whose_token_cannot_be_shown_is_revoked(tmp_path: Path) -> None:
    """And neither this nor a list that cannot be shown is a traceback."""
    command = [sys.executable, "-m", "pace", "keys"]
    url = ["--database-url", f"sqlite:///{tmp_path / 'pace.db'}"]
    for arguments in (["create", "a key"], ["list"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*command, *arguments, *url], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 3, done.stderr
        assert done.stderr.endswith("pace: No space left on device\n")
        assert "Traceback" not in done.stderr
    (key,) = _keys(url[1], "list", "--json")
    assert key["revoked_at"] is not None


@pytest.mark.pack("fabric")
def test_tenants_see_nothing_of_each_other(shared_service: ServiceProcess) -> None:
    """Every route that reads, lists or deletes is tried from both sides of the wall."""
    one, other = (shared_service.tenant().http for _ in range(2))
    profile = layered_profile(250)
    one.post("/v1/schedules", json={"profile": profile}, headers={"Prefer": "respond-async"})
    task = f"/v1/tasks/{one.get('/v1/tasks').json()['items'][0]['id']}"  # it may be done already
    mine = one.post("/v1/schedules", json={"profile": profile, "job": "train"}).raise_for_status()
    report = {
        "job": "train",
        "fingerprint": mine.json()["fingerprint"],
        "profile_sha256": mine.json()["profile_sha256"],
        "predicted_iteration_s": 0.1,
        "measured_iteration_s": 0.11,
        "num_iterations": 50,
    }
    one.post("/v1/reports", json=report).raise_for_status()
    profile_path = f"/v1/profiles/{mine.json()['profile_sha256']}"
    newest = f"/v1/schedules?job=train&fingerprint={mine.json()['fingerprint']}"
    path = mine.headers["location"]
    question = {"profile_id": mine.json()["profile_sha256"], "grid": {"bandwidth_gbps": [1, 10]}}
    what_if_path = one.post("/v1/what-if", json=question).headers["location"]
    headroom_path = one.post("/v1/headroom", json={"profile_id": mine.json()["profile_sha256"]}).headers[
        "location"
    ]
    # Kinds that bring documents of their own.
    own = [kind for kind in KINDS.values() if not kind.about_profile]
    own_paths = {
        kind.name: one.post(kind.path, json={**kind.example}).raise_for_status().headers["location"]
        for kind in own
    }
    walled = [
        headroom_path,
        *(path, f"{path}/timeline", f"{path}/chart", profile_path, newest),
        *(task, f"{task}/events", what_if_path),
        *own_paths.values(),
        *(f"{own_paths[kind.name]}/{kind.input_name}" for kind in own),
    ]
    lists = [
        "/v1/schedules",
        "/v1/profiles",
        "/v1/reports",
        "/v1/what-if",
        "/v1/headroom",
        "/v1/tasks",
        "/v1/jobs",
        *(kind.path for kind in own),
    ]

    document = one.get("/openapi.json").json()
    tried = {
        "/v1/schedules/{question_id}",
        "/v1/schedules/{question_id}/timeline",
        "/v1/schedules/{question_id}/chart",
        "/v1/profiles/{profile_id}",
        "/v1/tasks/{task_id}",
        "/v1/tasks/{task_id}/events",
        "/v1/what-if/{question_id}",
        "/v1/simulations",
        "/v1/headroom/{question_id}",
        *(f"{kind.path}/{{question_id}}" for kind in own),
        *(f"{kind.path}/{{question_id}}/{kind.input_name}" for kind in own),
        "/v1/transfer-plans",  # stores nothing: there is nothing of a tenant to be seen
        "/v1/imports",  # stores a profile: see above
        # Tried below.
        "/v1/simulations/windows",
        "/v1/simulations/graph-windows",
        "/v1/usage",
        "/v1/keys",
        "/v1/keys/{key_id}",
        *lists,
    }
    assert {path for path in document["paths"] if path.startswith("/v1/")} == tried, "a route without a test"

    for path in walled:
        assert one.get(path).status_code == 200, path
        assert other.get(path).status_code == 404, path
        if path in (mine.headers["location"], profile_path, task, what_if_path, *own_paths.values()):
            assert other.delete(path).status_code == 404, path
    for path in lists:
        assert one.get(path).json()["items"], path
        assert other.get(path).json()["items"] == [], path
    by_id = {"profile_id": mine.json()["profile_sha256"]}
    assert other.post("/v1/schedules", json=by_id).status_code == 422
    assert other.post("/v1/what-if", json=question).status_code == 422
    simulated = by_id | {"policies": ["fifo"]}
    assert one.post("/v1/simulations", json=simulated).status_code == 200
    assert other.post("/v1/simulations", json=simulated).status_code == 422
    laid_out = by_id | {"schedule_id": mine.json()["id"], "policies": ["fifo"]}
    assert one.post("/v1/simulations/windows", json=laid_out).status_code == 200
    assert other.post("/v1/simulations/windows", json=laid_out).status_code == 422
    graph_row = {"schedule_id": own_paths["graph"].rpartition("/")[2]}
    assert one.post("/v1/simulations/graph-windows", json=graph_row).status_code == 200
    assert other.post("/v1/simulations/graph-windows", json=graph_row).status_code == 404
    assert one.get("/v1/usage").json() != other.get("/v1/usage").json()
    # Its own copy: solved for the other tenant as well, under another id.
    theirs = other.post("/v1/schedules", json={"profile": profile, "job": "train"})
    assert theirs.status_code == 201
    assert theirs.json()["id"] != mine.json()["id"]
    assert theirs.json()["schedule"] == mine.json()["schedule"]
    assert other.post("/v1/what-if", json=question).headers["location"] != what_if_path
    assert one.delete(what_if_path).status_code == 204
    assert one.delete(mine.headers["location"]).status_code == 204
    assert other.get(newest).status_code == 200
    one.close()
    other.close()


def test_a_service_for_others_wants_keys(tmp_path: Path) -> None:
    """Only loopback may do without keys, and says so in the log."""
    from pace.api.settings import Settings

    assert Settings(host="0.0.0.0").needs_keys
    assert Settings(host="service.example").needs_keys
    assert not Settings(host="127.0.0.1").needs_keys
    assert not Settings(host="::1").needs_keys
    assert Settings(host="127.0.0.1", auth="required").needs_keys
    with ServiceProcess(tmp_path) as service:
        service.http.get("/healthz")
        assert service.events("auth-disabled", 1)


def test_admins_make_and_revoke_keys_over_http(service: Caller) -> None:
    """A key works until it is revoked; it tells when it was used; others' keys are out of reach."""
    asked = {"name": "a robot", "scopes": ["read"], "expires_at": "2100-01-01T00:00:00Z"}
    created = service.http.post("/v1/keys", json=asked)
    assert created.status_code == 201
    assert "no-store" in created.headers["cache-control"]
    key = created.json()
    assert (key["name"], key["scopes"], key["expires_at"]) == ("a robot", ["read"], asked["expires_at"])
    assert service.http.get("/v1/profiles", headers=_as(key["token"])).status_code == 200
    assert service.http.get("/v1/keys", headers=_as(key["token"])).status_code == 403

    def listed() -> dict[str, Any]:
        keys = {item["id"]: item for item in service.http.get("/v1/keys").json()["items"]}
        assert len(keys) == 2  # this one and the caller's own
        found: dict[str, Any] = keys[key["id"]]
        return found

    while listed()["last_used_at"] is None:
        time.sleep(0.02)
    assert "token" not in listed()
    with service.process.tenant() as other:
        assert other.http.delete(f"/v1/keys/{key['id']}").status_code == 404
        assert key["id"] not in other.http.get("/v1/keys").text
    assert service.http.delete(f"/v1/keys/{key['id']}").status_code == 204
    assert service.http.get("/v1/profiles", headers=_as(key["token"])).status_code == 401
    assert service.http.delete(f"/v1/keys/{key['id']}").status_code == 404
    assert listed()["revoked_at"] is not None
    senseless = ({"expires_at": "2001-01-01T00:00:00Z"}, {"expires_at": "9999-12-31T23:59:59-23:59"})
    for wrong in ({"scopes": ["all"]}, {"name": ""}, *senseless):
        assert service.http.post("/v1/keys", json={**asked, **wrong}).status_code == 422


def test_a_key_ends_at_its_time(service: Caller) -> None:
    """To the second, though it was found valid just before."""
    ends = datetime.now(UTC) + timedelta(seconds=2)
    asked = {"name": "brief", "scopes": ["read"], "expires_at": ends.isoformat()}
    token = service.http.post("/v1/keys", json=asked).json()["token"]
    while (answer := service.http.get("/v1/profiles", headers=_as(token))).status_code == 200:
        assert datetime.now(UTC) < ends + timedelta(seconds=30)
        time.sleep(0.05)
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]
    assert datetime.now(UTC) >= ends


def test_keys_of_the_command_line_end(tmp_path: Path) -> None:
    """And are listed as such."""
    url = f"sqlite:///{tmp_path / 'pace.db'}"
    _keys(url, "create", "ended", "--expires-in-days", "0")
    _keys(url, "create", "valid", "--expires-in-days", "9")
    states = {
        line.split("  ")[2]: line.split("  ")[4].split(" 2")[0] for line in _keys(url, "list").splitlines()
    }
    assert states == {"ended": "expired", "valid": "valid until"}


@pytest.mark.parametrize("days", ["1e300", "-1", "nan"])
def test_ends_that_no_calendar_has_are_refused(days: str) -> None:
    """By a message of the command line, before there is a database."""
    asked = CliRunner().invoke(app, ["keys", "create", "robot", "--expires-in-days", days])
    assert (asked.exit_code, "--expires-in-days" in asked.output) == (2, True), asked.output
