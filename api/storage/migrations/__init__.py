"""The database's schema, version by version. The service brings its database up to date at start.

While a service is updated, two versions use one database. So a revision only expands: new tables and indexes,
new columns that may be missing. What an old version needs is removed one release later, by a revision that
contracts: it also raises the row in ``schema_floor``, below which code no longer works.
"""

from collections.abc import Callable
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from pace.api.errors import SchemaTooNew
from pace.api.storage.database import Database

log = structlog.get_logger(__name__)

# Any number that nobody else uses: one service at a time may migrate a shared PostgreSQL.
_LOCK = 7_223_101


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema up to a revision; several services may do so at once.

    A schema of a newer version stays as it is, if this version works on it.

    Raises
    ------
    SchemaTooNew
        If it does not.
    """
    _migrate(database, _upgrade_older, revision)


def downgrade(database: Database, revision: str) -> None:
    """Bring the schema down to a revision; what only newer ones can hold is lost."""
    _migrate(database, command.downgrade, revision)


def has_tables(database: Database) -> bool:
    """Whether a database was ever brought up to a revision."""
    with database.read() as connection:
        return inspect(connection).has_table("api_keys")


def _upgrade_older(config: Config, revision: str) -> None:
    connection: Connection = config.attributes["connection"]
    script = ScriptDirectory.from_config(config)
    ours = {each.revision for each in script.walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None or current in ours:
        command.upgrade(config, revision)
        return
    floor = connection.execute(text("SELECT revision FROM schema_floor")).scalar_one()
    newest = script.get_current_head()
    # Revisions are numbered.
    if newest is None or floor > newest:
        raise SchemaTooNew(
            f"the database has schema {current}, which needs a version of PACE with schema {floor} or newer; "
            f"this one has {newest}"
        )
    log.warning("schema-is-newer", schema=current, supported=newest)


def _migrate(database: Database, migrate: Callable[[Config, str], None], revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config.attributes["connection"] = connection
        migrate(config, revision)
