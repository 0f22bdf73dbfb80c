"""The database's schema, version by version. The service brings its database up to date at start."""

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import inspect, text

from pace.api.storage.database import Database

# Any number that nobody else uses: one service at a time may migrate a shared PostgreSQL.
_LOCK = 7_223_101


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema up to a revision; several services may do so at once."""
    _migrate(database, command.upgrade, revision)


def downgrade(database: Database, revision: str) -> None:
    """Bring the schema down to a revision; what only newer ones can hold is lost."""
    _migrate(database, command.downgrade, revision)


def has_tables(database: Database) -> bool:
    """Whether a database was ever brought up to a revision."""
    with database.read() as connection:
        return inspect(connection).has_table("api_keys")


def _migrate(database: Database, migrate: Callable[[Config, str], None], revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config.attributes["connection"] = connection
        migrate(config, revision)
