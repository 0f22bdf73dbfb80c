"""Settings and the command line of the service: what is wrong is said in a line, and nothing is changed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from pace.api.http.app import create_app
from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.migrations import downgrade, has_tables, upgrade

_SERVE = [sys.executable, "-m", "pace.api.serve", "--port", "0"]
_KEYS = [sys.executable, "-c", "from pace.cli.keys import app; app()"]


def _run(command: list[str], **settings: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PACE_")}
    environment |= {f"PACE_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=250)


def test_bad_settings_are_named_in_a_line_each() -> None:
    """Not a traceback; the exit status is that of wrong usage, and a password stays secret."""
    done = _run(_SERVE, max_queued="many", rate_limit="often", database_url="nonsense://me:secret@host/x")
    assert done.returncode == 2
    names = [line.split(": ")[1] for line in done.stderr.splitlines()]
    assert names == ["PACE_DATABASE_URL", "PACE_RATE_LIMIT", "PACE_MAX_QUEUED"]
    assert "'many'" in done.stderr
    assert "secret" not in done.stderr


def test_a_misspelt_setting_is_not_ignored() -> None:
    """The service does not start without the limit that its operator wanted."""
    done = _run(_SERVE, max_queue="10")
    assert done.returncode == 2
    assert done.stderr == "pace serve: PACE_MAX_QUEUE is no setting; did you mean PACE_MAX_QUEUED?\n"


def test_keys_are_listed_without_touching_the_database(tmp_path: Path) -> None:
    """No file is made, and an older schema stays as it is."""
    url = f"sqlite:///{tmp_path / 'pace.db'}"
    done = _run([*_KEYS, "list"], database_url=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds no keys" in done.stderr
    assert list(tmp_path.iterdir()) == []
    database = Database(Settings(database_url=url).parsed_database_url)
    upgrade(database)
    downgrade(database, "0001")
    done = _run([*_KEYS, "create", "a key"], database_url=url)
    assert done.returncode == 0, done.stderr
    done = _run([*_KEYS, "list"], database_url=url)
    assert "a key" in done.stdout
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "0001"
    database.close()


def test_a_new_database_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Others on the machine read neither the file nor what lies beside it; an old file stays as it is."""
    path = tmp_path / "pace.db"
    database = Database(Settings(database_url=f"sqlite:///{path}").parsed_database_url)
    assert not has_tables(database)
    upgrade(database)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes["pace.db"] == 0o600
    assert set(modes.values()) == {0o600}
    database.close()
    path.chmod(0o640)
    upgrade(database)
    assert path.stat().st_mode & 0o777 == 0o640
    database.close()


def test_the_interface_is_described_before_the_first_caller(tmp_path: Path) -> None:
    """Building the document would block the event loop for all others."""
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'pace.db'}", solver_processes=1))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            assert app.openapi_schema is not None

    asyncio.run(start())
