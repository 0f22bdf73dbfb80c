"""Jobs, usage and windows over HTTP: what the page lists and draws."""

import zlib
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event, insert, update

from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.job_list import JobList, JobQuery
from pace.api.storage.records import ProfileRecord, QuestionRecord, ReportRecord, SolutionRecord, TaskRecord
from pace.api.workers.drawings import windows
from pace.client.page_documents import WindowRequest, WindowResult
from pace.documents.profile import Profile
from pace.simulation import make_policy, run_policy
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile


def solve(caller: Caller, job: str | None, *, num_layers: int = 3) -> dict[str, Any]:
    """Have a small profile scheduled for a job."""
    named = {} if job is None else {"job": job}
    answer = caller.post_schedule(layered_profile(num_layers), **named)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def names(caller: Caller, **asked: Any) -> list[str]:
    """Return the names of all jobs, page by page."""
    found: list[str] = []
    while True:
        answer = caller.http.get("/v1/jobs", params=asked)
        assert answer.status_code == 200, answer.text
        found += [item["job"] for item in answer.json()["items"]]
        if answer.json()["next"] is None:
            return found
        asked["cursor"] = answer.json()["next"]


def test_jobs_are_listed_by_page_order_and_name(service: Caller) -> None:
    """Newest first or by name, two on a page; a filter takes signs of patterns as they are."""
    for job in ("beta", "alpha_1", "Alpha%2", "gamma"):
        solve(service, job)
    solve(service, None)
    solve(service, "beta", num_layers=4)
    assert names(service, limit=2) == ["beta", "gamma", "Alpha%2", "alpha_1"]
    assert sorted(names(service, limit=2, order="name")) == sorted(["beta", "gamma", "Alpha%2", "alpha_1"])
    assert names(service, contains="ALPHA", limit=1) == ["Alpha%2", "alpha_1"]
    assert names(service, contains="%") == ["Alpha%2"]
    assert names(service, contains="_") == ["alpha_1"]
    assert names(service, contains="delta") == []
    (beta,) = service.http.get("/v1/jobs", params={"contains": "beta"}).json()["items"]
    assert (beta["num_schedules"], beta["num_models"]) == (2, 2)
    assert beta["measured_iteration_s"] is None
    token = service.token or ""
    assert beta["asked_by"] == token.split("_")[1]
    (newest, *_) = service.http.get("/v1/schedules", params={"job": "beta"}).json()["items"]
    assert (newest["asked_by"], newest["asked_at"]) == (beta["asked_by"], beta["asked_at"])
    wrong = service.http.get("/v1/jobs", params={"cursor": "bm9uZQ=="})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:pace:problem:invalid-request")


def test_names_are_ordered_and_found_alike_in_all_databases(service: Caller) -> None:
    """Whatever the database's language: by the characters' numbers, and in any case of any alphabet."""
    ordered = ["%", "B", "Z_", "_", "a b", "a-c", "ab", "b", "É", "Ö" * 200, "é", "日本", "😀"]
    for name in reversed(ordered):
        answer = service.post_schedule(layered_profile(2, name=name), job=name)
        assert answer.status_code == 201
    assert names(service, order="name", limit=5) == ordered
    assert names(service, order="schedules", reverse=True, limit=5) == ordered  # all have one
    for contained, found in (("É", {"É", "é"}), ("é", {"É", "é"}), ("b", {"B", "a b", "ab", "b"})):
        assert set(names(service, contains=contained)) == found
        listed = service.http.get("/v1/profiles", params={"contains": contained}).json()["items"]
        assert {profile["name"] for profile in listed} == found


