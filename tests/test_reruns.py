"""Tests that race with the machine: another try begins with fixtures of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

RACING = """
import pytest

tries = []
ended = []

@pytest.fixture(scope="module")
def race():
    tries.append(len(tries))
    yield tries[-1]
    ended.append(tries[-1])

@pytest.mark.races_with_machine(reason="to try", fixtures=["race"])
def test_that_the_first_two_tries_lose(race):
    assert race == 2

def test_that_shares_the_last(race):
    assert (race, ended) == (2, [0, 1])

@pytest.mark.races_with_machine(reason="to try")
def test_that_keeps_its_fixtures(race):
    assert (race, ended) == (2, [0, 1])

def test_that_is_tried_once(race):
    assert race == 3
"""


def test_another_try_sets_up_the_fixtures_that_raced(tmp_path: Path) -> None:
    """A shared fixture is set up again for a test that failed, and only where the test asks for it."""
    (tmp_path / "test_racing.py").write_text(RACING)
    plugins = ("conftest", "pytest_rerunfailures", "pytest_timeout")  # others would take seconds
    command = [sys.executable, "-m", "pytest", "-q", *(f"-p{name}" for name in plugins)]
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 failed, 3 passed, 2 rerun" in ended.stdout, ended.stdout + ended.stderr
