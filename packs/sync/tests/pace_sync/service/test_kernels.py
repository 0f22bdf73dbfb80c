"""Nobody waits for a compiler: what sync plans need is compiled when the image is built."""

import pytest

from tests.api.test_deployment import compiled_when_asked


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_is_built_with_all_that_sync_plans_need() -> None:
    """Buckets, shards, deltas, and streaming DiLoCo with and without torchft."""
    assert compiled_when_asked("pace_sync.service") == []
