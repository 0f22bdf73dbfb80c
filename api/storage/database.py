"""Connections and transactions: SQLite as the embedded default, PostgreSQL by URL."""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tenacity
from sqlalchemy import ColumnElement, Connection, CursorResult, Engine, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from pace.api.errors import DatabaseReplaced
from pace.api.storage.records import Record

_POSTGRESQL_READ_ONLY = "25006"
# PostgreSQL's states that operators cause and end: the database can only be read, it ended a connection whose
# transaction was idle or took long, or a privilege is missing. What was refused is tried again.
_POSTGRESQL_REFUSES = (_POSTGRESQL_READ_ONLY, "25P03", "25P04", "42501")
# Without these, a thread may wait two hours for a server whose host has vanished. The URL may give others.
_POSTGRESQL_OPTIONS = {
    "prepare_threshold": None,  # PgBouncer may run each transaction on another connection of its own
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_LONGEST_IDLE_S = 60
_LONGEST_PAUSE_S = 5.0


class Database:
    """An engine and the two kinds of transaction that the service uses.

    Parameters
    ----------
    url
        SQLAlchemy URL of SQLite or PostgreSQL.
    """

    def __init__(self, url: URL) -> None:
        file = _file(url)
        self._was_left_open = file is not None and _log_of(file).exists()
        self.engine = make_engine(url)
        # SQLite admits one writer and lets the others poll; threads of this process queue here instead.
        self._turn = threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        self._reading = self.engine.execution_options(pace_writes=False)
        self._writing = self.engine.execution_options(pace_writes=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite."""
        return self.engine.dialect.name == "sqlite"

    @property
    def bytewise(self) -> str:
        """The collation that orders names in the same way in all databases: by their characters' numbers."""
        return "BINARY" if self.is_sqlite else "C"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads."""
        with _begin(self._reading) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a writing transaction; commit at the end unless an error was raised."""
        with self._turn, _begin(self._writing) as connection:
            yield connection

    def refuse_damaged(self, connection: Connection) -> None:
        """Look for damage if a process left the file open; a file copied over it does not fit its log.

        Raises
        ------
        OperationalError
            If SQLite finds any.
        """
        if not self._was_left_open:
            return
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found != "ok":
            raise OperationalError(None, None, _damage(self.engine.url, found))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


@contextmanager
def _begin(engine: Engine) -> Iterator[Connection]:
    try:
        connection = engine.connect()
    except PoolTimeout as error:
        # All connections wait for a database that hangs: as if it did not answer.
        raise OperationalError(None, None, error) from None
    with connection, connection.begin():
        yield connection


class Upsert:
    """An INSERT that keeps or changes an existing row; built once, because building it is slow.

    Parameters
    ----------
    keys, changed
        Columns that identify a row, and columns that get new values if it exists. Without `changed`, an
        existing row stays unchanged.
    returned
        Columns of the resulting row to return; only with `changed`.
    computed
        Columns of a new row that the database computes.
    """

    def __init__(
        self,
        record: type[Record],
        keys: Sequence[str] = (),
        changed: Sequence[str] = (),
        returned: Sequence[str] = (),
        computed: Mapping[str, ColumnElement[Any]] | None = None,
    ) -> None:
        made: dict[str, Any] = {}
        for dialect, insert in (("sqlite", sqlite.insert), ("postgresql", postgresql.insert)):
            statement: Any = insert(record)
            if computed:
                statement = statement.values(computed)
            if changed:
                values = {name: statement.excluded[name] for name in changed}
                statement = statement.on_conflict_do_update(index_elements=keys, set_=values)
            else:
                statement = statement.on_conflict_do_nothing()
            if returned:
                statement = statement.returning(*(getattr(record, name) for name in returned))
            # Of an INSERT the count is forgotten unless it is asked for: on PostgreSQL it would always be -1.
            made[dialect] = statement.execution_options(preserve_rowcount=True)
        self._by_dialect: dict[str, sqlite.Insert | postgresql.Insert] = made

    def execute(self, connection: Connection, **values: Any) -> CursorResult[Any]:
        """Insert a row; its ``rowcount`` is 0 if nothing was changed."""
        return connection.execute(self._by_dialect[connection.dialect.name], values)


def make_engine(url: URL) -> Engine:
    """Create the engine; SQLite gets WAL and explicit transactions."""
    if url.get_backend_name() != "sqlite":
        engine = create_engine(
            url,
            pool_size=10,
            max_overflow=20,
            pool_pre_ping=True,
            connect_args={
                "client_encoding": "utf8",
                **{name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in url.query},
            },
        )
        event.listen(engine, "connect", _limit_idle_transactions)
        event.listen(engine, "handle_error", _note_refusal, retval=True)
        return engine
    engine = create_engine(url, connect_args={"timeout": 30})
    event.listen(engine, "handle_error", _name_unusable_file, retval=True)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    if (file := _file(url)) is not None:
        files = _DatabaseFiles(file)
        event.listen(engine, "do_connect", files.make_private)
        event.listen(engine, "connect", files.note)
        event.listen(engine, "begin", files.require_same)
        event.listen(engine, "commit", files.require_same)
    return engine


def is_missing(url: URL) -> bool:
    """Whether a URL names a SQLite file that does not exist."""
    file = _file(url)
    return file is not None and not file.exists()


def _file(url: URL) -> Path | None:
    path = url.database
    if url.get_backend_name() != "sqlite" or not path or path == ":memory:" or path.startswith("file:"):
        return None
    return Path(path)


class _DatabaseFiles:
    """Notices files that are no longer those that were opened: SQLite would write on, to no avail."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._log = _log_of(file)
        self._opened: tuple[int, int] | None = None

    def make_private(self, *_: Any) -> None:
        """Create the file, which SQLite would let every user read; its log gets the file's permissions."""
        if self._opened is None:
            with contextlib.suppress(OSError):  # SQLite says better what is wrong
                os.close(os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        elif _identity(self._file) != self._opened:
            raise self._lost()

    def note(self, connection: Any, record: Any) -> None:
        """Note which files a new connection has opened."""
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # opens the log
        self._opened = self._opened or _identity(self._file)
        record.info["log"] = _identity(self._log)

    def require_same(self, connection: Connection) -> None:
        """Raise OperationalError if a transaction's files were deleted or replaced."""
        if (_identity(self._file), _identity(self._log)) != (self._opened, connection.info["log"]):
            raise OperationalError(None, None, self._lost())

    def _lost(self) -> DatabaseReplaced:
        return DatabaseReplaced(
            f"the database file {self._file.name} or its log was deleted or replaced while in use, so "
            "nothing was stored: restore the file, or restart the service"
        )


def _log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _limit_idle_transactions(connection: Any, _record: Any) -> None:
    # The locks of a process whose host has vanished must not keep others for hours.
    name = "idle_in_transaction_session_timeout"
    connection.autocommit = True
    connection.execute(
        f"SELECT set_config('{name}', '{_LONGEST_IDLE_S}s', false) WHERE current_setting('{name}') = '0'"
    )
    connection.autocommit = False


def _note_refusal(context: ExceptionContext) -> OperationalError | None:
    cause = context.original_exception
    state = getattr(cause, "sqlstate", None)
    # Without a connection, an option of the URL may be wrong. A ping that fails gets a new connection.
    if context.is_pre_ping or (context.connection is not None and state not in _POSTGRESQL_REFUSES):
        return None
    # After a failover, new connections may reach the new primary.
    context.is_disconnect |= state == _POSTGRESQL_READ_ONLY
    return OperationalError(context.statement, context.parameters, cause)


def _name_unusable_file(context: ExceptionContext) -> OperationalError | None:
    # Its folder is missing, or it is something else, or a damaged database.
    cause = context.original_exception
    if context.engine is None or not isinstance(cause, sqlite3.DatabaseError):
        return None
    if getattr(cause, "sqlite_errorname", "") == "SQLITE_CANTOPEN":
        named = sqlite3.OperationalError(f"{cause}: {context.engine.url.database}")
    elif getattr(cause, "sqlite_errorname", "").startswith("SQLITE_CORRUPT"):
        named = _damage(context.engine.url, cause)
    elif type(cause) is sqlite3.DatabaseError:
        named = sqlite3.OperationalError(f"{context.engine.url.database} is no SQLite database: {cause}")
    else:
        return None
    return OperationalError(context.statement, context.parameters, named)


def _damage(url: URL, found: object) -> sqlite3.OperationalError:
    return sqlite3.OperationalError(
        f"{url.database} is damaged ({found}): restore a backup, and delete {url.database}-wal and -shm "
        "before you put it in place"
    )


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver must open no transactions of its own: _begin_sqlite does.
    connection.isolation_level = None
    # SQLite's own knows only the letters of English, unlike PostgreSQL's.
    connection.create_function("lower", 1, _lower, deterministic=True)
    cursor = connection.cursor()
    # Before anything is written, or it has no effect: lets the retention job shrink the file.
    cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    cursor.execute("PRAGMA journal_mode=WAL")
    # With WAL, NORMAL survives a killed process; only a power cut can lose the last commits.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that starts as a reader and writes later can fail with SQLITE_BUSY at once.
    writes = connection.get_execution_options().get("pace_writes", True)
    driver: Any = connection.connection.dbapi_connection
    driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")


async def when_it_answers(
    database: Database, work: Callable[[], None], missing: Callable[[BaseException, float], None]
) -> None:
    """Call a function that needs the database, in a thread, as soon as the database answers.

    Parameters
    ----------
    missing
        Called after every failed attempt with the error and the seconds until the next one.

    Raises
    ------
    OperationalError
        If a SQLite file cannot be opened; waiting would not help.
    """

    def note(state: tenacity.RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        assert error is not None
        assert state.next_action is not None
        missing(error, state.next_action.sleep)

    away = tenacity.retry_if_exception_type((OperationalError, InterfaceError))
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_never if database.is_sqlite else away,
        wait=tenacity.wait_exponential(multiplier=0.5, max=_LONGEST_PAUSE_S),
        before_sleep=note,
        reraise=True,
    ):
        with attempt:
            await asyncio.to_thread(work)
