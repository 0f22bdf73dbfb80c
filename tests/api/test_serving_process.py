"""What the serving process loads: no more than it needs to answer requests."""

import subprocess
import sys

_LOADED = """
import sys
import pace.api.http.app, pace.api.http.server
large = {"scipy", "pulp", "numba", "networkx", "matplotlib"}
print(*sorted(large & {name.partition(".")[0] for name in sys.modules}))
"""


def test_the_libraries_of_solvers_are_loaded_by_workers_alone() -> None:
    """They would take a third of the memory of a fresh service, and of the time until it answers."""
    done = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
