"""Real services for the tests: one that many share, each as a tenant of its own, and one for each alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.postgresql import PostgresqlServer, bare_database, find_postgresql, new_database
from tests.api.process import Caller, ServiceProcess


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """Start one PostgreSQL server for all tests."""
    programs = find_postgresql()
    if programs is None:
        pytest.skip("PostgreSQL 15 is not installed (Debian: apt-get install postgresql)")
    with PostgresqlServer(programs) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database with the newest schema: every test that asks runs on both kinds."""
    return new_database(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def bare_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without a schema, of both kinds."""
    return bare_database(request, tmp_path)


@pytest.fixture(scope="session")
def sqlite_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Start a service on SQLite for all tests that leave it as it is."""
    with ServiceProcess(tmp_path_factory.mktemp("service"), auth="required") as process:
        yield process
        process.resume()


@pytest.fixture(scope="session")
def postgresql_service(
    postgresql: PostgresqlServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """Start a service on PostgreSQL for all tests that leave it as it is."""
    url = postgresql.create_database()
    with ServiceProcess(tmp_path_factory.mktemp("service"), url, auth="required") as process:
        yield process
        process.resume()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    """Return one of both services: every test that asks runs on both unless it is marked ``ON_SQLITE``."""
    # Both stay until the end: another start for each file and database would take seconds. Meanwhile they are
    # suspended: one that nobody uses takes 2 % of a processor.
    service: ServiceProcess = request.getfixturevalue(f"{request.param}_service")
    service.resume()
    yield service
    service.suspend()


@pytest.fixture
def service(shared_service: ServiceProcess) -> Iterator[Caller]:
    """Return a new tenant of the service that tests share: nobody else sees what a test does."""
    with shared_service.tenant() as caller:
        yield caller


@pytest.fixture
def own_service(tmp_path: Path, database_url: str) -> Iterator[ServiceProcess]:
    """Start a service with a database of its own, for tests that stop, kill or count."""
    with ServiceProcess(tmp_path, database_url) as process:
        yield process
