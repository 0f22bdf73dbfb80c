"""The description of the API in a browser: requests can be sent from it."""

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, expect

from tests.api.answering import behind_a_path
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.web.chromium import Visitor

pytestmark = ON_SQLITE


def test_requests_are_sent_to_the_service_that_shows_them(browser: Browser, service: Caller) -> None:
    """At its own address, and where a proxy serves it under a path; with the key that the visitor gives."""
    with behind_a_path(service) as below:
        for url in (service.url, below):
            with Visitor(browser, url) as visitor:
                page = visitor.page
                page.goto(f"{url}/docs")
                page.get_by_role("button", name="Authorize").click()
                page.locator(".auth-container input").first.fill(service.token or "")
                page.locator(".auth-btn-wrapper .authorize").first.click()
                page.locator(".modal-ux .close-modal").click()
                operation = page.locator("[id^=operations-Schedules-create_schedule]")
                operation.get_by_role("button").first.click()
                operation.get_by_role("button", name="Try it out").click()
                with page.expect_response(f"{url}/v1/schedules") as answered:
                    operation.get_by_role("button", name="Execute").click()
                assert answered.value.status == 201
                expect(operation.locator(".live-responses-table")).to_contain_text("fingerprint")
