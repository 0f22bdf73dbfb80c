"""A real service for every test that asks for one: its own process, port and database."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.postgresql import PostgresqlServer, find_postgresql
from tests.api.process import ServiceProcess


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """Start one PostgreSQL server for all tests."""
    programs = find_postgresql()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with PostgresqlServer(programs) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database: every test that asks runs on both kinds."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'pace.db'}"
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.create_database(uuid.uuid4().hex)


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Iterator[ServiceProcess]:
    """Start a service with a database of its own."""
    with ServiceProcess(tmp_path, database_url) as process:
        yield process
