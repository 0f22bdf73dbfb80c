"""Graphs of sharded training on the page: from a file to lanes, memory, other policies and what-ifs."""

import gzip
import re

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import expect

from pace import optimize
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.web.chromium import Visitor
from tests.api.web.visits import choose, drawn
from tests.sharded_graphs import backward, graph_of

pytestmark = ON_SQLITE

GRAPH = graph_of(backward(4))
FILE = "Drop a file here"


def test_a_graph_is_planned_and_drawn(visitor: Visitor) -> None:
    """Compute, the wire, memory and certificate; a budget is planned within, and others are flagged."""
    page = visitor.go()
    choose(page, FILE, ("graph.json.gz", gzip.compress(GRAPH.to_json())))
    drawn(page)
    expect(page).to_have_url(re.compile("result.graph=[0-9a-f]{32}"))
    labels = page.locator(".gantt .lane-label").all_text_contents()
    assert labels == [
        "compute",
        "wire wire",
        "memory",
        "certificate",
        *["compute", "wire wire", "memory"] * 2,
    ]
    policies = page.get_by_role("region", name="Policies").locator("tbody tr")
    expect(policies).to_have_count(3)
    page.get_by_label("Transformer blocks").check()
    expect(policies).to_have_count(4)
    expect(page.get_by_text("over the budget")).to_have_count(0)
    # Everything is compared with one policy: FSDP2, or else the first one that is shown.
    headings = page.get_by_role("region", name="Policies").locator("th")
    expect(headings.filter(has_text="Against FSDP2")).to_have_count(1)
    expect(page.locator(".gantt .band-title").filter(has_text="against FSDP2")).to_have_count(3)
    expect(page.get_by_text("against PACE")).to_have_count(0)
    expect(page.locator(".numbers dt").first).to_have_text("FSDP2, simulated")
    page.get_by_label("FSDP2", exact=True).uncheck()
    expect(headings.filter(has_text="Against As traced")).to_have_count(1)
    page.get_by_label("FSDP2", exact=True).check()
    predicted = optimize(GRAPH).predicted
    peak = predicted.peak_bytes or 0
    page.get_by_label("Memory budget").fill(str(peak / 1e9))
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile(r"at most, budget"))).to_have_count(4)
    expect(page.locator(".gantt path.critical[d^=M]")).to_have_count(4)
    visitor.tolerated = lambda fault: "422" in fault
    page.get_by_label("Memory budget").fill("1e-9")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("too small")


def test_pointing_at_a_collective_marks_it_in_all_rows(visitor: Visitor, service: Caller) -> None:
    """From the keyboard; the collective is read out, and memory with its distance to the budget."""
    body = {"graph": GRAPH.model_dump(mode="json"), "memory_bytes": 10**9}
    made = service.http.post("/v1/graph-schedules", json=body).json()
    page = visitor.go(f"result?graph={made['id']}&policies=as-traced")
    drawn(page)
    page.get_by_role("application").focus()
    page.keyboard.press("]")
    page.keyboard.press("ArrowDown")
    status = page.locator(".gantt [role=status]")
    expect(status).to_contain_text(re.compile("wire wire: (all-gather|reduce-scatter)"))
    expect(page.locator(".gantt path.alike[d^=M]")).to_have_count(2)
    page.keyboard.press("ArrowDown")
    expect(status).to_contain_text("below the budget")


def test_what_ifs_of_a_graph_are_drawn(visitor: Visitor, service: Caller) -> None:
    """Over bandwidth, over ranks, and over the memory budget, where some policies do not fit."""
    made = service.http.post("/v1/graph-schedules", json={"graph": GRAPH.model_dump(mode="json")}).json()
    page = visitor.go(f"result?graph={made['id']}&policies=none")
    drawn(page)
    page.get_by_role("link", name="What if…").click()
    page.wait_for_selector("canvas")
    points = page.get_by_role("region", name="Simulated points").locator("tbody tr")
    expect(points).to_have_count(20)
    page.get_by_label("Over", exact=True).select_option("ranks")
    expect(page.get_by_text("Costs change like those of a ring")).to_be_visible()
    expect(points).to_have_count(8)
    expect(points.first).to_contain_text("2")
    visitor.tolerated = lambda fault: "422" in fault
    page.get_by_label("From").fill("3")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("do not divide into 3 shards")
    page.get_by_label("Over", exact=True).select_option("memory")
    page.get_by_label("From").fill("8e-7")
    page.keyboard.press("Enter")
    expect(page.get_by_text("over the budget").first).to_be_visible()
    page.get_by_label("From").fill("1e-7")
    page.keyboard.press("Enter")
    expect(page.get_by_text("no plan fits").first).to_be_visible()
