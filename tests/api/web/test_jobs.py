"""Jobs on the page: listed, found, opened; drift from what the runtime reports; tasks, cancelled."""

import json
import re

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Route, expect

from pace.api.questions.all_kinds import KINDS
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import LONG_NAME, milliseconds, report, until

pytestmark = ON_SQLITE


def test_jobs_tell_what_was_predicted_and_measured(visitor: Visitor, service: Caller) -> None:
    """Pages, filter and order; a job's schedules are deleted after a question only."""
    made = service.post_schedule(layered_profile(3), job=LONG_NAME).json()
    for measured_s in (0.02, 0.03):
        assert service.http.post("/v1/reports", json=report(made, measured_s)).status_code == 201
    profile_id = service.http.post("/v1/profiles", json=layered_profile(2)).json()["id"]
    for number in range(21):
        asked = {"profile_id": profile_id, "job": f"job {number:02}"}
        assert service.http.post("/v1/schedules", json=asked).status_code == 201
    page = visitor.go("jobs")
    jobs = page.get_by_role("region", name="Jobs", exact=True).locator("tbody tr")
    expect(jobs).to_have_count(20)
    page.get_by_role("button", name="Next jobs").click()
    expect(jobs).to_have_count(2)
    page.get_by_role("button", name="Job", exact=True).click()
    expect(jobs.first).to_contain_text(LONG_NAME.strip())
    page.get_by_label("Name contains").fill("VISION")
    expect(jobs).to_have_count(1)
    drift = 0.03 / made["schedule"]["predicted"]["iteration_s"] - 1
    expect(jobs.first).to_contain_text(f"+{drift * 100:.1f} %")
    jobs.first.get_by_role("link").click()
    expect(page.get_by_role("region", name="Reports").locator("tbody tr")).to_have_count(2)
    schedules = page.get_by_role("region", name="Schedules").locator("tbody tr")
    expect(schedules).to_contain_text(f"{service.tenant}'s")  # the name of the key
    expect(schedules).to_contain_text(milliseconds(0.03))
    page.get_by_role("button", name="Delete all schedules").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    expect(schedules).to_have_count(1)
    delete = page.get_by_role("button", name="Delete the schedule")
    for width in (360, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        box = delete.bounding_box()
        frame = page.get_by_role("region", name="Schedules").bounding_box()
        assert box is not None
        assert frame is not None
        assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1, width
    delete.click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("This job has no schedules")).to_be_visible()
    assert service.http.get("/v1/schedules", params={"job": LONG_NAME}).json()["items"] == []


def test_the_service_sorts_and_filters_and_the_list_refreshes_itself(
    visitor: Visitor, service: Caller
) -> None:
    """Over all jobs, not those of the page; drift is flagged in words; the tab is named by the job."""
    profile_id = service.http.post("/v1/profiles", json=layered_profile(2)).json()["id"]

    def ask(job: str, drift: float | None) -> None:
        made = service.http.post("/v1/schedules", json={"profile_id": profile_id, "job": job}).json()
        if drift is not None:
            measured_s = made["schedule"]["predicted"]["iteration_s"] * (1 + drift)
            assert service.http.post("/v1/reports", json=report(made, measured_s)).status_code == 201

    for job, drift in (("slow", 0.5), ("fast", -0.2), ("steady", 0.01)):
        ask(job, drift)
    for number in range(20):  # a page of them is asked for later
        ask(f"silent {number:02}", None)
    page = visitor.go("jobs")
    jobs = page.get_by_role("region", name="Jobs", exact=True).locator("tbody tr")
    expect(jobs).to_have_count(20)
    expect(jobs.filter(has_text="slow")).to_have_count(0)
    page.get_by_role("button", name="Measured against predicted").click()
    expect(jobs.first).to_contain_text("slower+50.0 %")
    expect(jobs.nth(1)).to_contain_text("faster-20.0 %")
    expect(page).to_have_url(re.compile("order=drift"))
    page.get_by_role("switch", name="Only drifted").check()
    expect(jobs).to_have_count(2)
    ask("late", 0.3)
    # Without anybody asking for it.
    expect(jobs).to_have_count(3)
    expect(jobs.nth(1)).to_contain_text("late")
    page.get_by_label("Name contains").fill("steady")
    expect(page.get_by_text("No job has drifted")).to_be_visible()
    page.get_by_role("button", name="Show all jobs").click()
    expect(jobs).to_have_count(20)
    page.get_by_label("Last request from").fill("2020-01-01")
    page.get_by_label("to", exact=True).fill("2020-12-31")
    expect(page.get_by_text("No job fits")).to_be_visible()
    page.get_by_label("to", exact=True).fill("")
    expect(jobs).to_have_count(20)
    page.get_by_role("button", name="Measured against predicted").click()  # again: the other way round
    expect(jobs.first).to_contain_text("steady")
    jobs.first.get_by_role("link").click()
    expect(page).to_have_title(re.compile("^steady . Jobs . PACE$"))


