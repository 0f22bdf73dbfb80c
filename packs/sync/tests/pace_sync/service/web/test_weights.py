"""Sync plans on the page: buckets, shards, deltas and fragments on their way."""

import json
import re

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, expect

from pace.api.questions.all_kinds import KINDS
from pace_sync.service.sync_plans import EXAMPLE_DELTAS, EXAMPLE_OUTER, EXAMPLE_RESHARDING
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.web.chromium import Visitor
from tests.api.web.test_accessibility import look_at
from tests.api.web.visits import choose, drawn

pytestmark = ON_SQLITE


def test_buckets_are_drawn_on_the_link_and_at_receivers(visitor: Visitor) -> None:
    """With the bound and other rules; a plan in place of its problem is refused with what to do."""
    page = visitor.go("weights")
    page.get_by_role("button", name="Use the example").click()
    drawn(page)
    expect(page).to_have_url(re.compile("plan=[0-9a-f]{32}"))
    assert page.locator(".gantt .lane-label").all_text_contents() == [
        "link",
        *(f"engine {n}" for n in range(4)),
    ]
    rules = page.get_by_role("region", name="Rules").locator("tbody tr")
    expect(rules).to_have_count(9)
    expect(rules.first).to_contain_text("PACE")
    page.get_by_role("application").focus()
    page.keyboard.press("]")
    expect(page.locator(".gantt path.alike[d^=M]")).to_have_count(5)
    plan = {"buckets": [], "problem_sha256": "0" * 64}
    choose(page, "Drop a document", ("plan.json", json.dumps(plan).encode()))
    expect(page.get_by_role("alert")).to_contain_text("Drop the document that it was made from")


def test_fragments_of_streaming_diloco_are_drawn_on_their_link(visitor: Visitor) -> None:
    """One period: its steps, and each fragment once; a link to the plan shows the same."""
    page = visitor.go("weights")
    page.get_by_role("button", name="Example of streaming DiLoCo").click()
    drawn(page)
    expect(page).to_have_url(re.compile("plan=[0-9a-f]{32}"))
    for _ in range(2):
        assert page.locator(".gantt .lane-label").all_text_contents() == ["steps", "wan"]
        rules = page.get_by_role("region", name="Rules").locator("tbody tr")
        expect(rules).to_have_count(4)
        expect(rules.first).to_contain_text("PACE")
        fragments = page.get_by_role("region", name="Fragments").locator("tbody tr")
        expect(fragments).to_have_count(25)
        expect(fragments.first).to_contain_text("embedding")
        page.reload()
        drawn(page)
    page.get_by_role("application").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("]")
    expect(page.locator(".gantt [role=status]")).to_contain_text("step")


def test_an_outer_sync_document_is_planned_and_named_if_at_fault(visitor: Visitor) -> None:
    """Two links, one of which is used in the next period, too; a layer at fault is named."""
    page = visitor.go("weights")
    links = [{"name": name, "bytes_per_s": rate} for name, rate in (("wan", 2e7), ("lan", 3e7))]
    document = EXAMPLE_OUTER | {"links": links, "cutting": "anywhere"}
    file = "Drop a document"
    choose(page, file, ("outer.json", json.dumps(document).encode()))
    drawn(page)
    assert page.locator(".gantt .lane-label").all_text_contents() == ["steps", "wan", "lan"]
    visitor.tolerated = lambda fault: "422" in fault
    layers = [{"name": "half", "size_bytes": 2}]
    choose(page, file, ("outer.json", json.dumps(document | {"layers": layers}).encode()))
    expect(page.get_by_role("alert")).to_contain_text('layer "half"')


def test_shards_are_drawn_from_whom_to_whom(visitor: Visitor) -> None:
    """A lane for each stream and receiver; the table names the boxes; a link to the plan shows the same."""
    page = visitor.go("weights")
    page.get_by_role("button", name="Example of shards").click()
    drawn(page)
    expect(page).to_have_url(re.compile("plan=[0-9a-f]{32}"))
    for _ in range(2):
        labels = page.locator(".gantt .lane-label").all_text_contents()
        assert labels[-4:] == [f"engine {engine} rank {rank}" for engine in range(2) for rank in range(2)]
        rules = page.get_by_role("region", name="Rules").locator("tbody tr")
        expect(rules).to_have_count(3)
        expect(rules.first).to_contain_text("PACE")
        streams = page.get_by_role("region", name="Streams").locator("tbody tr")
        expect(streams).to_have_count(len(labels) - 4)
        expect(streams.first).to_contain_text("layers.0")
        page.reload()
        drawn(page)
    page.get_by_role("application").focus()
    page.keyboard.press("]")
    expect(page.locator(".gantt [role=status]")).to_contain_text("sends to engine")


def test_deltas_are_compared_with_whole_weights(visitor: Visitor) -> None:
    """A lane for each rule; expected bytes and the period of anchors; a document at fault is named."""
    page = visitor.go("weights")
    page.get_by_role("button", name="Example of deltas").click()
    drawn(page)
    expect(page).to_have_url(re.compile("plan=[0-9a-f]{32}"))
    assert page.locator(".gantt .lane-label").all_text_contents() == ["always whole", "ask", "anchors"]
    answer = page.get_by_role("region", name="Sync plan")
    expect(answer).to_contain_text("Expected bytes of a version")
    expect(answer).to_contain_text("when a receiver asks")
    rules = page.get_by_role("region", name="Rules").locator("tbody tr")
    expect(rules.first).to_contain_text("Deltas, whole for those who ask (PACE)")
    expect(rules.last).to_contain_text("Every version whole")
    visitor.tolerated = lambda fault: "422" in fault
    wrong = EXAMPLE_DELTAS | {"changed": 2}
    choose(page, "Drop a document", ("deltas.json", json.dumps(wrong).encode()))
    expect(page.get_by_role("alert")).to_contain_text("changed")
    often = EXAMPLE_DELTAS | {"missed": 0.5, "most_versions": 30}
    choose(page, "Drop a document", ("deltas.json", json.dumps(often).encode()))
    expect(answer).to_contain_text("every 30 versions")


def test_nothing_serious_for_screen_readers_and_nothing_wider_than_a_phone(
    browser: Browser, service: Caller
) -> None:
    """axe-core is content with plans of every kind, in the dark as well; nothing scrolls sideways."""
    plans = [
        service.http.post(KINDS["sync"].path, json={"sync": document}).json()["id"]
        for document in (KINDS["sync"].example["sync"], EXAMPLE_OUTER, EXAMPLE_RESHARDING, EXAMPLE_DELTAS)
    ]
    views = {"weights": ".empty"}
    for plan, tab in zip(plans, ("result", "compare", "order", "servers"), strict=True):
        views |= {tab: ".empty", f"weights?plan={plan}": ".gantt path[d^=M]"}
    look_at(views, browser, service)
