"""Retention and backup: old things go, and nothing else; a copy of the database is a service again."""

import os
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.migrations import upgrade
from pace.api.storage.records import (
    ProfileRecord,
    QuestionRecord,
    Record,
    ReportRecord,
    SolutionRecord,
    TaskRecord,
)
from pace.api.storage.retention import prune, vacuum
from tests.api.postgresql import PostgresqlServer
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile


def test_only_what_nobody_asked_for_goes(own_service: ServiceProcess, database_url: str) -> None:
    """Of two jobs with one profile, the one that came back keeps schedule, document and profile."""
    kept = own_service.post_schedule(layered_profile(3), job="comes back")
    own_service.post_schedule(layered_profile(3), job="never comes back")
    gone = own_service.post_schedule(layered_profile(4), job="never comes back")
    database = Database(Settings(database_url=database_url).parsed_database_url)
    long_ago = datetime.now(UTC) - timedelta(days=100)
    with database.write() as connection:
        connection.execute(update(QuestionRecord).values(asked_at=long_ago))
        connection.execute(update(ProfileRecord).values(created_at=long_ago))
        connection.execute(update(TaskRecord).values(finished_at=long_ago))
    assert own_service.post_schedule(layered_profile(3), job="comes back").content == kept.content
    assert prune(database, datetime.now(UTC) - timedelta(days=30)) == 2
    with database.read() as connection:
        assert connection.scalars(select(QuestionRecord.id)).all() == [kept.json()["id"]]
        assert len(connection.scalars(select(SolutionRecord.key)).all()) == 1
        assert connection.scalars(select(ProfileRecord.sha256)).all() == [kept.json()["profile_sha256"]]
        assert connection.scalars(select(TaskRecord.id)).all() == []
        assert connection.scalars(select(ReportRecord.id)).all() == []
    again = own_service.post_schedule(layered_profile(4), job="never comes back")
    assert again.json()["schedule"] == gone.json()["schedule"]
    database.close()


def test_the_service_prunes_by_itself(tmp_path: Path) -> None:
    """With a retention set, what is old is gone soon after the start."""
    with ServiceProcess(tmp_path) as service:
        old = service.post_schedule(layered_profile(3))
        service.stop()
        database = Database(Settings(database_url=str(service.settings["database_url"])).parsed_database_url)
        with database.write() as connection:
            connection.execute(
                update(QuestionRecord).values(asked_at=datetime.now(UTC) - timedelta(days=100))
            )
        database.close()
        service.settings["retention_days"] = 30
        service.start()
        while not any(entry.get("event") == "pruned" for entry in service.log()):
            service.http.get("/healthz").raise_for_status()
        assert service.http.get(old.headers["location"]).status_code == 404


def test_a_backup_taken_while_running_is_whole(tmp_path: Path) -> None:
    """The documented way, SQLite's own backup, restored into a new service."""
    with ServiceProcess(tmp_path) as service:
        created = service.post_schedule(layered_profile(6), job="train")
        source = sqlite3.connect(tmp_path / "pace.db")
        copy = sqlite3.connect(tmp_path / "copy.db")
        source.backup(copy)
        source.close()
        copy.close()
    with ServiceProcess(tmp_path, f"sqlite:///{tmp_path / 'copy.db'}") as restored:
        assert restored.http.get(created.headers["location"]).content == created.content


def test_a_dump_of_postgresql_is_restored(tmp_path: Path, postgresql: PostgresqlServer) -> None:
    """The documented way: pg_dump while it runs, pg_restore into a new database for a new service."""
    dump, restore = (postgresql.programs / name for name in ("pg_dump", "pg_restore"))
    if not (dump.exists() and restore.exists()):
        pytest.skip("PostgreSQL's pg_dump and pg_restore are not installed")
    source, target = postgresql.create_database(), postgresql.create_database(bare=True)
    archive = tmp_path / "pace.dump"
    with ServiceProcess(tmp_path, source, auth="required") as service, service.tenant() as caller:
        created = caller.post_schedule(layered_profile(6), job="train")
        grid = {"bandwidth_gbps": [1, 10]}
        question = {"profile_id": created.json()["profile_sha256"], "grid": grid}
        answered = caller.http.post("/v1/what-if", json=question).raise_for_status()
        subprocess.run([dump, "--format=custom", f"--file={archive}", f"--dbname={source}"], check=True)
        token = caller.token
    subprocess.run([restore, "--exit-on-error", "--no-owner", f"--dbname={target}", str(archive)], check=True)
    with ServiceProcess(tmp_path, target, auth="required") as restored:
        restored.http.headers["Authorization"] = f"Bearer {token}"
        for answer in (created, answered):
            assert restored.http.get(answer.headers["location"]).content == answer.content
        assert restored.post_schedule(layered_profile(6), job="train").content == created.content
        assert restored.events("solved") == []


def test_pruning_gives_space_back(tmp_path: Path) -> None:
    """SQLite's file shrinks by what was deleted, and is whole; others may use it meanwhile."""
    database = Database(Settings(database_url=f"sqlite:///{tmp_path / 'pace.db'}").parsed_database_url)
    upgrade(database)
    long_ago = datetime.now(UTC) - timedelta(days=100)
    with database.write() as connection:
        for number in range(200):
            connection.execute(
                insert(ProfileRecord).values(
                    tenant="one",
                    sha256=f"{number:064}",
                    name="old" if number < 190 else "new",
                    fingerprint="0" * 64,
                    num_ops=1,
                    num_gradients=1,
                    size_bytes=1,
                    document=os.urandom(100_000),
                    created_at=long_ago if number < 190 else datetime.now(UTC),
                )
            )
    vacuum(database)
    before = (tmp_path / "pace.db").stat().st_size
    assert before > 200 * 100_000
    prune(database, datetime.now(UTC) - timedelta(days=30))
    vacuum(database)
    assert (tmp_path / "pace.db").stat().st_size < before / 10
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        assert connection.scalars(select(ProfileRecord.name)).all() == ["new"] * 10
    database.close()


def test_postgresql_is_vacuumed(postgresql: PostgresqlServer) -> None:
    """Every table of the service, which PostgreSQL notes."""
    url = postgresql.create_database()
    database = Database(Settings(database_url=url).parsed_database_url)
    vacuum(database)
    with database.read() as connection:
        analyzed = "SELECT relname FROM pg_stat_user_tables WHERE last_vacuum IS NOT NULL"
        tables = set(connection.exec_driver_sql(analyzed).scalars())
    assert tables == set(Record.metadata.tables)
    database.close()


@pytest.mark.parametrize("days", ["-1", "nan", "soon"])
def test_a_senseless_retention_is_refused(days: str) -> None:
    """A typing error must not delete anything."""
    with pytest.raises(ValueError, match="retention_days"):
        Settings(retention_days=days)
