"""What a job could gain, worked out by hand and from a trace."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.collective_costs import AffineAllReduce
from pace.formats.any_format import read_any
from pace.formats.reading import FormatWarning
from pace.view.headroom_page import headroom_page, text_lines
from pace.view.step_timelines import step_timelines
from pace.whatif.headroom import headroom
from tests.pace.formats.kineto_features import launched_events
from tests.pace.formats.traces import kineto_document, write_json
from tests.pace.whatif.two_layers import MB, PROFILE, anchored_profile


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


def test_on_another_network_gains_are_over_ddp(tmp_path: Path) -> None:
    """The recorded step ran on its own network: on a slow one DDP takes longer than it, and PACE gains."""
    trace, profile = str(tmp_path / "t.json"), str(tmp_path / "p.json")
    write_json(Path(trace), kineto_document(launched_events()))
    run = CliRunner()
    assert run.invoke(app, ["import", "kineto", trace, "-o", profile]).exit_code == 0
    for source in (trace, profile):
        found = {}
        for rate in ("100", "0.0001"):
            asked = run.invoke(app, ["headroom", source, "--bandwidth-gbps", rate, "--json"])
            found[rate] = json.loads(asked.stdout)
            assert found[rate]["recorded"] is None
            assert found[rate]["plain"]["gains"]["ddp_s"] == 0
        slow, fast = found["0.0001"], found["100"]
        assert slow["plain"]["ddp_s"] > 2 * fast["plain"]["ddp_s"]
        assert slow["time"]["exposed_communication_s"] > 10 * fast["time"]["exposed_communication_s"]
        assert not any("already hidden" in line for line in slow["advice"])
        with pytest.warns(FormatWarning, match="among 2 workers, and may be higher among 64: give it"):
            others = read_any([source], workers=64)
        assert headroom(others).recorded is None


def test_gains_are_over_the_recorded_step() -> None:
    """One bucket takes 6 s, the best 5: a sixth less. The first line names the job."""
    made = headroom(anchored_profile())
    assert made.job == "DDP (certain: made by hand)"
    assert made.gain(made.plain.ddp_best_caps_s) == pytest.approx(1 / 6)
    assert (
        made.advice[0]
        == "Pass bucket_cap_mb_list to DistributedDataParallel: 16.7% less than the recorded step."
    )


def test_own_caps_that_are_the_best_are_not_outdone() -> None:
    """A job that takes 5 s already is not told to change what it does."""
    made = headroom(anchored_profile(window_s=5.0))
    assert made.gain(made.plain.ddp_s) == pytest.approx(-1 / 5)
    assert not any("bucket_cap_mb_list" in line for line in made.advice)


def test_gains_below_the_replays_error_are_withheld() -> None:
    """A sixth is promised, and the replay is a fifth off: a warning, and no percentage anywhere."""
    made = headroom(anchored_profile(error=0.2), warnings=("the cost is old",))
    assert made.gain(made.plain.ddp_best_caps_s) is None
    assert made.warnings[0].startswith("percentages are withheld")
    assert made.to_document()["plain"]["gains"]["pace_s"] is None
    lines = list(text_lines(made))
    page = headroom_page(made)
    assert lines.index(f"warning: {made.warnings[0]}") < lines.index(made.advice[-1])
    assert page.index("percentages are withheld") < page.index("What to do")
    assert list(made.to_document()).index("warnings") < list(made.to_document()).index("advice")
    assert not any("16.7%" in line for line in lines[3:])


def test_where_gains_are_withheld_no_row_has_one() -> None:
    """4 % are promised and the replay is a tenth off: not even DDP's loss of 15 % is told."""
    made = headroom(anchored_profile(window_s=5.2, error=0.1))
    assert made.plain.ddp_s == pytest.approx(6)
    assert made.warnings[0].startswith("percentages are withheld")
    assert set(made.plain.gains.values()) == {None}
    known = headroom(anchored_profile(window_s=5.2, error=0.01))
    assert known.plain.gains["ddp_s"] == pytest.approx(1 - 6 / 5.2)


def test_another_network_is_not_answered_more_exactly_than_the_replay() -> None:
    """A sixth is promised over DDP, and the replay is a fifth off: no percentage, and no advice."""
    profile = anchored_profile(error=0.2)
    replay = {**profile.metadata["replay"], "on_its_network": False}
    made = headroom(profile.replace(metadata={**profile.metadata, "replay": replay}))
    assert made.recorded is None
    assert made.plain.gains == dict.fromkeys(made.plain.gains) | {"ddp_s": 0.0}
    assert made.warnings[0].startswith("percentages are withheld")
    assert made.advice == ("No advice is certain enough: see the warnings above.",)
    assert "A dash: not certain, because the replay is 20.0% off." in list(text_lines(made))


