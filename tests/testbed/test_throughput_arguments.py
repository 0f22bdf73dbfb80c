"""What the throughput benchmark cannot measure is refused before it measures anything."""

import sys

import pytest

from benchmarks.__main__ import main


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
def test_bad_arguments_are_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below the usage, and not after minutes of measuring."""
    monkeypatch.setattr(sys, "argv", ["python -m benchmarks", "throughput", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
