"""The short form of ``checker_mutants.py``."""

from tests.load.checker_mutants import search
from tests.load.test_checker_mutants import MUTANTS
from tests.pace_servers.load.checker_mutants import CASES


def test_the_checker_refuses_what_is_worse_or_false() -> None:
    """Forgeries first, then single changes; two plans at the least."""
    refused, accepted, _ = search(MUTANTS, seed=5, cases=CASES)
    assert accepted == []
    assert refused.total() == MUTANTS
