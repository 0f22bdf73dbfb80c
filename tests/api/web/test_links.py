"""Links that are not whole, and answers that no view can draw: the page says so and is never blank."""

import json

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import expect

from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import drawn

pytestmark = ON_SQLITE


@pytest.mark.parametrize(
    ("view", "kind", "shown"),
    [
        ("result?schedule=../usage", "schedule", "../usage"),
        ("result?schedule=0123", "schedule", "0123"),
        ("result?profile=../keys", "profile", "../keys"),
        ("what-if?profile=../../metrics", "profile", "../../metrics"),
        pytest.param(
            "servers?prediction=%2e%2e/usage", "prediction", "../usage", marks=pytest.mark.pack("servers")
        ),
    ],
)
def test_a_mangled_link_is_refused_in_words(visitor: Visitor, view: str, kind: str, shown: str) -> None:
    """Nothing is asked of another route, and the page says what is not there."""
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url.removeprefix(visitor.url)))
    page = visitor.go(view)
    expect(page.get_by_text(f"There is no {kind} “{shown}”").first).to_be_visible()
    routes = [path.partition("?")[0] for path in asked]
    assert {route for route in routes if route.startswith("/v1/")} <= {"/v1/usage", "/v1/predictions"}
    assert routes.count("/v1/usage") == 1


def test_a_view_that_cannot_be_drawn_says_so(visitor: Visitor, service: Caller) -> None:
    """The page stays, and goes on when another view is chosen."""
    visitor.tolerated = lambda fault: "TypeError" in fault
    made = service.post_schedule(layered_profile(3)).json()
    path = f"**/v1/schedules/{made['id']}"
    visitor.page.route(path, lambda route: route.fulfill(body=json.dumps({"id": made["id"]})))
    page = visitor.go(f"result?schedule={made['id']}")
    expect(page.get_by_role("alert")).to_contain_text("The page failed")
    page.unroute(path)
    page.get_by_role("button", name="Try again").click()
    drawn(page)
    expect(page.get_by_role("alert")).to_have_count(0)
