"""The short form of ``checker_mutants.py``: `PACE_RANDOM_MUTANTS` mutants of each kind of plan."""

import os

import pytest

from tests.load.checker_mutants import CASES, search

MUTANTS = int(os.environ.get("PACE_RANDOM_MUTANTS", "40"))


@pytest.mark.parametrize("kind", list(CASES))
def test_checkers_refuse_what_is_worse_or_false(kind: str) -> None:
    """Forgeries first, then single changes; two plans of each kind at the least."""
    refused, accepted, _ = search(MUTANTS, seed=5, cases={kind: CASES[kind]})
    assert accepted == []
    assert refused[kind] == MUTANTS
