"""The fabric on the page: from files to a chart."""

from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser

from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.web.chromium import Visitor
from tests.api.web.visits import choose, drawn, tab_to

pytestmark = ON_SQLITE

EXAMPLES = Path(__file__).parents[4] / "examples"


def test_a_transfer_plan_is_drawn_by_links(visitor: Visitor) -> None:
    """From two files; it is there again after a reload."""
    page = visitor.go("fabric")
    for part, label in (("network", "Drop a network"), ("batch", "Drop a batch")):
        choose(page, label, (f"{part}.json", (EXAMPLES / f"{part}.json").read_bytes()))
    drawn(page)
    updates = page.get_by_role("region", name="Commits").locator("tbody tr")
    first = updates.all_inner_texts()
    assert first
    page.reload()
    drawn(page)
    assert updates.all_inner_texts() == first


def test_the_example_is_drawn_from_the_keyboard(visitor: Visitor) -> None:
    """The view has a tab of its own, between those of the core."""
    page = visitor.go("start")
    links = page.get_by_role("navigation", name="Main").get_by_role("link")
    links.filter(has_text="Keys").wait_for()
    tabs = links.all_inner_texts()
    assert tabs.index("Order") < tabs.index("Fabric") < tabs.index("Jobs")
    page = visitor.go("fabric")
    page.get_by_role("button", name="Use the example").wait_for()
    tab_to(page, "Use the example")
    page.keyboard.press("Enter")
    drawn(page)


def test_nothing_serious_for_screen_readers_and_nothing_wider_than_a_phone(
    browser: Browser, service: Caller
) -> None:
    """axe-core is content, in the dark as well; at 360 pixels nothing scrolls sideways."""
    size = {"width": 360, "height": 740}
    with Visitor(browser, service.url, service.token, color_scheme="light", viewport=size) as visitor:
        page = visitor.go("fabric?example=1")
        drawn(page)
        assert visitor.accessibility_faults() == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
        page.emulate_media(color_scheme="dark")
        assert visitor.accessibility_faults(["color-contrast"]) == []