def test_jobs_are_filtered_by_who_asked_and_when(shared_service: ServiceProcess) -> None:
    """By the last request of each job; moments without an offset are UTC."""
    with shared_service.tenant() as service:
        token = shared_service.token(service.tenant, "submit")
        with Caller(shared_service, service.tenant, token) as other:
            solve(other, "theirs")
            solve(other, "both")
        solve(service, "mine")
        solve(service, "both")
        mine, theirs = ((each or "").split("_")[1] for each in (service.token, token))
        assert names(service, asked_by=mine, limit=1) == ["both", "mine"]
        assert names(service, asked_by=theirs) == ["theirs"]
        assert names(service, asked_by="nobody", order="drift", min_drift=0.1) == []
        times = {
            item["job"]: datetime.fromisoformat(item["asked_at"])
            for item in service.http.get("/v1/jobs").json()["items"]
        }
        assert names(service, since=times["mine"].isoformat(), limit=1) == ["both", "mine"]
        assert names(service, before=times["mine"].isoformat()) == ["theirs"]
        naive = times["mine"].astimezone(UTC).replace(tzinfo=None).isoformat()
        assert names(service, since=naive, before=times["both"].isoformat()) == ["mine"]
        assert names(service, since="2020-01-01", asked_by=mine, contains="MI") == ["mine"]
        for asked in (
            {"since": "yesterday"},
            {"since": "0.5"},
            {"before": "-1"},
            {"before": "0001-01-01T00:00:00+12:00"},
            {"asked_by": ""},
        ):
            wrong = service.http.get("/v1/jobs", params=asked)
            assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:pace:problem:invalid-request")


def test_a_job_tells_its_newest_report(service: Caller) -> None:
    """Predicted, measured and plain times of the last report, next to the job's schedules."""
    made = solve(service, "reported")
    for measured_s in (0.02, 0.03):
        report = {
            "job": "reported",
            "fingerprint": made["fingerprint"],
            "profile_sha256": made["profile_sha256"],
            "predicted_iteration_s": 0.01,
            "measured_iteration_s": measured_s,
            "num_iterations": 50,
        }
        assert service.http.post("/v1/reports", json=report).status_code == 201
    (job,) = service.http.get("/v1/jobs").json()["items"]
    assert (job["predicted_iteration_s"], job["measured_iteration_s"]) == (0.01, 0.03)
    assert job["plain_iteration_s"] is None
    assert job["reported_at"] is not None


def test_jobs_are_sorted_and_filtered_by_what_they_report(service: Caller) -> None:
    """Over all pages and both ways; jobs without a report stay last; numbers of any size are compared."""
    reported = {"near": (0.01, 0.0101), "slow": (0.01, 0.03), "fast": (0.02, 0.01), "odd": (1e-300, 1e17)}
    for job in (*reported, "silent"):
        made = solve(service, job)
        if job in reported:
            report = {
                "job": job,
                "fingerprint": made["fingerprint"],
                "profile_sha256": made["profile_sha256"],
                "predicted_iteration_s": reported[job][0],
                "measured_iteration_s": reported[job][1],
                "num_iterations": 50,
            }
            assert service.http.post("/v1/reports", json=report).status_code == 201
    solve(service, "fast", num_layers=4)
    assert names(service, limit=2, order="measured") == ["odd", "slow", "near", "fast", "silent"]
    assert names(service, limit=2, order="measured", reverse=True) == [
        "fast",
        "near",
        "slow",
        "odd",
        "silent",
    ]
    assert names(service, limit=1, order="predicted")[0] == "fast"
    # What no quotient can be made of is as good as no report.
    assert names(service, limit=1, order="drift") == ["slow", "fast", "near", "silent", "odd"]
    assert names(service, limit=1, order="drift", reverse=True)[:3] == ["near", "fast", "slow"]
    assert names(service, limit=1, order="drift", min_drift=0.1) == ["slow", "fast"]
    assert names(service, limit=1, order="name", min_drift=0.001) == ["fast", "near", "slow"]
    assert names(service, order="schedules")[0] == "fast"
    assert names(service, limit=2, order="name", reverse=True)[0] == "slow"
    assert names(service, limit=2, reverse=True) == ["near", "slow", "odd", "silent", "fast"]
    cursor = service.http.get("/v1/jobs", params={"limit": 1, "order": "drift"}).json()["next"]
    wrong = service.http.get("/v1/jobs", params={"order": "measured", "cursor": cursor})
    assert (wrong.status_code, "for the same order" in wrong.json()["detail"]) == (422, True)
    for asked in ({"min_drift": -1}, {"min_drift": "nan"}, {"order": "luck"}):
        assert service.http.get("/v1/jobs", params=asked).status_code == 422


