"""A PostgreSQL server of the tests' own: its own folder, its own port on loopback, gone afterwards."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
import pytest

from tests.api.databases import make_schema, new_sqlite
from tests.free_ports import free_port


def find_postgresql() -> Path | None:
    """Return the folder of the programs of PostgreSQL 15 or newer, or None where it is not installed."""
    on_path = shutil.which("postgres")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in candidates if _orders_by_icu(folder / "initdb")), None)


def _orders_by_icu(initdb: Path) -> bool:
    if not initdb.exists():
        return False
    usage = subprocess.run([initdb, "--help"], capture_output=True, text=True, check=True)
    return "--icu-locale" in usage.stdout


class PostgresqlServer:
    """A running server; databases are made in it by name."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="pace-postgresql-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root.
        self._owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._owner = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")

    def __enter__(self) -> Self:
        subprocess.run(
            [
                self.programs / "initdb",
                *("-D", self.folder / "data", "-A", "trust", "-U", "pace", "--no-sync", "-E", "UTF8"),
                # Names are ordered as in a dictionary, unless a statement says otherwise.
                *("--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US"),
            ],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._owner,
        )
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.programs / "postgres",
                    *("-D", self.folder / "data", "-p", str(self.port), "-k", self.folder),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200", "-c", "fsync=off"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._owner,
            )
        deadline = time.monotonic() + 200
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "server.log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server at once, without a word to its clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(200)
            self._process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the server say nothing more, with all connections open, until the end."""
        assert self._process is not None
        first = psutil.Process(self._process.pid)
        processes = [first, *first.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def url(self, database: str) -> str:
        """Return a database's URL."""
        return f"postgresql://pace@127.0.0.1:{self.port}/{database}"

    def create_database(self, *, bare: bool = False) -> str:
        """Make a new database, with the newest schema or bare, and return its URL."""
        name = uuid.uuid4().hex
        template = "template1" if bare else self._schema
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    @cached_property
    def _schema(self) -> str:
        """A database that others are made like."""
        url = self.create_database(bare=True)
        make_schema(url)
        return url.rpartition("/")[2]


# For tests of what does not depend on the database: one kind is enough. Of the service that tests share, and
# of a database of a test's own.
ON_SQLITE = pytest.mark.parametrize("shared_service", ["sqlite"], indirect=True)
ALONE_ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def new_database(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of a database with the newest schema, of the kind that a fixture's parameter names."""
    if request.param == "sqlite":
        return new_sqlite(folder)
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.create_database()


def bare_database(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of a new database without a schema."""
    if request.param == "sqlite":
        return f"sqlite:///{folder / 'pace.db'}"
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.create_database(bare=True)
