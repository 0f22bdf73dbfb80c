"""The tables of options name everything that there is, and nothing else."""

import re
from dataclasses import fields
from pathlib import Path

from pace_servers.runtime import Mixed
from tests.documentation.test_reference import first_cells

PACK = Path(__file__).parents[3]
PAGE = (PACK / "docs" / "reference" / "training-with-servers.md").read_text("utf-8")


def test_every_option_and_every_variable_is_listed() -> None:
    """Tables have those of ``ParameterServers``, what ``Mixed`` adds, and the environment."""
    read: set[str] = set()
    for path in (PACK / "pace_servers").rglob("*.py"):
        read |= set(re.findall(r'"(PACE_[A-Z_]+)"', path.read_text("utf-8")))
    assert first_cells(PAGE.partition("## Events")[0]) == {each.name for each in fields(Mixed)} | read
