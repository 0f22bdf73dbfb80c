"""The command of the testbed: grids, contenders, and the page of a record of parameter servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.layouts import Layout
from benchmarks.harness.results import (
    ContenderResult,
    MeasuredWindows,
    SettingResult,
    as_document,
    from_document,
)
from benchmarks.studies import testbed


def contender(name: str, windows_ms: list[float], **more: Any) -> ContenderResult:
    """Return a contender that was predicted 440 ms, with a bound of 400 ms."""
    return ContenderResult(
        name=name,
        label=name.upper(),
        peer=not name.startswith("pace"),
        rounds_s=[[window / 1e3 for window in windows_ms]],
        predicted_s=0.44,
        bound_s=0.4,
        largest_weight_error=1e-7,
        **more,
    )


@pytest.fixture
def setting() -> SettingResult:
    """FIFO 600, whole tensors 800, P3 wrong, ours 420 and 500; TensorFlow 1050 in step, failed without."""
    return SettingResult(
        model="vgg16",
        ratio=1.0,
        compute_s=0.4,
        plain_s=0.402,
        gradients=32,
        total_bytes=10_000_000,
        time_factor=0.4,
        size_factor=0.02,
        load=0.5,
        contenders=[
            contender("servers-fifo", [590, 600, 610]),
            contender("servers-fifo-whole", [800, 800, 800]),
            contender("servers-p3", [300, 300, 300], disqualified="weights are off by 1"),
            contender("pace-servers", [420, 420, 420]),
            contender("pace-servers-static", [500, 500, 500]),
        ],
        layout="2+2",
        pacing_bytes_per_s=12.5e6,
        unmodified=[
            MeasuredWindows(
                name="tensorflow-sync", label="TensorFlow, in step", rounds_s=[[1.05, 1.05, 1.0]]
            ),
            MeasuredWindows(
                name="tensorflow-async", label="TensorFlow, async", rounds_s=[], disqualified="it broke"
            ),
        ],
    )


def test_gains_are_over_those_that_count(setting: SettingResult) -> None:
    """By median; who trained wrong is compared with nobody."""
    ours = setting.best_pace
    assert ours is not None
    assert ours.name == "pace-servers"
    assert setting.speedup(ours, ("servers-fifo",)) == pytest.approx(600 / 420)
    assert setting.speedup(ours, ("servers-fifo-whole",)) == pytest.approx(800 / 420)
    assert setting.speedup(ours, ("servers-p3",)) is None
    best = setting.best()
    assert best is not None
    assert best.name == "servers-fifo"


def test_json_and_page_show_everyone(
    setting: SettingResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is written is read back equal; the page is made from it alone."""
    document = json.loads(json.dumps(as_document(setting)))
    assert from_document(document) == setting
    names = ("date", "pace", "commit", "torch", "horovod", "python", "kernel", "cores")
    record = {
        "command": "python -m benchmarks testbed servers",
        "conditions": {
            **dict.fromkeys(names, "x"),
            "frameworks": {},
            "rate_mbit_s": 200.0,
            "burst_ms": 1,
            "compute_s": 0.4,
            "rounds": 1,
            "windows": 3,
            "took_s": 120,
        },
        "networks": [
            {
                "layout": "2+2",
                "rate_mbit_s": [190.0, 191.0],
                "congestion_control": "cubic",
                "exchange": {"worker_bytes_per_s": 23e6, "round_trip_s": 2e-4, "partition_s": 7e-6},
            }
        ],
        "settings": [document],
    }
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    monkeypatch.setattr("sys.argv", ["testbed", "servers", "--read", str(path)])
    assert testbed.main() == 0
    page = capsys.readouterr().out
    place = "vgg16, 2+2, ratio 1, paced"
    assert (
        f"| {place} | PACE-SERVERS (fastest) | 420.0 | +5.0 % | x 1.43 | x 1.90 | x 1.43 | SERVERS-FIFO |"
        in page
    )
    assert "| SERVERS-P3 | disqualified | weights are off by 1 |" in page
    assert "| PACE-SERVERS | 420.0 | 0.0% | x 1.43 | +5.0 % | 440.0 (+4.8 %) | 1.0e-07 |" in page
    assert f"| {place} | TensorFlow, in step | 1050 |" in page
    assert "| TensorFlow, async | failed | it broke |" in page
    assert "Connections paced at 100 Mbit/s." in page
    assert "**PACE over servers, overtake**: 5.0% above the bound in the median of 1 settings" in page


def test_the_command_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contenders are listed; unknown ones and layouts are refused."""
    monkeypatch.setattr("sys.argv", ["testbed", "servers", "--list"])
    assert testbed.main() == 0
    listed = capsys.readouterr().out
    assert "servers-bytescheduler" in listed
    assert "horovod" not in listed
    for wrong in (
        ["--contenders", "nobody"],
        ["--layouts", "one"],
        ["--models", "alexnet"],
        ["real", "--clip"],
    ):
        with pytest.raises(SystemExit):
            testbed.parse(wrong)


def test_options_change_the_kind_s_grid() -> None:
    """A kind of record has a grid of its own; a quick run has the first of everything, but both pacings."""
    _, grid = testbed.parse(["servers", "--layouts", "2+1,4+1", "--pacing", "on", "--models", "vgg16"])
    assert grid.layouts == (Layout(2, 1), Layout(4, 1))
    assert (grid.pacing, grid.models) == ((True,), ("vgg16",))
    _, quick = testbed.parse(["servers", "--quick", "--layouts", "4c,2+2", "--ratios", "2,1"])
    assert (quick.layouts, quick.ratios, quick.rounds) == ((Layout(4, 4, True),), (2.0,), 2)
    assert quick.pacing == (True, False)
    assert testbed.parse(["clipped"])[1].clip
    assert testbed.parse(["hsdp"])[1].layouts == (Layout(4, shards=2),)
    assert testbed.parse(["real"])[1].models == ("cnn", "encoder")
