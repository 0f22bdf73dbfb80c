"""Section 7.3 of MLfabric's paper: what each way of surviving a failure costs."""

import pytest

from benchmarks.studies.papers.mlfabric import fault_tolerance


def test_a_chain_of_servers_is_as_slow_as_its_link(capsys: pytest.CaptureFixture[str]) -> None:
    """30 updates of 100 MB need 2.4 s of a link of 10 Gb/s: 1.4 s more than a second, 8,000 times."""
    fault_tolerance({30: 0.3, 600: 0.15}, 1.0)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    minutes = {row[0]: row[-1] for row in rows if row[0]}
    assert minutes["chain of two servers"] == f"{8000 * 1.4 / 60:.2f}"
    assert minutes["replica, lead 30"] == "40.00"
    # The fit: so many checkpoints are the paper's 76 minutes, and a third each takes a third.
    assert minutes["checkpoint every iteration"] == "76.00"
    assert minutes["three hosts write a third each, every iteration"] == f"{76 / 3:.2f}"
