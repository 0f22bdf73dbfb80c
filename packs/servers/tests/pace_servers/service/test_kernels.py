"""Nobody waits for a compiler: what predictions need is compiled when the image is built."""

import pytest

from tests.api.test_deployment import compiled_when_asked


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_is_built_with_all_that_predictions_need() -> None:
    """Under every discipline of links, with every kind of fleet."""
    assert compiled_when_asked("pace_servers.service") == []