def test_drift_is_told_from_the_reports(visitor: Visitor, service: Caller) -> None:
    """Against the prediction, and against the first report under the same schedule, as the job goes on."""
    before = service.post_schedule(layered_profile(3), job="drifting").json()
    after = service.post_schedule(layered_profile(3, duration_s=0.002), job="drifting").json()
    for made, measured_s in ((before, 0.02), (before, 0.025), (before, 0.03), (after, 0.04)):
        service.http.post("/v1/reports", json=report(made, measured_s))
    page = visitor.go("jobs?job=drifting")
    schedules = page.get_by_role("region", name="Schedules").locator("tbody tr")
    expect(schedules).to_have_count(2)
    for made, measured_s in ((before, 0.03), (after, 0.04)):
        row = schedules.filter(has_text=made["profile_sha256"][:12])
        expect(row).to_contain_text(milliseconds(made["schedule"]["predicted"]["iteration_s"]))
        expect(row).to_contain_text(milliseconds(measured_s))
    rows = page.get_by_role("region", name="Reports").locator("tbody tr")
    expect(rows).to_have_count(4)
    since = [row.split("\t")[4] for row in rows.all_inner_texts()]
    assert sorted(since) == ["0.00 %", "0.00 %", "slower+25.0 %", "slower+50.0 %"]
    expect(page.get_by_role("figure", name="Drift of iteration times").locator("canvas")).to_be_visible()
    predicted_s = after["schedule"]["predicted"]["iteration_s"]
    for title, value in (
        ("Predicted", milliseconds(predicted_s)),
        ("Measured last", milliseconds(0.04)),
        ("Against predicted", f"+{(0.04 / predicted_s - 1) * 100:.1f} %"),
        ("Since the schedule began", "0.00 %"),
        ("Compared with no schedule", "0.00 %"),
    ):
        shown = page.locator(".numbers > div").filter(
            has=page.locator("dt", has_text=re.compile(f"^{title}$"))
        )
        expect(shown).to_contain_text(value)


