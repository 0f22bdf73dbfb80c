"""Empty databases that have the newest schema already: making it takes each service or test a second."""

import functools
import tempfile
from pathlib import Path

from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.migrations import upgrade


def make_schema(url: str) -> None:
    """Bring an empty database up to the newest schema."""
    database = Database(Settings(database_url=url).parsed_database_url)
    upgrade(database)
    database.close()


def new_sqlite(folder: Path) -> str:
    """Return the URL of a SQLite database in a folder; if it is there already it stays."""
    path = folder / "pace.db"
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(_sqlite_file())
    return f"sqlite:///{path}"


@functools.cache
def _sqlite_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pace.db"
        make_schema(f"sqlite:///{path}")
        return path.read_bytes()
