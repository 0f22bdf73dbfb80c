"""What every test of the runtime shares: the two transports, and ranks that stay."""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.runtime.rank_pool import RankPool


@pytest.fixture(
    scope="package",
    params=["gloo", pytest.param("horovod", marks=pytest.mark.horovod)],
)
def transport(request: pytest.FixtureRequest) -> str:
    """The transport that ranks are launched with."""
    name: str = request.param
    if name == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    return name


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Two ranks over Gloo that stay for all tests of a module."""
    with RankPool(2) as ranks:
        yield ranks