def test_profiles_are_found_by_a_part_of_their_name(service: Caller) -> None:
    """In any case, over all pages, with signs of patterns as they are."""
    for name in ("ResNet 50", "resnet_18", "vgg%16"):
        assert service.http.post("/v1/profiles", json=layered_profile(2, name=name)).status_code == 201

    def found(contains: str) -> list[str]:
        answer = service.http.get("/v1/profiles", params={"contains": contains})
        return [item["name"] for item in answer.json()["items"]]

    assert found("RESNET") == ["resnet_18", "ResNet 50"]
    assert found("%") == ["vgg%16"]
    assert found("_") == ["resnet_18"]
    assert found("bert") == []


def test_a_page_of_jobs_takes_two_statements(database_url: str) -> None:
    """However many jobs are on it, and one for the cursor's secret."""
    database = Database(Settings(database_url=database_url).parsed_database_url)
    now = datetime.now(UTC)
    shared = {"tenant": "one", "fingerprint": "0" * 64, "created_at": now}
    jobs = [f"job {number:02}" for number in range(40)]
    asked = {**shared, "kind": "schedule", "key": "k" * 64, "asked_at": now, "input_sha256": "1" * 64}
    times = {"profile_sha256": "1" * 64, "predicted_iteration_s": 1.0, "num_iterations": 5}
    with database.write() as connection:
        connection.execute(
            insert(SolutionRecord).values(tenant="one", key="k" * 64, document=b"{}", created_at=now)
        )
        connection.execute(
            insert(QuestionRecord),
            [
                {**asked, "id": f"{at:032x}", "job": job, "asked_by": f"by {job}", "document": b""}
                for at, job in enumerate(jobs)
            ],
        )
        connection.execute(
            insert(ReportRecord),
            [
                {**shared, **times, "id": f"{at:032x}", "job": job, "measured_iteration_s": float(at)}
                for at, job in enumerate(jobs[::2])
            ],
        )
    statements: list[str] = []
    event.listen(
        database.engine, "before_cursor_execute", lambda *found: statements.append(str(found[2])), named=False
    )
    page = JobList(database).page("one", JobQuery(order="name"), 30, None)
    assert len([text for text in statements if text.startswith("SELECT")]) == 2
    assert [item.job for item in page.items] == jobs[:30]
    assert [item.asked_by for item in page.items] == [f"by {job}" for job in jobs[:30]]
    expected = [at / 2 if at % 2 == 0 else None for at in range(30)]
    assert [item.measured_iteration_s for item in page.items] == expected
    database.close()


def test_tenants_see_their_own_jobs_and_usage(service: Caller, shared_service: ServiceProcess) -> None:
    """Another tenant's job of the same name is another job."""
    solve(service, "shared name")
    with shared_service.tenant() as other:
        assert names(other) == []
        before = other.http.get("/v1/usage").json()
        assert (before["tenant"], before["stored_bytes"]) == (other.tenant, 0)
        solve(other, "shared name")
        after = other.http.get("/v1/usage").json()
        assert after["stored_bytes"] > 1024
        assert (after["num_queued"], after["num_running"], after["scopes"]) == (
            0,
            0,
            ["read", "submit", "admin"],
        )
    (mine,) = service.http.get("/v1/jobs").json()["items"]
    assert mine["num_schedules"] == 1


@pytest.mark.parametrize(
    ("metadata", "batch", "unit"),
    [
        ({}, None, None),
        ({"batch": 32}, 96, "samples"),
        ({"batch": 4096, "batch_unit": "tokens"}, 12288, "tokens"),
    ],
)
def test_windows_say_what_a_batch_of_all_workers_is(
    metadata: dict[str, object], batch: float | None, unit: str | None
) -> None:
    """So that the page can give the speed under each policy in samples, images or tokens a second."""
    profile = Profile.model_validate({**layered_profile(2), "workers": 3, "metadata": metadata})
    request = WindowRequest(profile_id=profile.sha256, policies=("ddp",))
    packed = zlib.compress(profile.model_dump_json().encode())
    found = WindowResult.model_validate_json(windows(packed, None, request))
    assert (found.batch, found.batch_unit) == (batch, unit)


