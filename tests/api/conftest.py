"""A real service for every test that asks for one: its own process, port and database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.process import ServiceProcess


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """Start a service with a database of its own."""
    with ServiceProcess(tmp_path) as process:
        yield process
