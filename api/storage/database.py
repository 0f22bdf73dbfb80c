"""Connections and transactions: SQLite as the embedded default, PostgreSQL by URL."""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL


class Database:
    """An engine and the two kinds of transaction that the service uses.

    Parameters
    ----------
    url
        SQLAlchemy URL of SQLite or PostgreSQL.
    """

    def __init__(self, url: URL) -> None:
        self.engine = make_engine(url)
        # SQLite lets one writer in and has the others poll; threads of this process queue here instead.
        self._turn = threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        self._reading = self.engine.execution_options(pace_writes=False)
        self._writing = self.engine.execution_options(pace_writes=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads."""
        with self._reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that writes; commits at the end unless an error leaves it."""
        with self._turn, self._writing.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def make_engine(url: URL) -> Engine:
    """Create the engine; SQLite gets WAL and explicit transactions."""
    if url.get_backend_name() != "sqlite":
        return create_engine(
            url, pool_size=10, max_overflow=20, pool_pre_ping=True, connect_args={"connect_timeout": 5}
        )
    engine = create_engine(url, connect_args={"timeout": 30})
    event.listen(engine, "do_connect", lambda *_: _make_private(url))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def is_missing(url: URL) -> bool:
    """Whether a URL names a file of SQLite that is not there."""
    file = _file(url)
    return file is not None and not file.exists()


def _file(url: URL) -> Path | None:
    path = url.database
    if url.get_backend_name() != "sqlite" or not path or path == ":memory:" or path.startswith("file:"):
        return None
    return Path(path)


def _make_private(url: URL) -> None:
    # SQLite would let everyone read a new file; its log and its index get the file's own permissions.
    file = _file(url)
    if file is not None:
        with contextlib.suppress(OSError):  # SQLite says better what is wrong
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver must open no transactions of its own: _begin_sqlite does.
    connection.isolation_level = None
    cursor = connection.cursor()
    # Before anything is written, or it has no effect: lets the retention job shrink the file.
    cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    cursor.execute("PRAGMA journal_mode=WAL")
    # With WAL, NORMAL survives a killed process; only a power cut can lose the last commits.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that starts as a reader and writes later can fail with SQLITE_BUSY at once.
    writes = connection.get_execution_options().get("pace_writes", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
