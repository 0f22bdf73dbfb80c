"""Checks PACE on one GPU, part by part, and writes ``gpu-check.json`` and ``gpu-check.md``.

python -m benchmarks gpu [--out FOLDER] [--wheels FOLDER] [--dry-run] [--only PART ...]
python -m benchmarks gpu --pack FOLDER
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
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
    if arguments.pack is not None:
        print(f"{arguments.pack}: {pack(arguments.pack) / 1e6:.1f} MB of wheels")
        return 0
    if not arguments.dry_run and not any(Path(device).exists() for device in _DEVICES):
        raise Unavailable("there is no NVIDIA GPU: run it on a machine with one, or give --dry-run")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pace-gpu-check-") as folder:
        document = run_parts(arguments, Path(folder), started)
    print(f"{arguments.out / 'gpu-check.json'}\n{arguments.out / 'gpu-check.md'}")
    return int(any(part["status"] != "passed" for part in document["parts"].values()))


def run_parts(arguments: argparse.Namespace, work: Path, started: float) -> dict[str, Any]:
    """Run the parts and write the results after each: a machine that is taken away leaves what there is."""
    packages = work / "packages"
    unpacked = [] if arguments.wheels is None else unpack_missing(arguments.wheels, packages)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)]),
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
        "unpacked_wheels": unpacked,
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
        "--wheels",
        type=Path,
        help="folder that --pack made, for packages that are missing here (default: none)",
    )
    parser.add_argument(
        "--pack", type=Path, help="download wheels for a machine with a GPU into this folder, and exit"
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


WANTED = (
    *("pydantic>=2.12,<3", "ijson>=3.3", "networkx>=3.2", "pulp>=3.3.2,<4", "rich>=13.7", "typer>=0.19"),
    *("structlog>=24.4", "httpx>=0.27", "tenacity>=9"),
    *("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6"),
)
"""What PACE and its tests need and a machine for torch may lack; numpy, scipy and numba are too large."""
PYDANTIC = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
"""These fit one another only as they were packed."""
OLDEST_PYDANTIC = (2, 12)
MOST_BYTES = 60_000_000


def pack(folder: Path) -> int:
    """Download the wheels, for CPython 3.12 on x86-64 Linux, and return their size in bytes.

    Raises
    ------
    RuntimeError
        When they are larger than 60 MB together, or pip fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tags = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    command += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "none"]
    command += [word for tag in tags for word in ("--platform", tag)]
    ended = subprocess.run([*command, *WANTED], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"pip download failed:\n{ended.stderr[-2000:]}")
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > MOST_BYTES:
        raise RuntimeError(f"{folder} holds {size / 1e6:.0f} MB of wheels: at most {MOST_BYTES / 1e6:.0f} MB")
    return size


def unpack_missing(wheels: Path, into: Path) -> list[str]:
    """Unpack the wheels whose package is not installed, and return their names.

    Nothing that is installed is replaced, but for a pydantic that is too old, together with what it needs.
    """
    used = []
    replaced = PYDANTIC if (_installed("pydantic") or (0,)) < OLDEST_PYDANTIC else ()
    for wheel in sorted(wheels.glob("*.whl")):
        name = wheel.name.split("-", 1)[0].lower()
        if _installed(name) is not None and name not in replaced:
            continue
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                written = Path(archive.extract(member, into))
                if member.external_attr >> 16 & 0o111 and written.is_file():
                    written.chmod(0o755)
        used.append(wheel.name)
    return used


def _installed(name: str) -> tuple[int, ...] | None:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
