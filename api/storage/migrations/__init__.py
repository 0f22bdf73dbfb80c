"""The database's schema, revision by revision. The service brings its database up to date at start.

To change the schema, change ``pace.api.storage.records`` and add a revision to ``versions``. A test
compares the two.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from pace.api.errors import OtherEncoding, OtherSchema
from pace.api.storage.database import Database

# Any number that nobody else uses: one service at a time may migrate a shared PostgreSQL.
_LOCK = 7_223_101


def upgrade(database: Database) -> None:
    """Create the tables, or migrate them; several services may do so at once.

    Raises
    ------
    OtherSchema
        If a newer version has migrated the database.
    OtherEncoding
        If it cannot hold all names.
    OperationalError
        If a file does not fit its log.
    """
    config = _config()
    script = ScriptDirectory.from_config(config)
    with database.write() as connection:
        if not database.is_sqlite:
            encoding = connection.scalar(text("SHOW server_encoding"))
            if encoding != "UTF8":
                raise OtherEncoding(
                    f"the database has the encoding {encoding}, in which not all names can be stored: create "
                    "one with UTF8, as createdb --encoding=UTF8 --template=template0 does"
                )
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        database.refuse_damaged(connection)
        found = _revision(connection)
        if found is not None and found not in {known.revision for known in script.walk_revisions()}:
            raise OtherSchema(
                f"the database has schema {found}, of a newer version of PACE; this version has "
                f"{script.get_current_head()}: install the newer version, or restore a backup"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def has_tables(database: Database) -> bool:
    """Whether the database has the tables of this version; False if it has none.

    Raises
    ------
    OtherSchema
        If it has those of another version.
    """
    with database.read() as connection:
        found = _revision(connection)
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if found not in (None, head):
        raise OtherSchema(
            f"the database has schema {found}, this version of PACE has {head}: use the version that serves "
            "this database"
        )
    return found is not None


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
