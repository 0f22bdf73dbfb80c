"""Retention and backup: old things go, and nothing else; a copy of the database is a service again."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from pace.api.database import Database
from pace.api.records import ProfileRecord, ReportRecord, ScheduleRecord, SolutionRecord, TaskRecord
from pace.api.retention import prune
from pace.api.settings import Settings
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
        connection.execute(update(ScheduleRecord).values(asked_at=long_ago))
        connection.execute(update(ProfileRecord).values(created_at=long_ago))
        connection.execute(update(TaskRecord).values(finished_at=long_ago))
    assert own_service.post_schedule(layered_profile(3), job="comes back").content == kept.content
    assert prune(database, datetime.now(UTC) - timedelta(days=30)) == 2
    with database.read() as connection:
        assert connection.scalars(select(ScheduleRecord.id)).all() == [kept.json()["id"]]
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
                update(ScheduleRecord).values(asked_at=datetime.now(UTC) - timedelta(days=100))
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


@pytest.mark.parametrize("days", ["-1", "nan", "soon"])
def test_a_senseless_retention_is_refused(days: str) -> None:
    """A typing error must not delete anything."""
    with pytest.raises(ValueError, match="retention_days"):
        Settings(retention_days=days)
