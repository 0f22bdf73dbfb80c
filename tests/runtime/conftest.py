"""What every test of the runtime shares: the two transports, ranks that stay, and one thread for torch."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from tests.runtime.rank_pool import RankPool


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Compute plain training as ranks compute theirs; on a busy machine several threads take minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
