"""Ranks for the tests of frameworks."""

from collections.abc import Iterator

import pytest

from tests.runtime.rank_pool import RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks that stay for a module's jobs: loading the frameworks takes longer than any of them."""
    with RankPool(2) as ranks:
        yield ranks
