"""The study of embedding tables: a tiny run of every contender here, and what is refused."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from tests.testbed.benchmark_run import run_benchmark


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_contenders_train_a_tiny_dlrm(tmp_path: Path) -> None:
    """Real servers and a worker each; rows of 8 tables travel to PACE's worker, and are counted."""
    numbers = tmp_path / "embedding.json"
    setting = "--model dlrm --workers 1 --rows 800 --batch 8 --steps 2 --turns 1"
    run_benchmark(f"embedding {setting} --json {numbers}".split(), timeout_s=600)
    found = json.loads(numbers.read_text())["examples_per_s_processor_s_and_bytes"]
    assert list(found) == ["torch RPC", "PACE async", "PACE sync"]
    for name, [(rate, processor_s, carried_bytes)] in found.items():
        assert rate > 0
        assert processor_s > 0
        assert (carried_bytes > 0) == name.startswith("PACE")


def test_tensorflow_needs_an_interpreter_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured, in one line."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "embedding", "--only", "TensorFlow"])
    with pytest.raises(SystemExit):
        main()
    assert "expected --tensorflow" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setattr("sys.argv", ["benchmarks", "embedding", "--tensorflow", "/nowhere/python"])
    assert main() == 3
    assert "embedding: /nowhere/python: No such file" in capsys.readouterr().err
