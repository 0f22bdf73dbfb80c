"""The validation of throughput predictions, at its smallest: real TCP between real hosts."""

import json
from pathlib import Path

import pytest

from benchmarks.studies.throughput.compare import (
    Comparison,
    compare_all,
    replay_errors,
    repredict_runs,
    tables,
)
from benchmarks.studies.throughput.shapes import shape_of
from benchmarks.studies.throughput.tcp_runs import (
    TcpSystem,
    even_link,
    job_of,
    measure_shares,
    run_tcp,
    steps_document,
)


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.usefixtures("namespaces")
def test_training_over_tcp_and_its_prediction(tmp_path: Path) -> None:
    """A lone worker's steps are recorded; two workers are measured and predicted from them, also later."""
    rows = list(
        compare_all(
            TcpSystem("window", 100),
            models=["alexnet"],
            ratios=[1.0],
            workers=[2],
            servers=[2],
            total_bytes=6e5,
            profiled=4,
            steps=12,
            skip=4,
            repetitions=1,
        )
    )
    (profile, profiled), (found, row) = rows
    assert profile is None
    assert isinstance(profiled["replay_errors"], list)
    assert len(profiled["replay_errors"]) == 4
    assert isinstance(found, Comparison)
    assert found.discipline == "window"
    # Both are rates of the same training: even on a busy machine one is no multiple of the other.
    assert 0.3 < found.predicted / found.measured[0] < 3
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"rows": [profiled, row]}))
    (repredicted,), (kept,) = repredict_runs([record], steps=12, skip=4)
    assert repredicted == found
    assert kept == json.loads(json.dumps(profiled))
    assert f"| alexnet | 1 | 2 | 2 | {found.measured[0]:.3g} |" in tables([repredicted], [kept])


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.usefixtures("namespaces")
def test_shares_are_measured_in_both_directions() -> None:
    """Real shares are never exactly equal, and none of these takes the whole link."""
    shares = measure_shares(3, size_bytes=50_000, link=even_link(100), rounds=3)
    assert set(shares) == {"down", "up"}
    assert all(0 < spread < 2 for spread in shares.values())


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("discipline", ["fifo", "tic"])
def test_recorded_steps_hold_every_byte(discipline: str) -> None:
    """What is recorded makes a valid document: every layer is pulled, computed and pushed in order."""
    shape = shape_of("vgg", total_bytes=2e5, ratio=2.0, bytes_per_s=12e6)
    job = job_of(shape, workers=1, servers=1, discipline="fifo" if discipline == "fifo" else "tic")
    ends, records, rate = run_tcp(job, rate_mbit_s=100, steps=3, seed=0)
    document = steps_document(job, records, rate, "vgg")
    assert document.bytes_of("downlink") == document.bytes_of("uplink") == (sum(shape.layers),)
    assert len(ends[0]) == len(document.steps) == 3
    assert len(replay_errors(document)[0]) == 3
