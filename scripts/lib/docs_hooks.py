"""Hooks of the documentation's build: the page of commands is generated, and no page loads from elsewhere."""

import re
import subprocess
import sys
from typing import Any

from mkdocs.structure.files import File, Files

_SCRIPT = re.compile(r'<script src="https?://[^"]*"></script>')
_LOADED = re.compile(r'<(?:script|img|iframe)\b[^>]*\bsrc="https?://|<link\b[^>]*\bhref="https?://')

_COMMAND = re.compile(r"^##+ `(?P<name>[^`]+)`\n\n(?P<help>.+?)\n\n", re.MULTILINE | re.DOTALL)
_LISTED = re.compile(r"^\* `(?P<name>[\w-]+)`: .*\.$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the page of commands, made by Typer from the commands themselves."""
    files.append(File.generated(config, "reference/cli.md", content=commands()))
    return files


def commands() -> str:
    """Return the help of every command as Markdown."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "typer",
            "pace.cli",
            "utils",
            "docs",
            "--name",
            "pace",
            "--title",
            "Command line",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    # Typer cuts the first sentence of a command where it lists it: link to the whole one instead.
    helps = {found["name"]: found["help"] for found in _COMMAND.finditer(done.stdout)}
    parts = re.split(r"^(?=##+ `)", done.stdout, flags=re.MULTILINE)
    for number, part in enumerate(parts):
        heading = re.match(r"##+ `([^`]+)`", part)
        parent = heading[1] if heading else "pace"
        before, listing, listed = part.partition("**Commands**:\n")
        parts[number] = (
            before
            + listing
            + _LISTED.sub(lambda found, parent=parent: _entry(f"{parent} {found['name']}", helps), listed)
        )
    return "".join(parts)


def _entry(name: str, helps: dict[str, str]) -> str:
    return f"* [`{name}`](#{name.replace(' ', '-')}): {' '.join(helps[name].split())}"


def on_post_page(output: str, *, page: Any, **_more: Any) -> str:
    """Leave nothing in a page that it would load from another host."""
    return _local(output, page.file.src_uri)


def on_post_template(output_content: str, *, template_name: str, **_more: Any) -> str:
    """Do the same for pages of the theme's own."""
    return _local(output_content, template_name)


def _local(output: str, name: str) -> str:
    """Drop the script that the theme adds for searching pages opened as files; refuse whatever is left."""
    output = _SCRIPT.sub("", output)
    if _LOADED.search(output):
        raise ValueError(f"{name} would load something from another host")
    return output
