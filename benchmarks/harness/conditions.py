"""A study's command line; where and when it measured something, and the file that says so."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pace.version import __version__


class StudyParser(argparse.ArgumentParser):
    """A parser of options whose help says their defaults."""

    def add_number(self, name: str, default: float, what: str) -> None:
        """Add an option for a number of the default's type."""
        self.add_argument(name, type=type(default), default=default, help=f"{what} (default: %(default)s)")


def study_parser(description: str | None, *, writes_json: bool = False) -> StudyParser:
    """Return the parser of a study with this docstring; with the option for ``write_json`` if it writes."""
    parser = StudyParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if writes_json:
        parser.add_argument(
            "--json",
            type=Path,
            help="file for the results, the command and the machine (JSON; default: none)",
        )
    return parser


def machine() -> dict[str, Any]:
    """Say when, where and with which version something is measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "pace": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "kernel": platform.release().split("-")[0],
        "cores": f"{os.cpu_count()} x {_processor()}",
        "load_average": os.getloadavg()[0],
    }


def command() -> str:
    """Return the command that runs."""
    program, *arguments = sys.argv
    return f"{program} {shlex.join(arguments)}".strip()


def write_json(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document with the command and the conditions; without a path, nothing."""
    if path is not None:
        write_whole(
            path, json.dumps({"command": command(), "conditions": machine()} | document, indent=1) + "\n"
        )


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None
