"""A schedule's result: numbers, chart, tables, and everything that can be taken along."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Page, expect

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.kinds import check
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.planning.frameworks.grouping_rules import bucket_cap_mb_list
from pace.simulation import make_policy, run_policy
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import LONG_NAME, choose, download, drawn, milliseconds

pytestmark = ON_SQLITE

PERFETTO = "https://ui.perfetto.dev"
# What Perfetto's page does with other windows: https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
PERFETTO_PAGE = """<!doctype html><title>Perfetto</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else window.given = { origin: event.origin, title: event.data.perfetto.title,
    text: new TextDecoder().decode(event.data.perfetto.buffer) };
});
</script>"""


def shown_certificate(page: Page) -> list[float]:
    """Return the numbers of the certificate, in ms: those that add up, and what they add up to."""
    return [float(part.removesuffix(" ms")) for part in page.locator(".sum b").all_inner_texts()]


def test_from_a_file_to_everything_that_can_be_taken_along(visitor: Visitor) -> None:
    """Numbers, chart, tables and downloads are the service's; clipping asks anew; the link shows the same."""
    page = visitor.go()
    profile = Profile.model_validate(
        layered_profile(12, name=f"layered {LONG_NAME[:120]}")
        | {"metadata": {"batch": 32, "batch_unit": "images"}}
    )
    choose(page, "Drop a file here", ("profile.json", profile.model_dump_json().encode()))
    drawn(page)
    ddp = run_policy(profile, make_policy("ddp")).iteration_s
    row = page.get_by_role("region", name="Policies").get_by_role("row", name="PyTorch DDP")
    expect(row).to_contain_text(milliseconds(ddp))
    expect(row).to_contain_text(f"{32 * profile.workers / ddp:,.0f}")
    expect(page.get_by_role("columnheader", name="images per second")).to_be_visible()

    schedule = Schedule.model_validate_json(download(page, "Schedule (JSON)"))
    assert check(profile, schedule) == []
    pace = page.get_by_role("region", name="Policies").get_by_role("row", name="PACE, this schedule")
    expect(pace).to_contain_text(milliseconds(schedule.predicted.iteration_s))
    parts = shown_certificate(page)
    assert sum(parts[:3]) == pytest.approx(parts[3], abs=0.002)
    assert parts[3] == pytest.approx(schedule.proofs[0].bound_s * 1e3, abs=0.001)
    rows = list(csv.DictReader(download(page, "Segments (CSV)").decode().splitlines()))
    assert [int(row["size_bytes"]) for row in rows] == [each.size_bytes for each in schedule.transfers]
    assert json.loads(download(page, "Chrome trace"))["traceEvents"]
    picture = ElementTree.fromstring(download(page, "Chart as SVG"))
    assert picture.tag.endswith("svg")
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}path")) > 10

    page.get_by_role("button", name="Size").click()
    sizes = page.get_by_role("region", name="Groups").locator("tbody tr")
    assert sizes.count() == min(len(schedule.groups), 25)
    page.get_by_role("group", name="Table").get_by_role("button", name="Segments").click()
    expect(page.get_by_role("region", name="Segments", exact=True)).to_be_visible()

    page.get_by_label("FIFO").check()
    fifo = page.get_by_role("region", name="Policies").get_by_role("row", name="FIFO")
    expect(fifo).to_contain_text(milliseconds(run_policy(profile, make_policy("fifo")).iteration_s))
    page.get_by_role("switch", name="Clipping").check()
    clipped = run_policy(profile.replace(update="global-norm"), make_policy("ddp")).iteration_s
    expect(row).to_contain_text(milliseconds(clipped))
    # Another schedule, whose windows are laid out anew.
    expect(page.get_by_text("With this sharded schedule")).to_be_visible()
    expect(page.get_by_text("Simulating…")).to_have_count(0)
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile("clip=1.*from="))
    axis = page.locator(".axis text").all_text_contents()
    assert len(axis) > 3
    with page.context.new_page() as same:
        same.goto(page.url)
        drawn(same)
        expect(same.get_by_role("switch", name="Clipping")).to_be_checked()
        expect(same.get_by_label("FIFO")).to_be_checked()
        expect(same.locator(".axis text")).to_have_text(axis)


