"""Order checks on the page: who waits for whom."""

import json
import re
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import expect

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
