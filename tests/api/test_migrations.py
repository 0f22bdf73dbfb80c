"""The schema's revisions make the tables of the code, and leave the database of a newer version alone."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from pace.api.errors import OtherSchema
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.keys import KeyRing
from pace.api.storage.migrations import upgrade
from pace.api.storage.records import Record


def _database(url: str) -> Database:
    return Database(Settings(database_url=url).parsed_database_url)


def test_the_migrations_make_the_tables_of_the_code(bare_database_url: str) -> None:
    """Nothing to add, nothing to drop, no type that differs."""
    database = _database(bare_database_url)
    upgrade(database)
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Record.metadata) == []
    database.close()


def test_migrating_again_keeps_what_is_there(bare_database_url: str) -> None:
    """Every start of the service migrates; data stays."""
    database = _database(bare_database_url)
    upgrade(database)
    KeyRing(database).create("one", "a key", ["read"])
    upgrade(database)
    assert [key.name for key in KeyRing(database).list()] == ["a key"]
    database.close()


def test_a_failed_migration_changes_nothing(bare_database_url: str) -> None:
    """An error midway leaves the database as it was, on SQLite and PostgreSQL."""
    database = _database(bare_database_url)
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE tasks (id INTEGER)")  # the last that is created
    with pytest.raises(DBAPIError, match="tasks"):
        upgrade(database)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == ["tasks"]
    database.close()


def test_the_usual_url_of_postgresql_is_understood() -> None:
    """The driver is the service's affair."""
    settings = Settings(database_url="postgresql://user@host/name")
    assert settings.parsed_database_url == make_url("postgresql+psycopg://user@host/name")


def test_the_database_of_a_newer_version_is_refused(bare_database_url: str) -> None:
    """And left as it is."""
    database = _database(bare_database_url)
    upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0900'")
    with pytest.raises(OtherSchema, match="schema 0900, of a newer version"):
        upgrade(database)
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "0900"
    database.close()