@ON_SQLITE
def test_windows_are_those_of_the_library(service: Caller) -> None:
    """Policies as ``simulate`` has them, the schedule as it predicts; another profile's is refused."""
    made = solve(service, None)
    asked = {
        "profile_id": made["profile_sha256"],
        "schedule_id": made["id"],
        "policies": ["ddp", "bytescheduler"],
    }
    answer = service.http.post("/v1/simulations/windows", json=asked)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    profile = Profile.model_validate(layered_profile(3))
    assert [row["name"] for row in found["rows"]] == ["schedule", "ddp", "bytescheduler"]
    times = [row["iteration_s"] for row in found["rows"]]
    expected = [run_policy(profile, make_policy(name)).iteration_s for name in ("ddp", "bytescheduler")]
    assert times == pytest.approx([made["schedule"]["predicted"]["iteration_s"], *expected])
    assert found["op_phases"] == ["backward"] * 3 + ["forward"] * 3
    other = solve(service, None, num_layers=4)
    wrong = service.http.post("/v1/simulations/windows", json={**asked, "schedule_id": other["id"]})
    assert (wrong.status_code, "schedule_id" in wrong.json()["detail"]) == (422, True)
    unknown = service.http.post("/v1/simulations/windows", json={**asked, "policies": ["hope"]})
    assert (unknown.status_code, unknown.json()["type"]) == (422, "urn:pace:problem:invalid-options")
    missing = service.http.post("/v1/simulations/windows", json={**asked, "schedule_id": "0" * 32})
    assert missing.status_code == 404


def test_the_newest_is_the_one_that_came_last_whatever_the_clock_said(
    service: Caller, shared_service: ServiceProcess
) -> None:
    """Rows that a clock dated years ahead come after those of now, in each list and in what jobs fetch."""
    first = solve(service, "moved", num_layers=3)
    solve(service, "other")
    report = {"job": "moved", "fingerprint": first["fingerprint"], "profile_sha256": first["profile_sha256"]}
    times = {"predicted_iteration_s": 0.01, "num_iterations": 5}

    def tell(measured_s: float) -> None:
        body = {**report, **times, "measured_iteration_s": measured_s}
        assert service.http.post("/v1/reports", json=body).status_code == 201

    tell(0.02)
    database = Database(
        Settings(database_url=str(shared_service.settings["database_url"])).parsed_database_url
    )
    ahead = datetime(2099, 1, 1, tzinfo=UTC)
    with database.write() as connection:
        for record in (QuestionRecord, ReportRecord, TaskRecord, ProfileRecord):
            dated = {"asked_at": ahead} if record is QuestionRecord else {}
            mine = record.tenant == service.tenant
            connection.execute(update(record).where(mine).values(created_at=ahead, **dated))
    database.close()
    tell(0.03)
    # The same model with another cost, so that both have one fingerprint.
    profile = layered_profile(3)
    profile["allreduce"] = {"kind": "affine", "latency_s": 0.002, "seconds_per_byte": 1e-9}
    second = service.post_schedule(profile, job="moved").json()
    assert (second["fingerprint"], second["id"] != first["id"]) == (first["fingerprint"], True)
    asked = {"job": "moved", "fingerprint": first["fingerprint"]}
    assert service.http.get("/v1/schedules", params=asked).json()["id"] == second["id"]
    items = {
        path: service.http.get(path).json()["items"]
        for path in ("/v1/schedules", "/v1/reports", "/v1/tasks", "/v1/profiles", "/v1/jobs")
    }
    assert items["/v1/schedules"][0]["id"] == second["id"]
    assert items["/v1/reports"][0]["measured_iteration_s"] == 0.03
    assert items["/v1/tasks"][0]["location"] == f"/v1/schedules/{second['id']}"
    assert items["/v1/profiles"][0]["id"] == second["profile_sha256"]
    assert [item["job"] for item in items["/v1/jobs"]] == ["moved", "other"]
    assert items["/v1/jobs"][0]["measured_iteration_s"] == 0.03
    assert items["/v1/jobs"][0]["asked_at"] < "2099"
