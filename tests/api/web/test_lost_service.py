"""A service that dies and comes back, as the page sees it."""

import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, expect

from tests.api.forwarder import Forwarder
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor


def worker_for_what_ifs(process: ServiceProcess, caller: Caller) -> psutil.Process:
    """Return the process that answers what-ifs, which the first of them starts."""
    deadline = time.monotonic() + 120
    while len(before := process.workers()) < 2:  # of bodies and of schedules, with the first request
        assert time.monotonic() < deadline
        time.sleep(0.05)
    question = {"profile": layered_profile(3), "grid": {"bandwidth_gbps": [1, 10]}}
    caller.http.post("/v1/what-if", json=question).raise_for_status()
    (worker,) = set(process.workers()) - set(before)
    return worker


def test_a_service_that_dies_is_waited_for(browser: Browser, tmp_path: Path) -> None:
    """The page says so, keeps what it shows, and goes on by itself; a question outlives the process."""
    with ServiceProcess(tmp_path, auth="required", lease_s=2) as process, Forwarder() as forwarder:

        def connect() -> None:
            forwarder.port = int(process.url.rpartition(":")[2])

        connect()
        caller = process.tenant()
        profile = caller.http.post("/v1/profiles", json=layered_profile(30)).json()
        worker = worker_for_what_ifs(process, caller)
        worker.suspend()  # it must not answer before the service dies
        with Visitor(browser, forwarder.url, caller.token) as visitor:
            visitor.tolerated = lambda fault: "Failed to load resource: net::" in fault
            page = visitor.go(f"what-if?profile={profile['id']}&policies=pace,ddp,fifo")
            page.get_by_role("status").filter(has_text="Simulating: 0 of 42").wait_for()
            forwarder.port = None
            process.kill()
            worker.kill()
            expect(page.locator(".banner")).to_be_visible()
            process.start()
            connect()
            expect(page.locator(".banner")).to_have_count(0)
            points = page.get_by_role("region", name="Simulated points").locator("tbody tr")
            expect(points).to_have_count(28)
            page.get_by_role("link", name="Jobs").click()
            tasks = page.get_by_role("region", name="Tasks")
            expect(tasks.get_by_role("row", name="what-if").filter(has_text="done")).to_have_count(4)
        caller.http.close()
