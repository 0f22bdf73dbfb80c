"""What every test of the runtime shares: the two transports."""

import importlib.util

import pytest


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
