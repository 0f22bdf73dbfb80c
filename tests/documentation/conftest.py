"""What the examples of all pages are run with."""

from collections.abc import Iterator

import pytest

from tests.preloaded import Programs


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """What starts programs quickly."""
    with Programs(tmp_path_factory.mktemp("programs")) as started:
        yield started
