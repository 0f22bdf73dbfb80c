"""The reference of the commands is generated from the commands."""

import re
from typing import Any

import typer.main

from pace.cli import app
from tests.scripts.hooks import load_hook


def commands_of(command: Any, name: str) -> set[str]:
    """Return the full names of a command and all of its subcommands."""
    names = {name}
    for below, subcommand in getattr(command, "commands", {}).items():
        names |= commands_of(subcommand, f"{name} {below}")
    return names


def test_the_page_has_every_command_and_links_to_each() -> None:
    """A command that is added appears on the page, with its whole first sentence in the list above it."""
    page = load_hook("docs_hooks").commands()
    expected = commands_of(typer.main.get_command(app), "pace") - {"pace"}
    assert set(re.findall(r"^##+ `(.*)`$", page, re.MULTILINE)) == expected
    assert set(re.findall(r"^\* \[`(.*?)`\]\(#", page, re.MULTILINE)) == expected
    assert not re.search(r"^\* \[.*\.\.\.$", page, re.MULTILINE)
