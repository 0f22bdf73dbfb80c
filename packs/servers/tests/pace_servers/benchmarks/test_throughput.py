"""The validation of throughput predictions, at its smallest: real TCP between real hosts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.prerequisites import Unavailable, require_tensorflow
from benchmarks.harness.training.tensorflow_peer import START_NICE, run_as_this_process
from benchmarks.studies.throughput.compare import Comparison, compare_all, measured_rate, replay_errors
from benchmarks.studies.throughput.repredict import repredict_runs, tables
from benchmarks.studies.throughput.shapes import ALL_SHAPES, shape_of
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


def test_shapes_keep_their_totals() -> None:
    """Every model has the bytes and the ratio that were asked for."""
    for name in ALL_SHAPES:
        shape = shape_of(name, total_bytes=1e7, ratio=0.5, bytes_per_s=1e7)
        assert sum(shape.layers) == pytest.approx(1e7, rel=1e-3)
        assert sum(shape.forward_s) + sum(shape.backward_s) == pytest.approx(4.0, rel=1e-3)


def test_rates_are_measured_between_warm_up_and_the_first_end() -> None:
    """Two workers: steps in (2, 6] s, of which there are 4 and 2."""
    assert measured_rate([[1, 2, 3, 4, 5, 6], [2, 4, 6, 8]], 1) == pytest.approx(6 / 4)
    assert measured_rate([[1, 2, 3], [4, 8, 12]], 1) == 0  # one has ended before the other is warm


def test_an_interpreter_without_tensorflow_is_refused_in_one_line() -> None:
    """Before any host is made: one that is not there, and one that lacks it."""
    with pytest.raises(Unavailable, match="No such file"):
        require_tensorflow(Path("/nowhere/python"))
    with pytest.raises(Unavailable, match="has no TensorFlow"):
        require_tensorflow(Path(sys.executable))


@pytest.mark.netns
def test_a_started_process_gets_its_starters_priority() -> None:
    """Every thread of a process that started below this one has its priority afterwards."""
    program = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print()"
    started = subprocess.Popen(
        ["nice", "-n", str(START_NICE), sys.executable, "-c", program], stdout=subprocess.PIPE
    )
    with started as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            threads = [int(thread.name) for thread in Path(f"/proc/{process.pid}/task").iterdir()]
            mine = os.getpriority(os.PRIO_PROCESS, 0)
            assert len(threads) == 2
            assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {min(mine + START_NICE, 19)}
            run_as_this_process(process)
            assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {mine}
        finally:
            process.kill()
