"""Nobody waits for a compiler: what a fabric's questions need is compiled when the image is built."""

import pytest

from tests.api.test_deployment import compiled_when_asked


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_is_built_with_all_that_a_fabric_needs() -> None:
    """Transfer plans in every order and way, and runs under every policy."""
    assert compiled_when_asked("pace_fabric.service") == []
