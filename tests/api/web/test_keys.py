"""Keys on the page: asked for, made, revoked; two tenants in two windows."""

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, Route, expect

from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor

pytestmark = ON_SQLITE


def is_unsigned(fault: str) -> bool:
    """Whether the browser tells of a key that opens nothing."""
    return "status of 401" in fault


def test_keys_are_shown_once_and_may_what_they_say(browser: Browser, service: Caller) -> None:
    """The page keeps one in the tab; what it may not do is not offered; revoked, it opens nothing."""
    service.post_schedule(layered_profile(2), job="mine")
    with Visitor(browser, service.url) as visitor:
        visitor.tolerated = is_unsigned
        page = visitor.go("jobs")
        page.get_by_role("textbox", name="API key").fill("pace_0000000000000000_" + "a" * 43)
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_role("textbox", name="API key").fill(service.token or "")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("link", name="mine")).to_be_visible()
        assert page.evaluate("Object.keys(localStorage).concat(document.cookie || [])") == []
        held: list[Route] = []
        page.route("**/v1/keys?*", lambda route: held.append(route))
        page.get_by_role("link", name="Keys").click()
        page.get_by_label("Name", exact=True).fill("a reader")
        submit = page.get_by_role("checkbox", name="submit")
        submit.uncheck()
        # The list that comes later leaves the form as it was filled in.
        page.unroute("**/v1/keys?*")
        assert held
        expect(page.get_by_role("region", name="Keys", exact=True).locator("tbody tr")).to_have_count(1)
        expect(submit).not_to_be_checked()
        page.get_by_role("button", name="Create key").click()
        token = page.get_by_label("New key", exact=True).inner_text()
        assert token.startswith("pace_")
        page.get_by_role("button", name="I have it").click()
        expect(page.get_by_text(token)).to_have_count(0)
        with Visitor(browser, service.url, token) as reading:
            reader = reading.go("keys")
            expect(reader.get_by_text("This key may read")).to_be_visible()
            reader.get_by_role("link", name="Jobs").click()
            reader.get_by_role("link", name="mine").click()
            expect(reader.get_by_role("region", name="Schedules")).to_be_visible()
            expect(reader.get_by_role("button", name=re.compile("Delete"))).to_have_count(0)
            page.get_by_role("button", name="Revoke a reader").click()
            page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
            expect(page.get_by_role("row", name="a reader")).to_contain_text("revoked")
            reading.tolerated = is_unsigned
            reader.get_by_role("link", name="Start").click()
            expect(reader.get_by_role("textbox", name="API key")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("textbox", name="API key")).to_be_visible()
        expect(page.get_by_role("link", name="mine")).to_have_count(0)


def test_two_tenants_see_their_own(browser: Browser, shared_service: ServiceProcess) -> None:
    """The same names are two jobs; a link to the other's schedule or profile shows nothing of it."""
    with shared_service.tenant() as one, shared_service.tenant() as other:
        made = one.post_schedule(layered_profile(2, name="one's model"), job="shared name").json()
        other.post_schedule(layered_profile(3, name="other's model"), job="shared name")
        with (
            Visitor(browser, one.url, one.token) as first,
            Visitor(browser, other.url, other.token) as second,
        ):
            for visitor, tenant, model, foreign in (
                (first, one, "one's model", "other's model"),
                (second, other, "other's model", "one's model"),
            ):
                page = visitor.go()
                expect(page.get_by_role("link", name=model, exact=True)).to_be_visible()
                expect(page.get_by_text(foreign)).to_have_count(0)
                expect(page.get_by_text(tenant.tenant, exact=True)).to_be_visible()
                page = visitor.go("jobs?job=shared name")
                expect(page.get_by_role("region", name="Schedules").locator("tbody tr")).to_have_count(1)
                page = visitor.go("keys")
                keys = page.get_by_role("region", name="Keys", exact=True).locator("tbody tr")
                expect(keys).to_have_count(1)
            second.tolerated = lambda fault: "status of 4" in fault
            for view in (f"schedule={made['id']}", f"profile={made['profile_sha256']}"):
                page = second.go(f"result?{view}")
                expect(page.get_by_role("alert").first).to_be_visible()
                expect(page.get_by_text("one's model")).to_have_count(0)