def test_nothing_is_called_hidden_that_the_replay_does_not_explain() -> None:
    """The replay is a third too short: what it lacks may be communication."""
    free = PROFILE.replace(allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=0.0))
    assert "already hidden" in headroom(free).advice[-1]
    assert headroom(free.replace(workers=1)).advice == (
        "One worker sends nothing: ask about more with --workers.",
    )
    unexplained = anchored_profile(window_s=4.0, error=-1 / 3).replace(allreduce=free.allreduce)
    assert headroom(unexplained).advice == ("No advice is certain enough: see the warnings above.",)


def test_what_others_wait_for_the_slowest_rank_stands_in_the_table() -> None:
    """The slowest rank waits for nobody, the others a second on average: the row has both."""
    profile = anchored_profile()
    metadata = {**profile.metadata, "late_ranks_s": 1.0, "ranks_waited_s": [0.0, 2.0]}
    made = headroom(profile.replace(metadata=metadata))
    assert made.time.late_ranks_s == 0
    (row,) = (line for line in text_lines(made) if "waiting for late ranks" in line)
    assert row.endswith("0.000 ms for the slowest rank; 1,000.000 ms on average over ranks")
    assert "1,000.000 ms on average over ranks" in headroom_page(made)
    assert any("17% of the step on average, the slowest rank during 0%" in line for line in made.advice)


@pytest.mark.parametrize(
    "metadata",
    [
        {"replay": 3},
        {"replay": {}},
        {"replay": {"error": "x"}},
        {"replay": {"recorded_s": [None]}},
        {"job": 3},
    ],
)
def test_metadata_of_another_form_count_as_none(metadata: dict[str, Any], tmp_path: Path) -> None:
    """Anybody may write metadata: no command fails over them."""
    changed = PROFILE.replace(metadata=metadata)
    path = write_json(tmp_path / "p.json", changed.model_dump(mode="json"))
    for command in (["headroom"], ["optimize"], ["what-if", "--workers", "2"]):
        done = CliRunner().invoke(app, [*command, str(path)])
        assert done.exit_code == 0, done.output
    assert headroom(changed) == headroom(PROFILE)


def test_a_tiny_bucket_is_no_advice() -> None:
    """300 bytes apart would win a second; such buckets are joined with others, and then win nothing."""
    tiny = PROFILE.gradients[1].model_copy(update={"size_bytes": 300})
    made = headroom(PROFILE.replace(gradients=(PROFILE.gradients[0], tiny)))
    assert made.plain.pace_s == pytest.approx(4, abs=0.01)
    assert made.plain.ddp_best_caps_s == pytest.approx(made.plain.ddp_s)
    assert not any("bucket_cap_mb_list" in line for line in made.advice)
    last = PROFILE.gradients[1].model_copy(update={"size_bytes": MB // 50})
    made = headroom(PROFILE.replace(gradients=(PROFILE.gradients[0], last)))
    assert made.plain.bucket_cap_mb_list == pytest.approx((MB / 2**20, MB / 50 / 2**20))


def test_steps_of_two_lengths_are_said(tmp_path: Path) -> None:
    """The third step takes five times as long: the median hides it, so the answer's warnings tell it."""
    events = launched_events()
    for event in events:
        if event["name"] == "ProfilerStep#2":
            event["dur"] += 45_000
        elif event.get("ts", 0) >= 1_028_000:
            event["ts"] += 45_000
    path = write_json(tmp_path / "trace.json", kineto_document(events))
    done = CliRunner().invoke(app, ["headroom", str(path), "--workers", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert any(
        "2 of 3 steps took" in line and "and 1 took 5" in line for line in json.loads(done.stdout)["warnings"]
    )


def test_waiting_for_late_ranks_stays_in_every_plan() -> None:
    """1 s of 7 is waiting: the best is 6, exposed time is what remains, and the two do not overlap."""
    made = headroom(anchored_profile(window_s=7.0, late_s=1.0))
    assert made.plain.pace_s == pytest.approx(6)
    assert made.time.late_ranks_s == pytest.approx(1)
    assert made.time.exposed_communication_s == pytest.approx(2)


def test_exposed_communication_that_no_order_hides_is_called_so() -> None:
    """At 100 times the cost the network is the limit: nothing is hidden, and nothing is to be gained."""
    slow = PROFILE.replace(allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=100 / MB))
    window = headroom(slow).plain.bound_s
    made = headroom(anchored_profile(window_s=window).replace(allreduce=slow.allreduce))
    assert "the network is the limit" in made.advice[-1]


def test_all_reduces_behind_the_backward_pass_are_the_first_thing_to_change() -> None:
    """Two of 1 s each behind 2 s: DDP saves as much as its buckets hide."""
    profile = anchored_profile(window_s=8.0, kind="all-reduces after the backward pass")
    assert headroom(profile).advice[0].startswith("The all-reduces run one after another")
    assert "The recorded step and the planned one" in step_timelines(profile)
