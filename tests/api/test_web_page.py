"""The page in a real browser against a real service: every flow, by mouse and keyboard, from one origin."""

import csv
import json
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, FilePayload, Page, expect

from pace.checker import check
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.simulation import make_policy, simulate
from pace.throughput import steps_from_profile
from tests.api.chromium import Visitor, chromium
from tests.api.forwarder import Forwarder
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile

FABRIC = Path(__file__).parents[2] / "examples" / "fabric"
TABLE = b"name,forward_ms,backward_ms,parameter_bytes\nfirst,1,2,4000000\nsecond,3,4,8000000\n"
LONG_NAME = "a training job of the vision team with a name that is as long as nobody would choose " * 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start one browser for all tests."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def process(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start one service that wants keys."""
    del browser  # without one, no service is needed either
    with ServiceProcess(tmp_path_factory.mktemp("page"), auth="required") as started:
        yield started


@pytest.fixture
def caller(process: ServiceProcess) -> Iterator[Caller]:
    """Return a new tenant of the service."""
    with process.tenant() as made:
        yield made


@pytest.fixture
def visitor(browser: Browser, caller: Caller) -> Iterator[Visitor]:
    """Open a window that has the tenant's key."""
    with Visitor(browser, caller.url, caller.token) as made:
        yield made


def drop(page: Page, label: str, name: str, content: bytes) -> None:
    """Choose a file."""
    page.get_by_label(label).set_input_files(
        FilePayload(name=name, mimeType="application/octet-stream", buffer=content)
    )


def drawn(page: Page) -> None:
    """Wait until there is a chart."""
    page.wait_for_selector(".gantt path[d^=M]")


def milliseconds(seconds: float) -> str:
    """Return a time as tables show it."""
    return f"{seconds * 1e3:.3f} ms"


def test_the_page_may_load_nothing_from_elsewhere(process: ServiceProcess) -> None:
    """Its policy allows its own files and no inline script; the files are served, and asked for anew."""
    page = process.http.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert re.findall(r"<script(?![^>]*\bsrc=)|\son\w+=|\bstyle=", page.text) == []
    for path in re.findall(r'(?:src|href)="(web/[^"]+)"', page.text):
        asset = process.http.get(f"/{path}")
        assert (asset.status_code, asset.headers["cache-control"]) == (200, "no-cache")
        again = process.http.get(f"/{path}", headers={"If-None-Match": asset.headers["etag"]})
        assert again.status_code == 304
    assert process.http.get("/web/../service.py").status_code == 404


