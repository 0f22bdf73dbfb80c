"""The record of pushes and pulls: what follows from its numbers, and the page."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed.exchange.command import _arguments, _grid, main
from benchmarks.testbed.exchange.layouts import Layout
from benchmarks.testbed.exchange.results import (
    ExchangeSetting,
    UnmodifiedRun,
    as_exchange_document,
    from_exchange_document,
)
from benchmarks.testbed.results import ContenderResult


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
def setting() -> ExchangeSetting:
    """FIFO 600, whole tensors 800, P3 wrong, ours 420 and 500; TensorFlow 1050 in step, failed without."""
    return ExchangeSetting(
        model="vgg16",
        workers=2,
        ratio=1.0,
        compute_s=0.4,
        plain_s=0.402,
        gradients=32,
        total_bytes=10_000_000,
        time_factor=0.4,
        size_factor=0.02,
        load=0.5,
        contenders=[
            contender("fifo", [590, 600, 610]),
            contender("fifo-whole", [800, 800, 800]),
            contender("p3", [300, 300, 300], disqualified="weights are off by 1"),
            contender("pace-overtake", [420, 420, 420]),
            contender("pace-static", [500, 500, 500]),
        ],
        layout="2+2",
        pacing_bytes_per_s=12.5e6,
        unmodified=[
            UnmodifiedRun(name="tensorflow-sync", label="TensorFlow, in step", windows_s=[1.05, 1.05, 1.0]),
            UnmodifiedRun(
                name="tensorflow-async", label="TensorFlow, async", windows_s=[], failed="it broke"
            ),
        ],
    )


def test_gains_are_over_those_that_count(setting: ExchangeSetting) -> None:
    """By median; who trained wrong is compared with nobody."""
    ours = setting.best_ours
    assert ours is not None
    assert ours.name == "pace-overtake"
    assert setting.gain(ours, "fifo") == pytest.approx(600 / 420)
    assert setting.gain(ours, "fifo-whole") == pytest.approx(800 / 420)
    assert setting.gain(ours, "p3") is None
    best = setting.best()
    assert best is not None
    assert best.name == "fifo"


def test_json_and_page_show_everyone(
    setting: ExchangeSetting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written is read back equal; the page is made from it alone."""
    document = json.loads(json.dumps(as_exchange_document(setting)))
    assert from_exchange_document(document) == setting
    names = ("date", "pace", "commit", "torch", "python", "kernel", "cores")
    record = {
        "exchange": "ps",
        "command": "python -m benchmarks.testbed --exchange ps",
        "conditions": {
            **dict.fromkeys(names, "x"),
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
    assert main(["--exchange", "servers", "--read", str(path)]) == 0
    page = capsys.readouterr().out
    assert (
        "| vgg16 | 2+2 | 1 | yes | PACE-OVERTAKE | 420 | +5.0 % | x 1.43 | x 1.90 | x 1.43 | FIFO |" in page
    )
    assert "| P3 | disqualified | weights are off by 1 |" in page
    assert "| PACE-OVERTAKE | 420.0 | 0.0% | +5.0 % | 440.0 (+4.8 %) | x 1.43 | 1.0e-07 |" in page
    assert "| vgg16 | 2+2 | 1 | TensorFlow, in step | 1050 |" in page
    assert "| TensorFlow, async | failed | it broke |" in page
    assert "Connections paced at 100 Mbit/s." in page
    assert "**PACE, overtake**: 5.0% above the bound in the median of 1 settings" in page


def test_the_command_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Contenders are listed; unknown ones and layouts are refused."""
    assert main(["--exchange", "servers", "--list"]) == 0
    assert "bytescheduler" in capsys.readouterr().out
    for wrong in (["--contenders", "nobody"], ["--layouts", "one"], ["--models", "alexnet"]):
        with pytest.raises(SystemExit):
            main(["--exchange", "servers", *wrong])


def test_filters_make_the_grid() -> None:
    """Layouts by name or by numbers; a quick run has the first of everything, with and without pacing."""
    grid = _grid(_arguments(["--workers", "2,4", "--servers", "1", "--pacing", "on", "--models", "vgg16"]))
    assert grid.layouts == (Layout(2, 1), Layout(4, 1))
    assert grid.pacing == (True,)
    quick = _grid(_arguments(["--quick", "--layouts", "4c,2+2", "--ratios", "2,1"]))
    assert (quick.layouts, quick.ratios, quick.rounds) == ((Layout(4, 4, True),), (2.0,), 2)
    assert quick.pacing == (True, False)
