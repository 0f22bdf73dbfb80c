"""The schema's revisions: equal to the tables in code, up and down with data."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect
from sqlalchemy.engine import make_url

from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.keys import KeyRing
from pace.api.storage.migrations import downgrade, upgrade
from pace.api.storage.records import Record


def _database(url: str) -> Database:
    return Database(Settings(database_url=url).parsed_database_url)


def test_the_migrations_make_the_tables_of_the_code(database_url: str) -> None:
    """Nothing to add, nothing to drop, no type that differs."""
    database = _database(database_url)
    upgrade(database)
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Record.metadata) == []
    database.close()


def test_migrating_again_keeps_what_is_there(database_url: str) -> None:
    """Every start of the service migrates; data stays."""
    database = _database(database_url)
    upgrade(database)
    KeyRing(database).create("one", "a key", ["read"])
    upgrade(database)
    assert [key.name for key in KeyRing(database).list()] == ["a key"]
    database.close()


def test_down_and_up_again(database_url: str) -> None:
    """From the newest revision with data down to nothing, and up again to a schema that works."""
    database = _database(database_url)
    upgrade(database)
    KeyRing(database).create("one", "a key", ["read"])
    downgrade(database, "base")
    with database.read() as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
    upgrade(database)
    KeyRing(database).create("one", "another", ["read"])
    assert [key.name for key in KeyRing(database).list()] == ["another"]
    database.close()


def test_a_failed_migration_changes_nothing(database_url: str) -> None:
    """An error midway leaves the schema as it was, on both databases."""
    database = _database(database_url)
    upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql("DROP INDEX ix_reports_job")
    try:
        downgrade(database, "base")
    except Exception as error:
        assert "ix_reports_job" in str(error)  # noqa: PT017  (either database's own error)
    else:
        raise AssertionError("a downgrade that cannot work did")
    with database.read() as connection:
        assert "tasks" in inspect(connection).get_table_names()
    database.close()


def test_the_usual_url_of_postgresql_is_understood() -> None:
    """The driver is the service's affair."""
    settings = Settings(database_url="postgresql://user@host/name")
    assert settings.parsed_database_url == make_url("postgresql+psycopg://user@host/name")