def test_from_a_file_to_everything_that_can_be_taken_along(visitor: Visitor, tmp_path: Path) -> None:
    """Numbers, chart, tables and downloads are the service's; clipping asks anew; the link shows the same."""
    page = visitor.go()
    expect(page.get_by_text("Nothing is stored yet")).to_be_visible()
    profile = Profile.model_validate(layered_profile(12, name=f"layered {LONG_NAME[:120]}"))
    drop(page, "Drop a file here", "profile.json", profile.model_dump_json().encode())
    drawn(page)
    ddp = simulate(profile, make_policy("ddp")).iteration_s
    row = page.get_by_role("region", name="Policies").get_by_role("row", name="PyTorch DDP")
    expect(row).to_contain_text(milliseconds(ddp))

    def take(button: str) -> bytes:
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        path = tmp_path / download.value.suggested_filename.replace(" ", "_")[-60:]
        download.value.save_as(path)
        return path.read_bytes()

    schedule = Schedule.model_validate_json(take("Schedule (JSON)"))
    assert check(profile, schedule) == []
    pace = page.get_by_role("region", name="Policies").get_by_role("row", name="PACE, this schedule")
    expect(pace).to_contain_text(milliseconds(schedule.predicted.iteration_s))
    parts = page.locator(".sum b").all_inner_texts()
    shown = [float(part.removesuffix(" ms")) for part in parts]
    assert sum(shown[:3]) == pytest.approx(shown[3], abs=0.002)
    rows = list(csv.DictReader(take("Segments (CSV)").decode().splitlines()))
    assert [int(row["size_bytes"]) for row in rows] == [each.size_bytes for each in schedule.segments]
    assert json.loads(take("Chrome trace"))["traceEvents"]
    picture = ElementTree.fromstring(take("Chart as SVG"))
    assert picture.tag.endswith("svg")
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}path")) > 10

    page.get_by_role("button", name="Size").click()
    sizes = page.get_by_role("region", name="Groups").locator("tbody tr")
    assert sizes.count() == min(len(schedule.groups), 25)
    page.get_by_role("group", name="Table").get_by_role("button", name="Segments").click()
    expect(page.get_by_role("region", name="Segments", exact=True)).to_be_visible()

    page.get_by_label("FIFO").check()
    fifo = page.get_by_role("region", name="Policies").get_by_role("row", name="FIFO")
    expect(fifo).to_contain_text(milliseconds(simulate(profile, make_policy("fifo")).iteration_s))
    page.get_by_role("switch", name="Clipping").check()
    clipped = simulate(profile.replace(update="global-norm"), make_policy("ddp")).iteration_s
    expect(row).to_contain_text(milliseconds(clipped))
    # Another schedule, whose windows are laid out anew.
    expect(page.get_by_text("This schedule is in two halves")).to_be_visible()
    expect(page.get_by_text("Simulating…")).to_have_count(0)
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile("clip=1.*from="))
    axis = page.locator(".axis text").all_text_contents()
    assert len(axis) > 3
    with page.context.new_page() as same:
        same.goto(page.url)
        drawn(same)
        expect(same.get_by_role("switch", name="Clipping")).to_be_checked()
        expect(same.get_by_label("FIFO")).to_be_checked()
        expect(same.locator(".axis text")).to_have_text(axis)


def test_faults_name_their_field_and_can_be_mended(visitor: Visitor) -> None:
    """A table needs a cost; once it is given the table is read. Nonsense is refused in words."""
    page = visitor.go()
    visitor.tolerated = lambda fault: "status of 422" in fault
    drop(page, "Drop a file here", "layers.csv", TABLE)
    problem = page.get_by_role("alert")
    expect(problem.locator("code")).to_have_text("bandwidth_gbps")
    page.get_by_text("What the file does not say").click()
    page.get_by_label("Bandwidth of a ring, Gb/s").fill("10")
    page.get_by_label("Workers").fill("4")
    drop(page, "Drop a file here", "layers.csv", TABLE.replace(b"3,4", b"3,x"))
    expect(problem).to_contain_text("line 3: backward_ms is 'x'")
    drop(page, "Drop a file here", "layers.csv", TABLE)
    drawn(page)
    expect(page.get_by_role("heading", name="layers")).to_contain_text("4 workers")


