"""Order checks and sync plans on the page: who waits for whom, and buckets, shards, deltas on their way."""

import json
import re
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import expect

from pace.api.questions.sync_plans import EXAMPLE_DELTAS, EXAMPLE_OUTER
from tests.api.postgresql import ON_SQLITE
from tests.api.web.chromium import Visitor
from tests.api.web.visits import choose, drawn

pytestmark = ON_SQLITE

ANSWER = "Order of collectives"


def job(sizes: tuple[int, int]) -> dict[str, Any]:
    """Return a job of two ranks that sum so many bytes."""
    return {
        "name": "sums",
        "groups": [{"name": "world", "communicators": [[0, 1]]}],
        "programs": [
            {
                "ranks": [rank],
                "threads": [
                    {
                        "operations": [
                            {"op": "all-reduce", "group": "world", "size_bytes": size, "name": "sum"}
                        ]
                    }
                ],
            }
            for rank, size in enumerate(sizes)
        ],
    }


def test_ranks_that_wait_for_one_another_are_drawn(visitor: Visitor) -> None:
    """A lane for each, an arrow from each to what the next has not started; a link shows the same."""
    page = visitor.go("order")
    expect(page.get_by_text("Nothing is checked yet")).to_be_visible()
    page.get_by_role("button", name="Use the example").click()
    drawn(page)
    answer = page.get_by_role("region", name=ANSWER)
    expect(answer).to_contain_text("can hang")
    for _ in range(2):
        assert sorted(page.locator(".gantt .lane-label").all_text_contents()) == [
            f"rank {n}" for n in range(4)
        ]
        expect(page.locator(".gantt path.arrow")).to_have_count(4)
        expect(page.locator(".gantt path.critical[d^=M]")).to_have_count(4)
        expect(answer.locator("pre").first).to_contain_text("rank 1 waits in all-reduce")
        page.reload()
        drawn(page)
    page = visitor.go("jobs")
    page.get_by_role("row", name="order").get_by_role("link", name="Open").first.click()
    drawn(page)
    expect(page).to_have_url(re.compile("order.check=[0-9a-f]{32}"))
    page.get_by_role("application").focus()
    for _ in range(4):
        page.keyboard.press("]")
    expect(page.locator(".gantt [role=status]")).to_contain_text("waits here")


def test_a_mismatch_and_a_proof_are_shown(visitor: Visitor) -> None:
    """From a file and from pasted text; what is no JSON, or no job program, is refused in a line."""
    page = visitor.go("order")
    answer = page.get_by_role("region", name=ANSWER)
    choose(page, "Drop a job program", ("job.json", json.dumps(job((4, 8))).encode()))
    expect(answer).to_contain_text("different sizes")
    expect(page.locator(".gantt path.critical[d^=M]")).to_have_count(2)
    paste = page.get_by_label("Or paste one")
    visitor.tolerated = lambda fault: "422" in fault
    for text, words in (("{", "not JSON"), ('{"groups": []}', "programs")):
        paste.fill(text)
        page.get_by_role("button", name="Check", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text(words)
    paste.fill(json.dumps(job((4, 4))))
    page.get_by_role("button", name="Check", exact=True).click()
    expect(answer).to_contain_text("sums cannot hang")
    page.get_by_label("Streams of a device").select_option("launch-order")
    expect(answer).to_contain_text("in the order in which they are enqueued")


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
