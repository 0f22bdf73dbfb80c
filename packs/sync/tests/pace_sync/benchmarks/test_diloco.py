"""The studies of DiLoCo: a tiny run in which a worker is killed, and options that cannot be measured with."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("diloco.failures --workers 1", "--workers 1: expected 2 or more"),
        ("diloco.failures --deadline-s 0", "--deadline-s 0.0: expected a number above 0"),
        ("diloco.failures --minutes 1 --every-s 90", "--every-s is longer than --minutes"),
        ("diloco --workers 1", "--workers 1: expected 2 or more"),
        ("diloco --step-s -1", "--step-s -1.0: expected a number above 0"),
        ("diloco --periods 2", "--periods 2: expected more than 2, which are not counted"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    """By both studies alike, before any process is started."""
    monkeypatch.setattr("sys.argv", ["benchmarks", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
