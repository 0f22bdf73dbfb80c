"""The headroom report: the call that can be pasted, what its words mean, and the page in a real browser."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.view.headroom_page import CAPS_TORCH, caps_lines, headroom_page, text_lines
from pace.whatif.headroom import Headroom, headroom
from tests.pace.formats.job_kinds import document_of, hybrid_events
from tests.pace.formats.traces import horovod_events, write_json
from tests.pace.whatif.two_layers import anchored_profile

DDP_AS_IT_COMES = "DDP as it comes has a first bucket of 1 MiB and then buckets of 25 MiB."
NEEDS = "# torch 2.13 takes this list; a torch without it takes one number, bucket_cap_mb"


def _made(folder: Path) -> tuple[Path, Headroom]:
    """Return a profile's file, whose recorded step sends two gradients in one bucket, and its answer."""
    profile = anchored_profile(late_s=0.5, window_s=6.5)
    path = write_json(folder / "profile.json", profile.model_dump(mode="json"))
    return path, headroom(profile)


def test_the_call_with_the_best_caps_can_be_pasted(tmp_path: Path) -> None:
    """The caps are those of the answer to a byte, the comment names the torch that takes them."""
    _, made = _made(tmp_path)
    lines = caps_lines(made)
    assert lines[0] == NEEDS
    assert CAPS_TORCH == "2.13"
    (statement,) = ast.parse("\n".join(lines)).body
    assert isinstance(statement, ast.Assign)
    call = statement.value
    assert isinstance(call, ast.Call)
    assert ast.unparse(call.func) == "DistributedDataParallel"
    (keyword,) = call.keywords
    assert keyword.arg == "bucket_cap_mb_list"
    given = [cap * 2**20 for cap in ast.literal_eval(keyword.value)]
    assert given == pytest.approx([cap * 2**20 for cap in made.plain.bucket_cap_mb_list], abs=0.6)
    assert list(text_lines(made))[-2:] == lines


def test_torch_takes_the_pasted_keyword() -> None:
    """From the version on that the report names."""
    torch = pytest.importorskip("torch")
    parallel = pytest.importorskip("torch.nn.parallel").DistributedDataParallel
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    takes = "bucket_cap_mb_list" in inspect.signature(parallel.__init__).parameters
    assert takes == (version >= tuple(map(int, CAPS_TORCH.split("."))))


def test_the_report_says_what_ddp_as_it_comes_is(tmp_path: Path) -> None:
    """In the text and on the page, but not for jobs that DDP cannot run."""
    _, made = _made(tmp_path)
    assert DDP_AS_IT_COMES in list(text_lines(made))
    assert DDP_AS_IT_COMES in headroom_page(made)
    assert any(line.startswith("DDP as it comes ") for line in text_lines(made))
    other = write_json(tmp_path / "hsdp.json", document_of(hybrid_events(), workers=4))
    timeline = write_json(tmp_path / "timeline.json", horovod_events())
    for path in (other, timeline):
        answer = CliRunner().invoke(app, ["headroom", str(path)])
        assert answer.exit_code == 0, answer.output
        assert "DDP as it comes" not in answer.stdout


def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """The recorded step stands above the planned one; no script fails, and a phone need not scroll.

    In the dark only colors differ.
    """
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    from tests.api.web.chromium import Visitor, chromium

    profile, made = _made(tmp_path)
    file = tmp_path / "page.html"
    answer = CliRunner().invoke(app, ["headroom", str(profile), "--clip", "--html", str(file)])
    assert answer.exit_code == 0, answer.output
    narrow: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}
    with chromium() as browser:
        for options in ({}, narrow):
            with Visitor(browser, tmp_path.as_uri(), color_scheme="light", **options) as visitor:
                page = visitor.page
                page.goto(file.as_uri())
                recorded = page.get_by_role("img", name="The recorded step").bounding_box()
                planned = page.get_by_role("img", name="The planned step").bounding_box()
                assert recorded is not None
                assert planned is not None
                assert recorded["y"] + recorded["height"] <= planned["y"]
                assert recorded["width"] == planned["width"] > 0
                assert page.locator("pre").inner_text().splitlines() == caps_lines(made)
                assert page.get_by_text(DDP_AS_IT_COMES).is_visible()
                widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                assert widths[0] <= widths[1]
                assert visitor.accessibility_faults() == []
                text_color = page.evaluate("getComputedStyle(document.body).color")
                page.emulate_media(color_scheme="dark")
                assert page.evaluate("getComputedStyle(document.body).color") != text_color
                assert visitor.accessibility_faults(["color-contrast"]) == []
