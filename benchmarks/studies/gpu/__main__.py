"""Checks PACE on one GPU, part by part, and writes ``gpu-check.json`` and ``gpu-check.md``.

python -m benchmarks gpu [--out FOLDER] [--dry-run] [--only PART ...]
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.prerequisites import Unavailable
from benchmarks.studies.gpu.parts import PARTS, TOTAL_S, run_part

ROOT = Path(__file__).resolve().parents[3]
DRY_PATIENCE = 2.0  # a dry run shares its machine with other tests


# Of the driver, on Linux and in WSL.
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")


def main() -> int:
    """Run what the arguments ask for; the exit status is 1 when a part did not pass."""
    started = time.monotonic()
    arguments = parse_arguments()
    if not arguments.dry_run and not any(Path(device).exists() for device in _DEVICES):
        raise Unavailable("there is no NVIDIA GPU: run it on a machine with one, or give --dry-run")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pace-gpu-check-") as folder:
        document = run_parts(arguments, Path(folder), started)
    print(f"{arguments.out / 'gpu-check.json'}\n{arguments.out / 'gpu-check.md'}")
    return int(any(part["status"] != "passed" for part in document["parts"].values()))


def run_parts(arguments: argparse.Namespace, work: Path, started: float) -> dict[str, Any]:
    """Run the parts and write the results after each: a machine that is taken away leaves what there is."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "RES_OPTIONS": "timeout:1 attempts:2",  # torch's stores look up names; here nobody answers
    }
    if arguments.dry_run:
        environment["OMP_NUM_THREADS"] = "1"  # small models: threads would only wait for one another
    document: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["scripts/gpu-check", *sys.argv[1:]]),
        "dry_run": arguments.dry_run,
        "python": platform.python_version(),
        "parts": {},
    }
    for part in PARTS:
        if arguments.only and part.name not in arguments.only:
            continue
        left_s = TOTAL_S - (time.monotonic() - started)
        own_s = part.limit_s * (DRY_PATIENCE if arguments.dry_run else 1.0)
        limit_s = min(own_s, max(left_s, 1.0))
        found = run_part(part, work=work, dry=arguments.dry_run, limit_s=limit_s, environment=environment)
        document["parts"][part.name] = found
        document["seconds"] = time.monotonic() - started
        (arguments.out / "gpu-check.json").write_text(json.dumps(document, indent=2) + "\n")
        (arguments.out / "gpu-check.md").write_text(page(document))
        print(f"{part.name}: {found['status']} in {found['seconds']:.1f} s", flush=True)
    return document


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-check"), help="folder for the two files (default: %(default)s)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="run small models on the CPU, with a simulated device"
    )
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        metavar="PART",
        help=f"run only these parts: {', '.join(names)} (default: all)",
    )
    return parser.parse_args()


def page(document: dict[str, Any]) -> str:
    """Lay a whole check out."""
    dry = document["dry_run"]
    lines = [
        "# GPU check" + (", dry run: no GPU was used, and its times mean nothing" if dry else ""),
        "",
        f"{document['date']}, `{document['command']}`,"
        f" Python {document['python']}, {document['seconds']:.0f} s.",
        "",
        "| part | status | seconds | what it shows |",
        "| --- | --- | ---: | --- |",
    ]
    lines += [
        f"| [{name}](#{name}) | {found['status']} | {found['seconds']:.1f} | {found['shows']} |"
        for name, found in document["parts"].items()
    ]
    for name, found in document["parts"].items():
        lines += _section(name, found)
    return "\n".join(lines) + "\n"


def _section(name: str, found: dict[str, Any]) -> list[str]:
    lines = ["", f"## {name}", "", f"{found['shows']}: **{found['status']}**."]
    if found["facts"]:
        lines += ["", *(f"- {fact}: {_shown(value)}" for fact, value in found["facts"].items())]
    if found["rows"]:
        lines += ["", *_table(found["rows"])]
    for failure in found["failures"]:
        lines += ["", "```text", failure.strip(), "```"]
    if found.get("output"):
        lines += ["", "The end of its output:", "", "```text", found["output"].strip(), "```"]
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return lines + [f"| {' | '.join(_shown(row.get(column)) for column in columns)} |" for row in rows]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_shown(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return str(value).replace("|", "\\|").replace("\n", " ")
