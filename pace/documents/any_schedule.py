"""Schedules of every version: of all-reduces (1), of push and pull (2), of two halves (3)."""

import json
from pathlib import Path

from pace.documents.push_pull_schedule import PushPullSchedule, parse_push_pull_schedule
from pace.documents.schedule import Schedule, parse_schedule
from pace.documents.sharded_schedule import ShardedSchedule, parse_sharded_schedule
from pace.errors import InvalidSchedule

AnySchedule = Schedule | PushPullSchedule | ShardedSchedule


def parse_any_schedule(document: bytes | str) -> AnySchedule:
    """Read a schedule of any version; raises InvalidSchedule with one line per fault."""
    try:
        version = json.loads(document).get("schema_version")
    except (ValueError, AttributeError, RecursionError):
        version = None
    if version == 3:
        return parse_sharded_schedule(document)
    return parse_push_pull_schedule(document) if version == 2 else parse_schedule(document)


def load_any_schedule(path: str | Path) -> AnySchedule:
    """Read a schedule of any version from a JSON file; raises InvalidSchedule and OSError."""
    try:
        return parse_any_schedule(Path(path).read_bytes())
    except InvalidSchedule as error:
        raise InvalidSchedule(f"{path}: {error}") from None
