"""The schema's revisions: equal to the tables in code, up and down with data."""

import re
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect
from sqlalchemy.engine import make_url

from pace.api.errors import SchemaTooNew
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.keys import KeyRing
from pace.api.storage.migrations import downgrade, upgrade
from pace.api.storage.records import Record

# For the version before alone: see revision 0009.
KEPT = ("schedules", "what_ifs", "predictions", "fabric_runs")


def _database(url: str) -> Database:
    return Database(Settings(database_url=url).parsed_database_url)


def test_the_migrations_make_the_tables_of_the_code(bare_database_url: str) -> None:
    """Nothing to add, nothing to drop, no type that differs."""
    database = _database(bare_database_url)
    upgrade(database)
    with database.read() as connection:
        options = {
            "compare_type": True,
            "include_name": lambda name, kind, _: kind != "table" or name not in KEPT,
        }
        context = MigrationContext.configure(connection, opts=options)
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


def test_down_and_up_again(bare_database_url: str) -> None:
    """From the newest revision with data down to nothing, and up again to a schema that works."""
    database = _database(bare_database_url)
    upgrade(database)
    KeyRing(database).create("one", "a key", ["read"])
    downgrade(database, "base")
    with database.read() as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
    upgrade(database)
    KeyRing(database).create("one", "another", ["read"])
    assert [key.name for key in KeyRing(database).list()] == ["another"]
    database.close()


def test_a_failed_migration_changes_nothing(bare_database_url: str) -> None:
    """An error midway leaves the schema as it was, on both databases."""
    database = _database(bare_database_url)
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


def test_the_version_before_starts_on_a_newer_schema(bare_database_url: str) -> None:
    """As long as the newer one only expanded it; once it contracted, the old one changes nothing."""
    database = _database(bare_database_url)
    upgrade(database)
    with database.write() as connection:
        # What a later version does: a column that may be missing, and another revision.
        connection.exec_driver_sql("ALTER TABLE tasks ADD COLUMN news VARCHAR(10)")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0900'")
    upgrade(database)
    KeyRing(database).create("one", "a key", ["read"])
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE schema_floor SET revision = '0899'")
    with pytest.raises(SchemaTooNew, match="schema 0899 or newer"):
        upgrade(database)
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "0900"
    database.close()


def test_revisions_are_numbered_and_only_expand() -> None:
    """In order; what an old version needs is dropped only together with a new floor."""
    folder = Path(upgrade.__code__.co_filename).parent / "versions"
    paths = sorted(folder.glob("0*.py"))
    assert [path.name[:4] for path in paths] == [f"{number:04}" for number in range(1, len(paths) + 1)]
    for path in paths[4:]:
        going_up = path.read_text().partition("def upgrade")[2].partition("def downgrade")[0]
        if re.search("drop_|alter_column|rename", going_up):
            assert "schema_floor" in going_up, path.name
        for added in re.findall(r"op\.add_column\(.*", going_up):
            assert "nullable=True" in added or "server_default" in added, path.name
