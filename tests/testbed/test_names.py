"""Names of namespaces tell their owner."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness.network.names import Owner, new_prefix, owner_of


def test_a_name_tells_the_process_that_made_it() -> None:
    """Hosts and switch of this process name it, and it is alive."""
    prefix = new_prefix()
    for part in ("host0", "host17", "switch"):
        owner = owner_of(f"{prefix}-{part}")
        assert owner == Owner.this()
        assert owner.alive


def test_every_testbed_has_names_of_its_own() -> None:
    """Two testbeds of one process share no name."""
    assert new_prefix() != new_prefix()


def test_an_ended_process_is_dead() -> None:
    """An owner is dead once its process ended, and when its number was given to a later process."""
    process = subprocess.Popen(["sleep", "60"])
    started = int(Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    before = Owner(process.pid, started).alive
    process.kill()
    process.wait()
    assert (before, Owner(process.pid, started).alive) == (True, False)
    assert not Owner(os.getpid(), Owner.this().started - 1).alive


@pytest.mark.parametrize(
    "name",
    [
        "blue",
        "pace-testbed",
        "pace-testbed-1-2-host0",
        "pace-testbed-1-2-3-router",
        "x-pace-testbed-1-2-3-switch",
    ],
)
def test_other_names_have_no_owner(name: str) -> None:
    """What no testbed makes is nobody's, so it is never removed."""
    assert owner_of(name) is None
