"""The study of failures under DiLoCo: a tiny run in which a worker is killed."""

import json
from pathlib import Path

import pytest

from tests.testbed.benchmark_run import run_benchmark


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.races_with_machine(reason="the killed worker must start and end a round within 3 s")
def test_a_killed_worker_comes_back_and_is_counted(tmp_path: Path) -> None:
    """Two workers over daemons, one of which is killed once: afterwards it takes part in rounds again."""
    numbers = tmp_path / "failures.json"
    setting = (
        "--workers 2 --minutes 0.12 --every-s 3.7 --step-s 0.01 --steps 5 --megabytes 0.01 --deadline-s 3"
    )
    command = f"diloco.failures {setting} --json {numbers} --logs {tmp_path}"
    output = run_benchmark(command.split(), timeout_s=600)
    found = json.loads(numbers.read_text())["pace"]
    assert [found[part]["killed"] for part in ("calm", "rough")] == [0, 1]
    for part in ("calm", "rough"):
        assert 0 < found[part]["outer"] <= found[part]["local"] <= 2 * found[part]["outer"]
    assert found["calm"]["local_after_kill"] == 0
    assert 0 < found["rough"]["local_after_kill"] < found["rough"]["local"]
    assert output.count("minutes lost in an hour") == 2
    assert (tmp_path / "pace.errors").read_text().count("Traceback") == 0