@pytest.mark.races_with_machine(reason="a question is superseded while its task runs")
def test_what_if_answers_follow_the_sliders_and_the_link(visitor: Visitor, caller: Caller) -> None:
    """The swept answer is the service's; a new question supersedes one that runs; the link shows the same."""
    made = caller.http.post("/v1/profiles", json=layered_profile(6)).json()
    page = visitor.go(f"what-if?profile={made['id']}&policies=optimal,ddp&low=1&high=20")
    points = page.get_by_role("region", name="Simulated points").locator("tbody tr")
    expect(points).to_have_count(28)
    page.wait_for_selector("canvas")
    page.get_by_label("Workers, slider").fill("40")
    page.get_by_role("button", name="Speed-up over DDP").click()
    expect(page).to_have_url(re.compile("workers=200.*metric=speedup"))
    page.get_by_label("Over", exact=True).select_option("compression")
    expect(page.get_by_role("button", name="Compression, times")).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    latest = caller.http.get("/v1/what-if").json()["items"][0]
    cells = caller.http.get(f"/v1/what-if/{latest['id']}").json()["what_if"]["cells"]
    assert {cell["workers"] for cell in cells} == {200}
    assert len({cell["compression"] for cell in cells}) > 10
    first = points.first.inner_text()
    visitor.go(f"what-if?profile={made['id']}&policies=optimal,ddp&workers=200&over=compression")
    expect(points.first).to_have_text(re.compile(re.escape(first.split()[0])))
    assert points.first.inner_text() == first
    # A question of half a minute at the least, which the next one ends.
    large = caller.http.post("/v1/profiles", json=layered_profile(8000)).json()
    visitor.tolerated = lambda fault: "status of 409" in fault
    visitor.go(f"what-if?profile={large['id']}&policies=optimal,ddp,bytescheduler,fifo,horovod")
    running = page.get_by_role("status").filter(has_text=re.compile("Simulating: (waiting|\\d+ of 70)"))
    running.wait_for()
    page.get_by_label("Compute speed, times", exact=True).fill("2")
    page.get_by_label("Compute speed, times", exact=True).blur()

    def states() -> list[str]:
        asked: dict[str, str | int] = {"kind": "what-if", "limit": 2}
        return [task["state"] for task in caller.http.get("/v1/tasks", params=asked).json()["items"]]

    for _ in range(600):
        if "cancelled" in states():
            break
        page.wait_for_timeout(200)
    assert "cancelled" in states()
    for task in caller.http.get("/v1/tasks").json()["items"]:  # which the next test would wait for
        caller.http.delete(f"/v1/tasks/{task['id']}")


def report(made: dict[str, Any], measured_s: float) -> dict[str, Any]:
    """Return what a runtime reports of a schedule."""
    return {
        "job": made["job"],
        "fingerprint": made["fingerprint"],
        "profile_sha256": made["profile_sha256"],
        "predicted_iteration_s": made["schedule"]["predicted"]["iteration_s"],
        "measured_iteration_s": measured_s,
        "plain_iteration_s": 0.04,
        "num_iterations": 20,
    }


def test_jobs_tell_what_was_predicted_and_measured(visitor: Visitor, caller: Caller) -> None:
    """Listed, found, opened; deleted after a question only; tasks are listed and cancelled."""
    made = caller.post_schedule(layered_profile(3), job=LONG_NAME).json()
    for measured_s in (0.02, 0.03):
        assert caller.http.post("/v1/reports", json=report(made, measured_s)).status_code == 201
    for number in range(21):
        answer = caller.post_schedule(layered_profile(2), job=f"job {number:02}")
        assert answer.status_code == 201
    page = visitor.go("jobs")
    jobs = page.get_by_role("region", name="Jobs", exact=True).locator("tbody tr")
    expect(jobs).to_have_count(20)
    page.get_by_role("button", name="Next jobs").click()
    expect(jobs).to_have_count(2)
    page.get_by_label("Name contains").fill("VISION")
    expect(jobs).to_have_count(1)
    drift = 0.03 / made["schedule"]["predicted"]["iteration_s"] - 1
    expect(jobs.first).to_contain_text(f"+{drift * 100:.1f} %")
    jobs.first.get_by_role("link").click()
    expect(page.get_by_role("region", name="Reports").locator("tbody tr")).to_have_count(2)
    page.wait_for_selector("canvas")
    token = caller.token or ""
    schedules = page.get_by_role("region", name="Schedules").locator("tbody tr")
    expect(schedules).to_contain_text(token.split("_")[1])
    page.get_by_role("button", name="Delete all schedules").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    expect(schedules).to_have_count(1)
    page.get_by_role("button", name="Delete the schedule").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("This job has no schedules")).to_be_visible()
    assert caller.http.get("/v1/schedules", params={"job": LONG_NAME}).json()["items"] == []

    large = {"profile": layered_profile(8000), "grid": {"bandwidth_gbps": list(range(1, 60))}}
    task = caller.http.post("/v1/what-if", json=large, headers={"Prefer": "respond-async"}).json()
    page.get_by_role("button", name="Cancel the what-if").click()
    expect(page.get_by_role("region", name="Tasks").get_by_role("row", name="what-if")).to_contain_text(
        "cancelled"
    )
    assert caller.http.get(f"/v1/tasks/{task['id']}").json()["state"] == "cancelled"


