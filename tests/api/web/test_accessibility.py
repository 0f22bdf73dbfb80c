"""The page without a mouse, for screen readers, and on a phone."""

import re
import urllib.parse
from collections.abc import Mapping

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, FileChooser, expect

from pace.api.questions.all_kinds import KINDS
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import LONG_NAME, drawn, report, tab_to, until

pytestmark = ON_SQLITE


def test_a_result_can_be_read_from_the_keyboard(visitor: Visitor) -> None:
    """An example is opened, its chart read item by item, tables sorted, a file saved, another tab reached."""
    page = visitor.go()
    page.get_by_role("button", name="VGG-16").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "VGG-16")
    page.keyboard.press("Enter")
    drawn(page)
    expect(page.locator("#main")).to_be_focused()
    tab_to(page, "FIFO")
    page.keyboard.press("Space")
    expect(page.get_by_role("region", name="Policies").get_by_role("row", name="FIFO")).to_be_visible()
    tab_to(page, "Windows of vgg16")
    status = page.locator(".gantt [role=status]")
    for key in ("]", "ArrowDown", "]", "+", "ArrowRight"):
        page.keyboard.press(key)
    expect(status).to_contain_text("network: group")
    before = status.inner_text()
    page.keyboard.press("]")
    expect(status).not_to_have_text(before)
    page.keyboard.press("0")
    tab_to(page, "Size")
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="Size")).to_have_attribute("aria-sort", "ascending")
    tab_to(page, "Schedule (JSON)")
    with page.expect_download():
        page.keyboard.press("Enter")
    tab_to(page, "In the training job")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("Code for the training job")).to_contain_text("attach")
    tab_to(page, "Jobs", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Work under way")).to_be_visible()
    expect(page.locator("#main")).to_be_focused()


def test_questions_jobs_and_keys_can_be_had_from_the_keyboard(visitor: Visitor, service: Caller) -> None:
    """Sliders, filters, dialogs and forms, and a file through the browser's own dialog."""
    made = service.post_schedule(layered_profile(3), job="typed").json()
    page = visitor.go()
    page.wait_for_load_state("networkidle")  # what arrives late is drawn anew, without the focus
    choosers: list[FileChooser] = []
    page.on("filechooser", lambda chooser: choosers.append(chooser))

    def choose() -> bool:
        tab_to(page, "Drop a file here")
        page.keyboard.press("Space")
        page.wait_for_timeout(2000)
        return bool(choosers)

    until(page, choose)  # a busy browser has missed the key, or not told of its dialog
    assert choosers[0].is_multiple()

    page = visitor.go(f"what-if?profile={made['profile_sha256']}&policies=pace")
    page.wait_for_selector("canvas")
    # The slider begins at the profile's number, which arrives by itself.
    expect(page.get_by_label("Workers, slider")).to_have_attribute("aria-valuetext", "as profiled, 4")
    tab_to(page, "Workers, slider")
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("workers=5"))
    tab_to(page, "Throughput")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("metric=throughput"))
    expect(page.locator("[aria-busy=true]")).to_have_count(0)

    page = visitor.go("jobs")
    page.get_by_role("link", name="typed").wait_for()
    tab_to(page, "Name contains")
    with page.expect_response(re.compile(r"/v1/jobs\?.*contains=typ$|/v1/jobs\?.*contains=typ&")):
        page.keyboard.type("typ")  # until the answer, the links are those of the list before
    expect(page).to_have_url(re.compile("contains=typ"))
    page.get_by_role("link", name="typed").wait_for()
    tab_to(page, "typed")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete all schedules").wait_for()
    tab_to(page, "Delete all schedules")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Delete all schedules")).to_be_focused()
    tab_to(page, "Delete the schedule")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("dialog").get_by_role("button", name="Delete")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("This job has no schedules")).to_be_visible()

    page = visitor.go("keys")
    page.get_by_role("button", name="Create key").wait_for()
    tab_to(page, "Name")
    page.keyboard.type("typed key")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="I have it").wait_for()
    tab_to(page, "I have it")
    page.keyboard.press("Enter")
    tab_to(page, "Revoke typed key")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name="typed key")).to_contain_text("revoked")


@pytest.mark.pack("servers")
@pytest.mark.timeout(900)
def test_nothing_serious_for_screen_readers_and_nothing_wider_than_a_phone(
    browser: Browser, service: Caller
) -> None:
    """axe-core is content with every tab, with data and without; at 360 pixels nothing scrolls sideways.

    In the dark only colors differ.
    """
    made = service.post_schedule(layered_profile(5), job=LONG_NAME).json()
    other = service.post_schedule(layered_profile(6), job=LONG_NAME).json()
    for measured_s in (0.02, 0.03):
        service.http.post("/v1/reports", json=report(made, measured_s))
    graph, check = (
        service.http.post(KINDS[name].path, json=dict(KINDS[name].example)).json()
        for name in ("graph", "order")
    )
    job = urllib.parse.quote(LONG_NAME)
    chart = ".gantt path[d^=M]"
    views = {
        "start": "table",
        f"result?profile={made['profile_sha256']}": chart,
        f"what-if?profile={made['profile_sha256']}&policies=pace": "canvas",
        "result": ".empty",
        "compare": ".empty",
        f"result?graph={graph['id']}": chart,
        f"compare?a={made['id']}&b={other['id']}": chart,
        "order": ".empty",
        "servers": ".empty",
        f"order?check={check['id']}": chart,
        "jobs": "table",
        "keys": "table",
        f"what-if?graph={graph['id']}&policies=pace": "canvas",
        f"jobs?job={job}": "canvas",
    }
    look_at(views, browser, service)


def look_at(views: Mapping[str, str], browser: Browser, service: Caller) -> None:
    """Look for faults on views: each with a selector of what it shows, on another tab than the one before."""
    size = {"width": 360, "height": 740}
    tab = ""
    with Visitor(browser, service.url, service.token, color_scheme="light", viewport=size) as visitor:
        page = visitor.go("keys")
        for view, ready in views.items():
            page.emulate_media(color_scheme="light")
            before, tab = tab, view.partition("?")[0]
            assert before != tab  # so that it is drawn anew, and nothing of that one is left
            page.evaluate("(view) => { location.hash = view; }", view)
            current = page.locator(f"nav [aria-current][href^='#{tab}']")
            current.wait_for()
            page.wait_for_selector(f"main {ready}")
            assert visitor.accessibility_faults() == [], view
            assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, view
            expect(current).to_be_in_viewport(ratio=1)
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.emulate_media(color_scheme="dark")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
            assert visitor.accessibility_faults(["color-contrast"]) == [], view
