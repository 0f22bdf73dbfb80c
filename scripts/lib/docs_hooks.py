"""Hooks of the documentation's build: pages of packs are added, and no page loads from elsewhere.

The page of commands is generated. Pages of ``packs/*/docs`` stand beside those of ``docs``, in the same
folders. Links between the two are written as in the repository.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[2]
_PACKS = sorted(_ROOT.glob("packs/*/docs"))
_LINK = re.compile(r"\]\((?P<path>\.\./[^)#\s]+)(?P<rest>[^)]*)\)")

_SCRIPT = re.compile(r'<script src="https?://[^"]*"></script>')
_LOADED = re.compile(r'<(?:script|img|iframe)\b[^>]*\bsrc="https?://|<link\b[^>]*\bhref="https?://')

_COMMAND = re.compile(r"^##+ `(?P<name>[^`]+)`\n\n(?P<help>.+?)\n\n", re.MULTILINE | re.DOTALL)
_LISTED = re.compile(r"^\* `(?P<name>[\w-]+)`: .*\.$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add pages of packs, and the page of commands, made by Typer from the commands themselves."""
    files.append(File.generated(config, "reference/cli.md", content=commands()))
    for folder in _PACKS:
        for path in sorted(folder.rglob("*.*")):
            name = path.relative_to(folder).as_posix()
            files.append(File(name, str(folder), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_more: Any) -> str:
    """Let links between the core's pages and those of packs lead to their places in the site."""
    path = page.file.abs_src_path
    return (
        markdown if path is None else _LINK.sub(lambda link: _in_site(link, Path(path), page.file), markdown)
    )


def _in_site(link: re.Match[str], page: Path, file: File) -> str:
    target = Path(os.path.normpath(page.parent / link["path"]))
    for folder in (_ROOT / "docs", *_PACKS):
        if target.is_relative_to(folder) and not page.is_relative_to(folder):
            place = os.path.relpath(target.relative_to(folder), Path(file.src_uri).parent)
            return f"]({place}{link['rest']})"
    return link[0]


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
