"""Parameter servers on the page: from a file to a curve."""

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import expect

from pace.documents.profile import Profile
from pace_servers.throughput import steps_from_profile
from tests.api.postgresql import ON_SQLITE
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import choose

pytestmark = ON_SQLITE


def test_throughput_is_drawn_with_its_band(visitor: Visitor) -> None:
    """Steps of one worker are predicted for others, and asked anew with other numbers."""
    page = visitor.go("servers?workers=1-3")
    expect(page.get_by_text("Nothing is predicted yet")).to_be_visible()
    steps = steps_from_profile(
        Profile.model_validate(layered_profile(2)), bytes_per_s=1e7, servers=1, batch=8, count=3, jitter=0.1
    )
    choose(page, "Drop a steps document", ("steps.json", steps.to_json()))
    points = page.get_by_role("region", name="Predicted points").locator("tbody tr")
    expect(points).to_have_count(3)
    page.wait_for_selector("canvas")
    expect(page).to_have_url(re.compile("prediction=[0-9a-f]{32}"))
    page.get_by_role("textbox", name="Workers").fill("1 2")
    page.get_by_role("button", name="Predict", exact=True).click()
    expect(points).to_have_count(2)
