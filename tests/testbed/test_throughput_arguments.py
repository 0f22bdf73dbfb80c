"""What the throughput benchmark cannot measure is refused before it measures anything."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tcp", "--steps", "5", "--skip", "50"], "--skip 50: expected 1 or more, and less than --steps 5"),
        (["tcp", "--skip", "0"], "--skip 0"),
        (["tcp", "--ratios", "1", "0"], "--ratios: expected numbers above 0"),
        (["tensorflow", "--python", "python", "--workers", "0"], "--workers: expected numbers above 0"),
        (["tcp", "--share-spread-bytes", "3000000"], "expected the --share-spread that was measured with it"),
        (["tcp", "--share-spread", "0.1", "--share-spread-bytes", "0"], "expected 1 or more"),
        (["tcp", "--rate-mbits", "250"], "unrecognized arguments: --rate-mbits 250"),
    ],
)
def test_bad_arguments_are_one_line(arguments: list[str], said: str) -> None:
    """No traceback, and not after minutes of measuring."""
    command = [sys.executable, "-m", "benchmarks", "throughput", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 2
    assert said in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr
