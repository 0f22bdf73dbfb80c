"""Numbers that follow from a record, and the page and chart that show them."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.chart import draw
from benchmarks.harness.contenders import UNTUNED
from benchmarks.harness.report import markdown
from benchmarks.harness.results import (
    ContenderResult,
    MeasuredWindows,
    SettingResult,
    as_document,
    from_document,
)
from benchmarks.studies import testbed


def contender(name: str, windows_ms: list[float], **more: Any) -> ContenderResult:
    """Return a contender that was predicted 550 ms, with a bound of 500 ms."""
    return ContenderResult(
        name=name,
        label=name.upper(),
        peer=not name.startswith("pace"),
        rounds_s=[[window / 1e3 for window in windows_ms]],
        predicted_s=0.55,
        bound_s=0.5,
        largest_weight_error=1e-7,
        **more,
    )


def setting_of(contenders: list[ContenderResult], **more: Any) -> SettingResult:
    """Return a setting of four workers."""
    return SettingResult(
        model="vgg16",
        ratio=1.0,
        compute_s=0.5,
        plain_s=0.505,
        gradients=32,
        total_bytes=12_000_000,
        time_factor=0.4,
        size_factor=0.02,
        load=0.1,
        contenders=contenders,
        **{"layout": "4 workers", **more},
    )


@pytest.fixture
def setting() -> SettingResult:
    """DDP 800, its best size 700, Horovod 600 but wrong, PACE 625."""
    return setting_of(
        [
            contender("ddp", [790, 800, 810]),
            contender("ddp-best", [690, 700, 710], bucket_mib=6.0, sweep_s={"6": 0.7}),
            contender("horovod", [600, 600, 600], disqualified="weights are off by 1"),
            contender("pace-static", [600, 625, 650]),
        ]
    )


@pytest.fixture
def over_servers() -> SettingResult:
    """FIFO 750, whole tensors 1000, P3 wrong, ours 525 and 625; TensorFlow 1050 in step, failed without."""
    return setting_of(
        [
            contender("servers-fifo", [740, 750, 760]),
            contender("servers-fifo-whole", [1000, 1000, 1000]),
            contender("servers-p3", [300, 300, 300], disqualified="weights are off by 1"),
            contender("pace-servers", [525, 525, 525]),
            contender("pace-servers-static", [625, 625, 625]),
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


def test_what_follows_from_the_numbers(setting: SettingResult) -> None:
    """Speed-ups are over the fastest peer that counts, by median; errors and gaps as defined."""
    ours = setting.best_pace
    assert ours is not None
    assert ours.iteration_s == 0.625
    assert setting.speedup(ours) == pytest.approx(700 / 625)
    assert setting.speedup(ours, UNTUNED) == pytest.approx(800 / 625)
    assert ours.error == pytest.approx(550 / 625 - 1)
    assert ours.gap == pytest.approx(0.25)
    assert ours.spread == pytest.approx(0.04)
    assert setting.plain_error == pytest.approx(0.01)


def test_gains_are_over_those_that_count(over_servers: SettingResult) -> None:
    """By median; who trained wrong is compared with nobody."""
    ours = over_servers.best_pace
    assert ours is not None
    assert ours.name == "pace-servers"
    assert over_servers.speedup(ours, ("servers-fifo",)) == pytest.approx(750 / 525)
    assert over_servers.speedup(ours, ("servers-fifo-whole",)) == pytest.approx(1000 / 525)
    assert over_servers.speedup(ours, ("servers-p3",)) is None
    best = over_servers.best()
    assert best is not None
    assert best.name == "servers-fifo"


def test_json_keeps_a_setting(setting: SettingResult) -> None:
    """What is written is read back equal, and holds the derived numbers too."""
    document = json.loads(json.dumps(as_document(setting)))
    assert from_document(document) == setting
    assert document["contenders"][3]["speedup_over_best_peer"] == pytest.approx(1.12)
    assert "iteration_s" not in document["contenders"][2]


def test_a_page_tells_what_compute_waits_for() -> None:
    """With replicas of shards: the bound of both wires, and what it would be with less known."""
    sharded = setting_of(
        [contender("hsdp-fifo", [700, 700, 700]), contender("pace-hsdp", [525, 525, 525])],
        layout="2 replicas of 4 shards",
        two_wires={
            "outer_s": 0.4,
            "beside_s": 0.45,
            "joint_s": 0.5,
            "gather_s": [0.01, 0.02],
            "scatter_s": [0.03, 0.04],
        },
    )
    assert from_document(json.loads(json.dumps(as_document(sharded)))) == sharded
    page = markdown(record_of(sharded, inner_mbit_s=[570.0, 571.0]))
    assert "286-287 Mbit/s of payload (cubic), 570-571 within a replica" in page
    assert (
        "2 units. In an iteration compute waits 30 ms for all-gathers and 70 ms for reduce-scatters. The"
        " bound is 500 ms. If compute went on beside them it would be 450 ms, and without them 400 ms."
    ) in page


def record_of(setting: SettingResult, **network: Any) -> dict[str, Any]:
    """Return a record of one setting, with more about its network."""
    measured = {"layout": setting.layout, "rate_mbit_s": [286.0, 287.0], "congestion_control": "cubic"}
    return {
        "command": "python -m benchmarks testbed",
        "conditions": {
            "frameworks": {},
            **dict.fromkeys(("date", "pace", "commit", "torch", "horovod", "python", "kernel", "cores"), "x"),
            "rate_mbit_s": 300.0,
            "burst_ms": 5,
            "compute_s": 0.5,
            "rounds": 1,
            "rounds_elsewhere": 1,
            "windows": 3,
            "windows_elsewhere": 2,
            "took_s": 120,
        },
        "networks": [measured | network],
        "settings": [as_document(setting)],
    }


def test_page_and_chart_show_everyone(setting: SettingResult, tmp_path: Path) -> None:
    """The page tells speed-ups, errors and who is out and why; the chart is an image."""
    record = record_of(setting)
    page = markdown(record)
    assert (
        "| vgg16, 4 workers, ratio 1 | PACE-STATIC (fastest) | 625.0 | +25.0 % | x 1.28 | x 1.12 | x 1.12 |"
        " DDP-BEST |" in page
    )
    assert "| HOROVOD | disqualified | weights are off by 1 |" in page
    assert "| PACE-STATIC | 625.0 | 4.0% | x 1.12 | +25.0 % | 550.0 (-12.0 %) | 1.0e-07 |" in page
    assert "**PACE on torch, static**: 25.0% above the bound in the median of 1 settings" in page
    assert "within 5 % in 0, 25.0% at the most (vgg16, 4 workers, ratio 1)" in page
    assert "Speed over the best peer: x 1.12 in the median, x 1.12 at the least" in page
    assert "off by 21.4% in the median of 3 measurements, 31.2% at the most" in page
    draw(record, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_page_compares_pace_with_each_frameworks_default(setting: SettingResult, tmp_path: Path) -> None:
    """A row for each framework that both trained; no framework is compared with another's default."""
    setting.contenders.extend(
        [
            contender("pace-ddp", [640, 640, 640]),
            contender("lightning", [810, 810, 810]),
            contender("pace-lightning", [648, 648, 648]),
            contender("accelerate", [800, 800, 800], disqualified="weights differ between ranks"),
            contender("pace-accelerate", [640, 640, 640]),
        ]
    )
    document = as_document(setting)
    record = {**record_of(setting), "settings": [document]}
    record["conditions"]["frameworks"] = {"lightning": "2.6.6"}
    page = markdown(record)
    place = "vgg16, 4 workers, ratio 1"
    assert (
        "## PACE under torch DDP\n\n| setting | PACE | ms | above the bound | over its own default |" in page
    )
    assert f"| {place} | PACE-DDP | 640.0 | +28.0 % | x 1.25 |" in page
    assert f"| {place} | PACE-LIGHTNING | 648.0 | +29.6 % | x 1.25 |" in page
    assert f"| {place} | PACE-ACCELERATE | 640.0 | +28.0 % | - |" in page
    assert "Speed over its own default: x 1.25 in the median" in page
    assert "Lightning 2.6.6" in page
    draw(record, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size


def test_a_record_of_servers_is_shown_from_its_file(
    over_servers: SettingResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is written is read back equal; the page is made from it alone, unmodified peers included."""
    exchange = {"worker_bytes_per_s": 23e6, "round_trip_s": 2e-4, "partition_s": 7e-6}
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record_of(over_servers, exchange=exchange)))
    assert from_document(json.loads(path.read_text())["settings"][0]) == over_servers
    monkeypatch.setattr("sys.argv", ["testbed", "servers", "--read", str(path)])
    assert testbed.main() == 0
    page = capsys.readouterr().out
    place = "vgg16, 2+2, ratio 1, paced"
    assert (
        f"| {place} | PACE-SERVERS (fastest) | 525.0 | +5.0 % | x 1.43 | x 1.90 | x 1.43 | SERVERS-FIFO |"
        in page
    )
    assert "| SERVERS-P3 | disqualified | weights are off by 1 |" in page
    assert "| PACE-SERVERS | 525.0 | 0.0% | x 1.43 | +5.0 % | 550.0 (+4.8 %) | 1.0e-07 |" in page
    assert f"| {place} | TensorFlow, in step | 1050 |" in page
    assert "| TensorFlow, async | failed | it broke |" in page
    assert "Connections paced at 100 Mbit/s." in page
    assert "**PACE over servers, overtake**: 5.0% above the bound in the median of 1 settings" in page
