"""What a job could gain, worked out by hand and from a trace."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Gradient, Op, Profile
from pace.whatif.headroom import headroom
from tests.pace.formats.kineto_features import launched_events
from tests.pace.formats.traces import kineto_document, write_json

MB = 1_000_000

# Backward 1 s and 1 s, forward 1 s and 1 s; the gradient ready first is needed last. A MB takes 1 s.
PROFILE = Profile(
    name="two layers",
    workers=2,
    ops=(
        Op(name="bwd/1", duration_s=1.0, stream="compute"),
        Op(name="bwd/0", duration_s=1.0, stream="compute"),
        Op(name="fwd/0", duration_s=1.0, stream="compute", waits_for=("g0",)),
        Op(name="fwd/1", duration_s=1.0, stream="compute", waits_for=("g1",)),
    ),
    gradients=(
        Gradient(name="g1", size_bytes=MB, dtype="uint8", producer="bwd/1"),
        Gradient(name="g0", size_bytes=MB, dtype="uint8", producer="bwd/0"),
    ),
    allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1 / MB),
)


def test_two_layers_by_hand() -> None:
    """DDP puts both in its first MiB: sent from 2 to 4, forward until 6. Apart: 1 to 2, 2 to 3, until 5."""
    made = headroom(PROFILE, clip=True)
    assert made.plain.ddp_s == pytest.approx(6)
    assert made.plain.ddp_best_caps_s == pytest.approx(5)
    assert made.plain.bucket_cap_mb_list == pytest.approx((MB / 2**20, MB / 2**20))
    assert made.plain.pace_s == pytest.approx(5)
    assert made.plain.bound_s == pytest.approx(5)
    assert made.clipped is not None
    assert made.clipped.pace_s == pytest.approx(5)
    assert made.time.exposed_communication_s == pytest.approx(2)
    assert made.advice[0].startswith("Pass bucket_cap_mb_list")
    assert not any("Wrap the optimizer" in line for line in made.advice)


def test_clipping_takes_away_what_order_gains() -> None:
    """With g1 four times as large, its sum can come while the first layer computes: not under clipping.

    Plain: g1 from 1 to 2, interrupted by g0 from 2 to 3, on until 6, forward 6 to 7. Clipped: all is reduced
    at 6, and the forward pass of 2 s comes after it. In two halves, each half a second a MB: g1's
    sum is there at 3, g0's at 3.5, the gathers at 4 and 6: forward ends at 7.
    """
    larger = PROFILE.gradients[0].model_copy(update={"size_bytes": 4 * MB})
    profile = PROFILE.replace(gradients=(larger, PROFILE.gradients[1]))
    made = headroom(profile, clip=True)
    assert made.plain.pace_s == pytest.approx(7)
    assert made.clipped is not None
    assert made.clipped.pace_s == pytest.approx(8)
    assert made.clipped.ddp_s == pytest.approx(made.plain.ddp_s)
    assert made.clipped.sharded_s == pytest.approx(7, abs=1e-4)
    assert made.clipped.bound_s == pytest.approx(7, abs=1e-4)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - HTMLParser's name
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_command_takes_traces_and_profiles(tmp_path: Path) -> None:
    """The same answer from a trace and from the profile that it makes; the page loads nothing."""
    trace = write_json(tmp_path / "t.json", kineto_document(launched_events()))
    made, page = tmp_path / "p.json", tmp_path / "page.html"
    run = CliRunner()
    assert run.invoke(app, ["import", "kineto", str(trace), "-o", str(made), "--name", "t"]).exit_code == 0
    from_trace = run.invoke(app, ["headroom", str(trace), "--clip", "--json", "--html", str(page)])
    from_profile = run.invoke(app, ["headroom", str(made), "--clip", "--json"])
    assert from_trace.exit_code == 0, from_trace.output
    assert json.loads(from_trace.stdout) == json.loads(from_profile.stdout)
    assert json.loads(from_trace.stdout)["recorded"]["recorded_s"] == pytest.approx(0.01)
    reader = _Reader()
    reader.feed(page.read_text())
    assert reader.links == []
    text = run.invoke(app, ["headroom", str(made)])
    assert "no schedule is faster" in text.stdout
