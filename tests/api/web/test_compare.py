"""Schedules side by side, and a schedule beside a step that a job measured."""

import csv
import json
import re
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, Page, expect

from pace.view.perfetto import window_trace
from pace.view.window import Cargo, Window, WindowTransfer
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import choose, download, drawn, milliseconds, report

pytestmark = ON_SQLITE


def timeline(*gradients: str) -> bytes:
    """Return what a job writes of a step in which these gradients are sent one after the other, 2 ms each."""
    window = Window(
        name="measured: SGD, rank 0",
        iteration_s=0.002 * len(gradients),
        barrier=False,
        links=("network",),
        cargo=tuple(
            Cargo(name=f"group {at}", gradients=(name,), size_bytes=4) for at, name in enumerate(gradients)
        ),
        transfers=tuple(
            WindowTransfer(link=0, cargo=at, size_bytes=4, start_s=0.002 * at, end_s=0.002 * (at + 1))
            for at in range(len(gradients))
        ),
    )
    return json.dumps(window_trace(window, pid=1, plan_sha256="0" * 64)).encode()


def cells(page: Page, name: str) -> list[str]:
    """Return the cells of a row of the table of numbers."""
    row = (
        page.get_by_role("region", name="Numbers of all")
        .locator("tr")
        .filter(has_text=re.compile(f"^{name}"))
    )
    return row.locator("td").all_inner_texts()


def test_two_schedules_are_compared_in_numbers_words_and_one_chart(visitor: Visitor, service: Caller) -> None:
    """What changed between two runs of a job: profile, prediction, each gradient; from the job's page."""
    before = service.post_schedule(layered_profile(6), job="compared").json()
    changed: dict[str, Any] = layered_profile(7)
    changed["workers"] = 8
    changed["ops"][1]["duration_s"] *= 3
    after = service.post_schedule(changed, job="compared").json()
    assert service.http.post("/v1/reports", json=report(after, 0.05)).status_code == 201
    page = visitor.go("jobs?job=compared")
    page.get_by_role("link", name="the one before").click()
    expect(page).to_have_url(re.compile(f"compare.a={before['id']}&b={after['id']}"))
    drawn(page)
    expect(page).to_have_title(re.compile("^compared against compared . Compare . PACE$"))
    expect(page.locator(".gantt .band-title")).to_have_count(2)
    times = [made["schedule"]["predicted"]["iteration_s"] for made in (before, after)]
    shown = cells(page, "Iteration, predicted")
    assert shown[1:3] == [milliseconds(each) for each in times]
    assert shown[3] == f"+{(times[1] / times[0] - 1) * 100:.1f} %"
    assert cells(page, "Iteration, measured last")[1:3] == ["\N{EN DASH}", milliseconds(0.05)]
    said = page.get_by_role("region", name="What changed")
    expect(said).to_contain_text("Workers: 4 in A, 8 in B.")
    expect(said).to_contain_text("Only B has 1 gradient: 6.weight.")
    expect(said).to_contain_text("the largest change: bwd/5, 1.00 ms in A, 3.00 ms in B")
    gradients = page.get_by_role("region", name="Gradients of A and B")
    expect(gradients.get_by_role("row", name="6.weight")).to_contain_text("only in B")
    rows = {
        row["gradient"]: row
        for row in csv.DictReader(download(page, "Gradients (CSV)").decode().splitlines())
    }
    for side, made in (("a", before), ("b", after)):
        schedule = made["schedule"]
        ends: dict[str, float] = {}
        for transfer in schedule["transfers"]:
            for name in schedule["groups"][transfer["group"]]["tensors"]:
                ends[name] = max(ends.get(name, 0.0), transfer["end_s"])
        for name, end_s in ends.items():
            assert float(rows[name][f"end_s_{side}"]) == pytest.approx(end_s, abs=1e-8)
    page.get_by_role("button", name="Swap A and B").click()
    expect(said).to_contain_text("Only A has 1 gradient: 6.weight.")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_words_count_the_gradients_that_the_table_shows_as_moved(visitor: Visitor, service: Caller) -> None:
    """Also one that moves by less than a hundredth of the iteration."""
    profile_id = service.http.post("/v1/profiles", json=layered_profile(12)).json()["id"]
    made = [
        service.http.post("/v1/schedules", json={"profile_id": profile_id, "options": options}).json()
        for options in ({}, {"exchange": "sharded"})
    ]
    page = visitor.go(f"compare?a={made[0]['id']}&b={made[1]['id']}")
    drawn(page)
    ends = [
        {row["gradient"]: float(row[f"end_s_{side}"]) for row in rows}
        for rows in [list(csv.DictReader(download(page, "Gradients (CSV)").decode().splitlines()))]
        for side in ("a", "b")
    ]
    changes = {name: end_s - ends[0][name] for name, end_s in ends[1].items()}
    moved = [s for name, s in changes.items() if abs(s) > 0.01 * max(ends[0][name], ends[1][name])]
    later = sum(s > 0 for s in moved)
    assert later > sum(s > 0.01 * made[0]["schedule"]["predicted"]["iteration_s"] for s in moved)
    said = page.get_by_role("region", name="What changed")
    expect(said).to_contain_text(f"{len(moved) - later} gradients arrive earlier in B, {later} later.")


