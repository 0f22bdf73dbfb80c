"""Where one begins: files chosen or dropped, traces of several ranks, jobs; what the page may load."""

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Page, expect

from pace.formats.kineto import read_kineto
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import LONG_NAME, choose, drawn
from tests.pace.formats.traces import kineto_document, kineto_events, write_json

pytestmark = ON_SQLITE

TABLE = b"name,forward_ms,backward_ms,parameter_bytes\nfirst,1,2,4000000\nsecond,3,4,8000000\n"


def drop(page: Page, selector: str, files: list[tuple[str, str]]) -> None:
    """Drag files over a part of the page and let them go."""
    carried = page.evaluate_handle(
        """(files) => {
            const carried = new DataTransfer();
            for (const [name, text] of files) carried.items.add(new File([text], name));
            return carried;
        }""",
        files,
    )
    page.dispatch_event(selector, "dragover", {"dataTransfer": carried})
    expect(page.locator(selector)).to_have_class(re.compile("over"))
    page.dispatch_event(selector, "drop", {"dataTransfer": carried})


def rank_trace(folder: Path, rank: int) -> Path:
    """Write the trace of a rank, of which the second waits longer."""
    told = {"backend": "nccl", "rank": rank, "world_size": 2}
    document = kineto_document(kineto_events(waiting_us=50.0 * rank), distributedInfo=told)
    return write_json(folder / f"rank {rank} é.json", document)


def test_the_page_may_load_nothing_from_elsewhere(service: Caller) -> None:
    """Its policy allows its own files and no inline script; the files are served, and asked for anew."""
    http = service.http
    page = http.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert re.findall(r"<script(?![^>]*\bsrc=)|\son\w+=|\bstyle=", page.text) == []
    for path in re.findall(r'(?:src|href)="(web/[^"]+)"', page.text):
        asset = http.get(f"/{path}")
        assert (asset.status_code, asset.headers["cache-control"]) == (200, "no-cache")
        again = http.get(f"/{path}", headers={"If-None-Match": asset.headers["etag"]})
        assert again.status_code == 304
    assert http.get("/web/../service.py").status_code == 404


def test_faults_name_their_field_and_can_be_mended(visitor: Visitor) -> None:
    """A table needs a cost; once it is given the table is read. Nonsense is refused in words."""
    page = visitor.go()
    visitor.tolerated = lambda fault: "status of 422" in fault
    expect(page.get_by_text("Nothing is stored yet")).to_be_visible()
    drop(page, ".drop", [("layers.csv", TABLE.decode())])
    problem = page.get_by_role("alert")
    expect(problem.locator("code")).to_have_text("bandwidth_gbps")
    page.get_by_text("Add what the file does not contain").click()
    page.get_by_label("Bandwidth of a ring, Gbit/s").fill("10")
    page.get_by_label("Workers").fill("4")
    choose(page, "Drop a file here", ("layers.csv", TABLE.replace(b"3,4", b"3,x")))
    expect(problem).to_contain_text("line 3: backward_ms is 'x'")
    choose(page, "Drop a file here", ("a.csv", TABLE), ("b.csv", TABLE))
    expect(problem).to_contain_text("several files must be the Kineto traces")
    drop(page, ".drop", [("layers.csv", TABLE.decode())])
    drawn(page)
    expect(page.get_by_role("heading", name="layers")).to_contain_text("4 workers")


def test_traces_of_several_ranks_are_dropped_together(visitor: Visitor, tmp_path: Path) -> None:
    """They become the profile that the importer makes of all of them."""
    traces = [rank_trace(tmp_path, rank) for rank in (0, 1)]
    page = visitor.go()
    drop(page, ".drop", [(trace.name, trace.read_text()) for trace in reversed(traces)])
    drawn(page)
    expect(page).to_have_url(re.compile(f"profile={read_kineto(traces).sha256}"))


def test_jobs_and_profiles_are_at_hand(visitor: Visitor, service: Caller) -> None:
    """What was asked for last leads to its job, and what is stored to its result."""
    service.post_schedule(layered_profile(3), job=LONG_NAME)
    page = visitor.go()
    page.get_by_role("region", name="A job").get_by_role("link", name=LONG_NAME).click()
    expect(page.get_by_role("region", name="Schedules").locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Start").click()
    page.get_by_role("region", name="Stored profiles").get_by_role("link", name="layered", exact=True).click()
    drawn(page)


def test_all_stored_profiles_are_searched(visitor: Visitor, service: Caller) -> None:
    """By the service, beyond the first page; what PACE is and what to drop is said above."""
    for number in range(12):
        profile = layered_profile(2, name=f"needle {number}" if number < 2 else f"hay {number}")
        assert service.http.post("/v1/profiles", json=profile).status_code == 201
    page = visitor.go()
    expect(page.get_by_role("heading", name="PACE schedules the communication")).to_be_visible()
    for kind in ("PyTorch trace", "PACE profile", "Chakra trace", "Layer table", "Horovod timeline"):
        expect(page.get_by_role("term").filter(has_text=kind)).to_be_visible()
    rows = page.get_by_role("region", name="Stored profiles").locator("tbody tr")
    expect(rows).to_have_count(10)
    expect(rows.filter(has_text="needle")).to_have_count(0)
    page.get_by_label("Name contains").fill("NEEDLE")
    expect(rows).to_have_count(2)
    page.get_by_label("Name contains").fill("nothing like it")
    expect(page.get_by_text("No profile has this name")).to_be_visible()
    page.get_by_role("button", name="Show all profiles").click()
    expect(rows).to_have_count(10)
    page.get_by_role("button", name="Next profiles").click()
    expect(rows.filter(has_text="needle")).to_have_count(2)