def test_keys_open_their_own_tenants_data_only(
    browser: Browser, caller: Caller, process: ServiceProcess
) -> None:
    """A key is shown once and works; what it may not do is not offered; revoked, it opens nothing."""
    caller.post_schedule(layered_profile(2), job="mine")
    unsigned = "status of 401"
    with Visitor(browser, caller.url) as visitor:
        visitor.tolerated = lambda fault: unsigned in fault
        page = visitor.go("jobs")
        page.get_by_label("API key").fill("pace_0000000000000000_" + "a" * 43)
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("API key").fill(caller.token or "")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("link", name="mine")).to_be_visible()
        assert page.evaluate("Object.keys(localStorage).concat(document.cookie || [])") == []
        page.get_by_role("link", name="Keys").click()
        page.get_by_label("Name", exact=True).fill("a reader")
        page.get_by_role("checkbox", name="submit").uncheck()
        page.get_by_role("button", name="Create key").click()
        token = page.get_by_label("New key", exact=True).inner_text()
        assert token.startswith("pace_")
        page.get_by_role("button", name="I have it").click()
        expect(page.get_by_text(token)).to_have_count(0)
        with Visitor(browser, caller.url, token) as reading:
            reader = reading.go("keys")
            expect(reader.get_by_text("This key may read")).to_be_visible()
            reader.get_by_role("link", name="Jobs").click()
            reader.get_by_role("link", name="mine").click()
            expect(reader.get_by_role("region", name="Schedules")).to_be_visible()
            expect(reader.get_by_role("button", name=re.compile("Delete"))).to_have_count(0)
            page.get_by_role("button", name="Revoke a reader").click()
            page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
            expect(page.get_by_role("row", name="a reader")).to_contain_text("revoked")
            reading.tolerated = lambda fault: unsigned in fault
            reader.get_by_role("link", name="Start").click()
            expect(reader.get_by_label("API key")).to_be_visible()
    with process.tenant() as other, Visitor(browser, other.url, other.token) as visitor:
        page = visitor.go("jobs")
        expect(page.get_by_text("No job has asked for a schedule yet")).to_be_visible()
        expect(page.get_by_text("Nothing was asked for yet")).to_be_visible()


def test_parameter_servers_and_fabric_are_drawn(visitor: Visitor) -> None:
    """Throughput with its band and a transfer plan, from files and from the examples."""
    page = visitor.go("servers?workers=1-3")
    expect(page.get_by_text("Nothing is predicted yet")).to_be_visible()
    steps = steps_from_profile(
        Profile.model_validate(layered_profile(2)), bytes_per_s=1e7, servers=1, batch=8, count=3, jitter=0.1
    )
    drop(page, "Drop a steps document", "steps.json", steps.to_json())
    points = page.get_by_role("region", name="Predicted points").locator("tbody tr")
    expect(points).to_have_count(3)
    page.wait_for_selector("canvas")
    expect(page).to_have_url(re.compile("prediction=[0-9a-f]{32}"))
    page.get_by_role("textbox", name="Workers").fill("1 2")
    page.get_by_role("button", name="Predict", exact=True).click()
    expect(points).to_have_count(2)

    page = visitor.go("fabric")
    for part in ("network", "batch"):
        label = {"network": "Drop a network", "batch": "Drop a batch"}[part]
        drop(page, label, f"{part}.json", (FABRIC / f"{part}.json").read_bytes())
    drawn(page)
    updates = page.get_by_role("region", name="Commits").locator("tbody tr")
    first = updates.all_inner_texts()
    assert first
    page.reload()
    drawn(page)
    assert updates.all_inner_texts() == first