@pytest.mark.parametrize("width", [360, 1440])
def test_five_schedules_are_compared_with_the_first(browser: Browser, service: Caller, width: int) -> None:
    """One chart, one table, a sentence for each; what is removed leaves no gap, and five are the most."""
    made = []
    for layers in range(4, 9):
        profile: dict[str, Any] = layered_profile(layers)
        made.append(service.post_schedule(profile, job="several").json())
    times = [each["schedule"]["predicted"]["iteration_s"] for each in made]
    a, b, c, d, e = (each["id"] for each in made)
    view: dict[str, Any] = {"viewport": {"width": width, "height": 900}}
    with Visitor(browser, service.url, service.token, **view) as visitor:
        page = visitor.go(f"compare?a={a}&b={b}&c={c}&d={d}")
        drawn(page)
        page.get_by_label("Schedule E", exact=True).select_option(e)
        expect(page.locator(".gantt .band-title")).to_have_count(5)
        shown = cells(page, "Iteration, predicted")
        assert [shown[at] for at in (1, 2, 4, 6, 8)] == [milliseconds(each) for each in times]
        assert shown[9] == f"+{(times[4] / times[0] - 1) * 100:.1f} %"
        expect(page.locator(".verdict")).to_have_count(4)
        expect(page.locator(".verdict").last).to_contain_text("An iteration of E is predicted to be")
        expect(page.get_by_role("region", name="What changed")).to_contain_text("Only E has 4 gradients")
        page.get_by_label("A and", exact=True).select_option("E")
        gradients = page.get_by_role("region", name="Gradients of A and E")
        expect(gradients.get_by_role("row", name="7.weight")).to_contain_text("only in E")
        expect(page.get_by_text("Or compare A with a step")).to_have_count(0)
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1]
        assert visitor.accessibility_faults() == []
        page.emulate_media(color_scheme="dark")
        assert visitor.accessibility_faults(["color-contrast"]) == []
        page.get_by_label("Schedule B", exact=True).select_option("")
        expect(page.locator(".gantt .band-title")).to_have_count(4)
        expect(page).to_have_url(re.compile(f"a={a}&b={c}&c={d}&d={e}$"))


def test_a_schedule_without_changes_says_so(visitor: Visitor, service: Caller) -> None:
    """The same profile under another job: nothing differs, and the page says that and not nothing."""
    first = service.post_schedule(layered_profile(5), job="one").json()
    second = service.post_schedule(layered_profile(5), job="two").json()
    page = visitor.go(f"compare?a={first['id']}")
    expect(page.get_by_text("Choose what to compare A with")).to_be_visible()
    page.get_by_label("Link or identifier of schedule B").fill(
        f"{service.url}/#result?schedule={second['id']}"
    )
    drawn(page)
    expect(page.get_by_role("region", name="What changed")).to_contain_text(
        "Every gradient arrives at the same time."
    )
    expect(page.get_by_text("No gradient differs")).to_be_visible()
    page.get_by_role("switch", name="Show all").check()
    expect(page.get_by_role("region", name="Gradients of A and B").locator("tbody tr")).to_have_count(5)
    renamed = json.loads(json.dumps(layered_profile(5)).replace(".weight", ".kernel"))
    third = service.post_schedule(renamed).json()
    page = visitor.go(f"compare?a={first['id']}&b={third['id']}")
    said = page.get_by_role("region", name="What changed")
    expect(said).to_contain_text("No gradient is in both: these are schedules of different models.")
    expect(said).not_to_contain_text("at the same time")


def test_a_measured_step_is_laid_beside_its_schedule(visitor: Visitor, service: Caller) -> None:
    """From the file that the runtime writes, shifted to where the schedule's first group is ready."""
    made = service.post_schedule(layered_profile(3), job="measured").json()
    assert service.http.post("/v1/reports", json=report(made, 0.02)).status_code == 201
    page = visitor.go(f"compare?a={made['id']}")
    page.get_by_text("Or compare A with a step").click()
    for wrong in (b"{}", b"nonsense", timeline("other.weight")):
        choose(page, "Drop a timeline here", ("wrong.json", wrong))
        expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("No gradient of this timeline is in schedule A")
    choose(page, "Drop a timeline here", ("timeline.json", timeline("2.weight", "1.weight", "0.weight")))
    drawn(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".gantt .band-title").nth(1)).to_contain_text("B: measured: SGD, rank 0")
    expect(page.locator(".verdict")).to_contain_text("The job measures 20.0 ms")
    assert cells(page, "First transfer to last")[2] == milliseconds(0.006)
    page.get_by_role("switch", name="Show all").check()
    ready_s = min(group["ready_s"] for group in made["schedule"]["groups"])
    row = page.get_by_role("region", name="Gradients of A and B").get_by_role("row", name="1.weight")
    expect(row).to_contain_text(milliseconds(ready_s + 0.004))
