"""The chart of a predicted window: what it says, read from the SVG's text."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest

from pace import Op, Options, Profile, optimize
from pace.documents.collective_costs import AffineAllReduce
from pace.view.chart import plot, plot_windows
from pace.view.window import OpTimes, lay_out
from tests.strategies import affine, layered


def _layers(count: int, *, size: int, op_s: float) -> Profile:
    times = [op_s] * count
    return layered(
        [size] * count,
        dtypes=["float32"] * count,
        backward_s=times,
        forward_s=times,
        allreduce=affine(0.0, 5e-9),
    )


def _profile() -> Profile:
    """Two layers: the first one's gradient is ready last and needed first."""
    return _layers(2, size=1_000_000, op_s=0.01)


def _words(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


def test_the_chart_says_what_is_where(tmp_path: Path) -> None:
    """Gradient b is sent from 10 ms, a from 20 to 40 ms before it goes on to 50 ms: the window takes 60 ms.

    Lanes are named, every segment has its group's number, the legend explains every mark, and the bounds are
    marked with their values: compute alone takes 40 ms, and no schedule beats 60 ms.
    """
    profile = _profile()
    schedule = optimize(profile, Options(fusion="none"))
    assert schedule.predicted.iteration_s == pytest.approx(0.06)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(profile, schedule, tmp_path / "window.svg")
    words = _words(tmp_path / "window.svg")
    assert words.count("compute") == words.count("network") == 1
    numbers = [str(segment.group) for segment in schedule.transfers]
    assert numbers == ["0", "1", "0"]
    assert words.count("1") == 1
    assert words.count("0") == 2 + 1  # and the axis begins at 0
    assert {
        "layered: 60.0 ms predicted, 0.0% over the bound; 2 groups in 3 segments",
        "this schedule, 60.0 ms",
        "no schedule is faster, 60.0 ms",
        "compute alone, 40.0 ms",
        "a group is ready",
        "groups that make the bound",
        "compute that waits for no gradient",
        "compute that waited for gradients",
    } <= set(words)


def test_a_gap_that_rounds_to_nothing_has_no_sign(tmp_path: Path) -> None:
    """Sums in another order may end a hair before the bound."""
    profile = _profile()
    schedule = optimize(profile, Options(fusion="none"))
    predicted = schedule.predicted.model_copy(update={"gap": -6.7e-16})
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(profile, schedule.model_copy(update={"predicted": predicted}), tmp_path / "window.svg")
    assert any("predicted, 0.0% over the bound" in words for words in _words(tmp_path / "window.svg"))


def test_segments_too_narrow_for_their_number_stay_apart(tmp_path: Path) -> None:
    """Of 60 gradients as many numbers are written as have room; none is written over another."""
    profile = _layers(60, size=1000, op_s=1e-4)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(profile, optimize(profile, Options(fusion="none")), tmp_path / "window.svg")
    below = re.findall(
        r'<text style="font-size: 7px[^"]*text-anchor: middle[^"]*"[^>]*x="([\d.]+)"[^>]*>(\d+)</text>',
        (tmp_path / "window.svg").read_text(),
    )
    places = sorted(float(x) for x, _ in below)
    assert len(places) > 10
    assert all(after - before > 4 for before, after in pairwise(places))


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_ending_chooses_the_format(tmp_path: Path, ending: str, magic: bytes) -> None:
    """A profile without gradients has a window too."""
    profile = Profile(
        name="compute",
        workers=2,
        ops=(Op(name="bwd/a", duration_s=0.01),),
        gradients=(),
        allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1e-9),
    )
    path = tmp_path / f"window.{ending}"
    plot(profile, optimize(profile), path)
    assert path.read_bytes().startswith(magic)


def test_a_measured_window_stands_below_the_predicted_one(tmp_path: Path) -> None:
    """On one scale of time; what was on the network at once has rows of its own."""
    profile = _profile()
    predicted = lay_out(profile, optimize(profile, Options(fusion="none")))
    late = [
        replace(each, start_s=each.start_s + 0.1 * at, end_s=each.end_s + 0.1)
        for at, each in enumerate(predicted.transfers)
    ]
    measured = replace(
        predicted, times=OpTimes(), lanes=(), op_lanes=(), transfers=tuple(late), iteration_s=0.16
    )
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        shown = [("as predicted", predicted), ("as measured", measured)]
        plot_windows(shown, tmp_path / "both.svg")
    words = _words(tmp_path / "both.svg")
    assert words.index("as predicted") < words.index("as measured")
    assert words.count("compute") == 1
    rows = measured.link_rows[0]
    assert [words.count(name) for name in rows] == [2, *(1 for _ in rows[1:])]
    assert "compute that waits for no gradient" in words
    assert 120 <= max(int(word) for word in words if word.isdigit()) <= 160  # the axis of both