def test_every_policy_of_the_page_can_be_compared(visitor: Visitor, service: Caller) -> None:
    """Each has a box, and once it is ticked its row in the chart and in the table."""
    made = service.post_schedule(layered_profile(6)).json()
    page = visitor.go(f"result?schedule={made['id']}")
    drawn(page)
    boxes = page.get_by_role("group", name="Compare with").get_by_role("checkbox")
    for number in range(boxes.count()):
        if boxes.nth(number).is_enabled():
            boxes.nth(number).check()
    # One row for each, and the schedule's own.
    rows = page.get_by_role("region", name="Policies").locator("tbody tr")
    expect(rows).to_have_count(boxes.count() + 1)
    expect(rows.filter(has_text="TicTac")).to_contain_text(
        milliseconds(
            run_policy(Profile.model_validate(layered_profile(6)), make_policy("tao")).iteration_s,
        )
    )
    expect(page.locator(".gantt .band-title")).to_have_count(boxes.count() + 1)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_table_of_groups_marks_the_set_of_the_certificate(visitor: Visitor, service: Caller) -> None:
    """Not the set of the bound against every fusion, which is another proof."""
    made = service.post_schedule(layered_profile(40, duration_s=0.0001)).json()["schedule"]
    bound, groups = made["bound"], made["groups"]
    of_bound = [
        number
        for number, group in enumerate(groups)
        if group["ready_s"] >= bound["min_ready_s"] and group["tail_s"] >= bound["min_tail_s"]
    ]
    proven = sorted({number for proof in made["proofs"] for number in proof["set"]})
    assert of_bound != proven
    page = visitor.go("result?profile=" + made["profile_sha256"])
    marked = page.get_by_role("region", name="Groups").get_by_role("row").filter(has_text="in the set")
    expect(marked).to_have_count(len(proven))
    shown = [int(row.locator("td").first.inner_text()) for row in marked.all()]
    assert shown == proven


def test_the_code_to_paste_is_that_of_the_way_into_the_job(visitor: Visitor, service: Caller) -> None:
    """PACE's own, and for frameworks that keep their sums the best that they can be told."""
    profile = Profile.model_validate(layered_profile(6))
    made = service.post_schedule(layered_profile(6), job=LONG_NAME).json()
    page = visitor.go(f"result?schedule={made['id']}")
    code = page.get_by_label("Code for the training job")
    expect(code).to_contain_text(f'service="{service.url}", job={json.dumps(LONG_NAME)}')
    way = page.get_by_label("In the training job")
    way.select_option(label="PACE under DistributedDataParallel")
    expect(code).to_contain_text("handle = attach(model, optimizer, plan=Plan(service=")
    best = optimize_allreduce(profile, Options(framework="ddp"))
    way.select_option(label="PyTorch DDP alone, with the best buckets")
    expect(page.get_by_text("Predicted iteration without PACE")).to_be_visible()
    said: dict[str, Any] = {"DistributedDataParallel": lambda _, **given: given}
    exec(code.inner_text().split("\n\n")[1], said | {"model": None}, said)
    assert said["model"] == {"bucket_cap_mb_list": bucket_cap_mb_list(best)}
    assert json.loads(download(page, "Buckets (JSON)")) == said["model"]
    way.select_option(label="Horovod alone, with the best groups")
    expect(code).to_contain_text("groups=groups")
    groups = optimize_allreduce(profile, Options(framework="horovod")).groups
    assert json.loads(download(page, "Groups (JSON)"))["groups"] == [list(each.tensors) for each in groups]


def test_perfetto_is_handed_the_trace(visitor: Visitor, service: Caller) -> None:
    """Its window is greeted until it answers, and gets the schedule's trace and its name."""
    visitor.context.route(
        f"{PERFETTO}/**", lambda route: route.fulfill(body=PERFETTO_PAGE, content_type="text/html")
    )
    made = service.post_schedule(layered_profile(4, name="handed over")).json()
    page = visitor.go(f"result?schedule={made['id']}")
    drawn(page)
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Open in Perfetto").click()
    given = opened.value.wait_for_function("window.given").json_value()
    assert (given["origin"], given["title"]) == (service.url, "handed over")
    trace = service.http.get(f"/v1/schedules/{made['id']}/timeline").json()
    assert json.loads(given["text"]) == trace
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.pack("servers")
def test_pushes_and_pulls_have_their_chart_and_their_proof(visitor: Visitor) -> None:
    """A row for each connection; the certificate adds up to the bound; the code says which backend."""
    layers = layered_profile(4, name="pushed", duration_s=0.01)
    cost = {"kind": "push-pull", "servers": 2, "worker_bytes_per_s": 1e7}
    page = visitor.go()
    choose(page, "Drop a file here", ("pushed.json", json.dumps(layers | {"allreduce": cost}).encode()))
    drawn(page)
    labels = page.locator(".gantt .lane-label").all_text_contents()
    assert labels == [
        "compute",
        *(f"{way} server {number}" for number in (0, 1) for way in ("push to", "pull from")),
        "certificate",
    ]
    schedule = Schedule.model_validate_json(download(page, "Schedule (JSON)"))
    assert schedule.bound is not None
    parts = shown_certificate(page)
    assert sum(parts[:3]) == pytest.approx(parts[3], abs=0.002)
    assert parts[3] == pytest.approx(schedule.bound.bound_s * 1e3, abs=0.001)
    assert schedule.bound.bound_s <= schedule.predicted.iteration_s
    marked = page.get_by_role("region", name="Groups").get_by_role("cell", name="in the set")
    expect(marked).to_have_count(
        sum(
            group.ready_s >= schedule.bound.min_ready_s and group.tail_s >= schedule.bound.min_tail_s
            for group in schedule.groups
        )
    )
    assert marked.count() > 0
    code = page.get_by_label("Code for the training job")
    expect(code).to_contain_text("from pace_servers.runtime import ParameterServers\n")
    expect(code).to_contain_text("communication=ParameterServers()")
    expect(page.get_by_label("Exchange")).to_have_count(0)
