"""A service that dies and comes back, as the page sees it."""

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, expect

from tests.api.forwarder import Forwarder
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor


def test_a_service_that_dies_is_waited_for(browser: Browser, tmp_path: Path) -> None:
    """The page says so, keeps what it shows, and goes on by itself; a question outlives the process."""
    with ServiceProcess(tmp_path, auth="required", lease_s=2) as process, Forwarder() as forwarder:

        def connect() -> None:
            forwarder.port = int(process.url.rpartition(":")[2])

        connect()
        caller = process.tenant()
        profile = caller.http.post("/v1/profiles", json=layered_profile(700)).json()
        with Visitor(browser, forwarder.url, caller.token) as visitor:
            visitor.tolerated = lambda fault: "Failed to load resource: net::" in fault
            page = visitor.go(f"what-if?profile={profile['id']}&policies=pace,ddp,fifo")
            page.get_by_role("status").filter(has_text=re.compile("Simulating: \\d+ of 42")).wait_for()
            forwarder.port = None
            process.kill()
            expect(page.locator(".banner")).to_be_visible()
            process.start()
            connect()
            expect(page.locator(".banner")).to_have_count(0)
            points = page.get_by_role("region", name="Simulated points").locator("tbody tr")
            expect(points).to_have_count(28)
            page.get_by_role("link", name="Jobs").click()
            tasks = page.get_by_role("region", name="Tasks")
            expect(tasks.get_by_role("row", name="what-if")).to_contain_text("done")
        caller.http.close()