def test_tasks_are_listed_and_cancelled(visitor: Visitor, service: Caller) -> None:
    """What is under way appears by itself."""
    page = visitor.go("jobs")
    expect(page.get_by_text("Nothing was requested yet")).to_be_visible()
    large = {"profile": layered_profile(3000), "grid": {"bandwidth_gbps": list(range(1, 600))}}
    task = service.http.post("/v1/what-if", json=large, headers={"Prefer": "respond-async"}).json()
    expect(page.get_by_role("region", name="Tasks under way").locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Cancel the what-if").click()
    row = page.get_by_role("region", name="Tasks", exact=True).get_by_role("row", name="what-if")
    expect(row).to_contain_text("cancelled")
    expect(row).to_contain_text("layered")  # what it was about
    expect(page.get_by_role("region", name="Tasks under way")).to_have_count(0)
    expect(page.get_by_text("Nothing runs or waits")).to_be_visible()
    assert service.http.get(f"/v1/tasks/{task['id']}").json()["state"] == "cancelled"


def test_a_failed_task_tells_what_to_do(visitor: Visitor, service: Caller) -> None:
    """Its reason ends with the remedy, and is shown to its end."""

    def refusal(asked: str) -> str:
        answer = service.http.post("/v1/graph-schedules", json=json.loads(asked))
        return str(answer.json()["detail"])

    asked = json.dumps({**KINDS["graph"].example, "memory_bytes": 1})
    node = refusal(asked).split('"')[1]
    detail = refusal(asked.replace(json.dumps(node), json.dumps("a layer with a long name " * 8)))
    assert detail.endswith("allow at least that")
    page = visitor.go("jobs")
    expect(page.get_by_role("region", name="Tasks", exact=True)).to_contain_text(detail)


def test_all_schedules_are_deleted_though_some_are_gone(visitor: Visitor, service: Caller) -> None:
    """What another tab has deleted stops nothing, and is no error."""
    made = [service.post_schedule(layered_profile(number), job="shared").json() for number in (1, 2, 3)]
    visitor.tolerated = lambda fault: "404" in fault
    page = visitor.go("jobs?job=shared")
    page.get_by_role("button", name="Delete all schedules").click()
    assert service.http.delete(f"/v1/schedules/{made[1]['id']}").status_code == 204
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("This job has no schedules")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert service.http.get("/v1/schedules", params={"job": "shared"}).json()["items"] == []


def test_reports_find_their_schedule_when_its_prediction_arrives_late(
    visitor: Visitor, service: Caller
) -> None:
    """Of two schedules of one profile, which only their predictions tell apart."""
    profile_id = service.http.post("/v1/profiles", json=layered_profile(12, duration_s=1e-4)).json()["id"]
    for options, measured_s in (({}, 0.02), ({"fusion": "none"}, 0.03)):
        asked = {"profile_id": profile_id, "job": "twice", "options": options}
        made = service.http.post("/v1/schedules", json=asked).json()
        assert service.http.post("/v1/reports", json=report(made, measured_s)).status_code == 201
    page = visitor.page
    held: list[Route] = []
    page.route("**/v1/schedules/*", lambda route: held.append(route))
    visitor.go("jobs?job=twice")
    expect(page.get_by_role("region", name="Reports").locator("tbody tr")).to_have_count(2)
    schedules = page.get_by_role("region", name="Schedules")
    expect(schedules).not_to_contain_text(milliseconds(0.03))
    until(page, lambda: len(held) == 2)
    for route in held:
        route.continue_()
    for measured_s in (0.02, 0.03):
        expect(schedules).to_contain_text(milliseconds(measured_s))


def test_who_comes_back_to_a_list_is_on_the_same_page(visitor: Visitor, service: Caller) -> None:
    """After a job of the second page, and after a reload; the tab itself leads to the first."""
    profile_id = service.http.post("/v1/profiles", json=layered_profile(2)).json()["id"]
    for number in range(22):
        asked = {"profile_id": profile_id, "job": f"job {number:02}"}
        assert service.http.post("/v1/schedules", json=asked).status_code == 201
    page = visitor.go("jobs")
    page.get_by_role("button", name="Next jobs").click()
    page.get_by_role("link", name="job 01").click()
    expect(page.get_by_role("heading", name="job 01")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("Page 2")).to_be_visible()
    expect(page.get_by_role("link", name="job 01")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="job 01")).to_be_visible()
    page.get_by_role("link", name="job 01").click()
    page.get_by_role("link", name="All jobs").click()
    expect(page.get_by_text("Page 1")).to_be_visible()


def test_what_is_not_there_leads_on(visitor: Visitor, service: Caller) -> None:
    """A link to a schedule that was deleted says so, and where the others are."""
    service.post_schedule(layered_profile(2), job="still there")
    visitor.tolerated = lambda fault: "404" in fault
    page = visitor.go(f"result?schedule={'0' * 32}")
    note = page.get_by_role("alert")
    expect(note).to_contain_text("Not found")
    note.get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("link", name="still there")).to_be_visible()
    expect(page.get_by_text(re.compile(r"Times are in UTC[+-]\d\d:\d\d"))).to_be_visible()
    expect(page.get_by_role("region", name="Jobs", exact=True).first).to_contain_text(
        re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
    )