def test_everything_can_be_done_from_the_keyboard(visitor: Visitor) -> None:
    """An example is opened, its chart read item by item, and another tab reached without a mouse."""
    page = visitor.go()
    page.get_by_role("button", name="VGG-16").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")

    def tab_to(name: str, key: str = "Tab") -> None:
        for _ in range(60):
            page.keyboard.press(key)
            named = page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || ''"
            )
            if name in named:
                return
        raise AssertionError(f"{name} cannot be reached")

    tab_to("VGG-16")
    page.keyboard.press("Enter")
    drawn(page)
    tab_to("Windows of vgg16")
    status = page.locator(".gantt [role=status]")
    for key in ("]", "ArrowDown", "]", "+", "ArrowRight"):
        page.keyboard.press(key)
    expect(status).to_contain_text("network: group")
    before = status.inner_text()
    page.keyboard.press("]")
    expect(status).not_to_have_text(before)
    page.keyboard.press("0")
    tab_to("Jobs", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Work under way")).to_be_visible()
    expect(page.locator("#main")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_for_screen_readers_and_nothing_wider_than_a_phone(
    browser: Browser, caller: Caller, scheme: str
) -> None:
    """axe-core is content with every tab, with data and without; at 360 pixels nothing scrolls sideways."""
    made = caller.post_schedule(layered_profile(5), job=LONG_NAME).json()
    for measured_s in (0.02, 0.03):
        caller.http.post("/v1/reports", json=report(made, measured_s))
    job = urllib.parse.quote(LONG_NAME)
    views = {
        "start": "table",
        f"result?profile={made['profile_sha256']}": ".gantt path[d^=M]",
        f"what-if?profile={made['profile_sha256']}&policies=optimal": "canvas",
        "result": ".empty",
        "servers": ".empty",
        "fabric?example=1": ".gantt path[d^=M]",
        "jobs": "table",
        f"jobs?job={job}": "canvas",
        "keys": "table",
    }
    wanted: Any = {"color_scheme": scheme, "viewport": {"width": 360, "height": 740}}
    with Visitor(browser, caller.url, caller.token, **wanted) as visitor:
        for view, ready in views.items():
            page = visitor.go(view)
            page.wait_for_selector(f"main {ready}")
            assert visitor.accessibility_faults() == [], view
            assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, view


def test_a_service_that_dies_is_waited_for(browser: Browser, tmp_path: Path) -> None:
    """The page says so, keeps what it shows, and goes on by itself; a question outlives the process."""
    with ServiceProcess(tmp_path, auth="required", lease_s=2) as process, Forwarder() as forwarder:

        def connect() -> None:
            forwarder.port = int(process.url.rpartition(":")[2])

        connect()
        caller = process.tenant()
        profile = caller.http.post("/v1/profiles", json=layered_profile(3000)).json()
        with Visitor(browser, forwarder.url, caller.token) as visitor:
            visitor.tolerated = lambda fault: "Failed to load resource: net::" in fault
            page = visitor.go(
                f"what-if?profile={profile['id']}&policies=optimal,ddp,bytescheduler,fifo,horovod"
            )
            page.get_by_role("status").filter(has_text=re.compile("Simulating: \\d+ of 70")).wait_for()
            forwarder.port = None
            process.kill()
            expect(page.locator(".banner")).to_be_visible()
            process.start()
            connect()
            expect(page.locator(".banner")).to_have_count(0)
            points = page.get_by_role("region", name="Simulated points").locator("tbody tr")
            expect(points).to_have_count(28)
            page.get_by_role("link", name="Jobs").click()
            expect(
                page.get_by_role("region", name="Tasks").get_by_role("row", name="what-if")
            ).to_contain_text("done")
        caller.http.close()
