"""Section 7.3 of MLfabric's paper: what each way of surviving a failure costs."""

import pytest

from benchmarks.studies.papers.mlfabric import fault_tolerance


def test_what_an_iteration_takes_longer_is_added_8000_times(capsys: pytest.CaptureFixture[str]) -> None:
    """A chain that adds 1.5 s costs 200 minutes, a replica that adds 0.3 s costs 40."""
    fault_tolerance({30: 0.3, 600: 0.15}, 1.5)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    minutes = {row[0]: row[-1] for row in rows if row[0]}
    assert minutes["chain of two servers, beside one (asynchronous)"] == "200.00"
    assert minutes["replica, lead 30"] == "40.00"
    # The fit: so many checkpoints are the paper's 76 minutes, and a third each takes a third.
    assert minutes["checkpoint every iteration"] == "76.00"
    assert minutes["three hosts write a third each, every iteration"] == f"{76 / 3:.2f}"
