"""The short form of ``soak.py``: mixed load while things are killed, stopped and filled."""

from pathlib import Path

import pytest

from tests.api.postgresql import find_postgresql
from tests.load.soak import LEAST_SAMPLES, MOST_GROWTH, soak

pytestmark = pytest.mark.races_with_machine(reason="faults are injected on a clock while the service works")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_accepted_is_lost_whatever_happens(tmp_path: Path, database: str) -> None:
    """Nothing lost, nothing wrong, memory level; those who could not be served were told why."""
    if database == "postgresql" and find_postgresql() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    result = soak(tmp_path, database, None)
    assert result["faults"] == []
    assert result["memory_samples"] >= LEAST_SAMPLES
    assert result["memory_growth"] <= MOST_GROWTH
    assert result["statuses"][201] + result["statuses"].get(202, 0) >= 3
    assert result["faults_injected"] == result["kinds_of_faults"] >= 4
    if result["disk_was_filled"]:
        assert result["statuses"][507] > 0
