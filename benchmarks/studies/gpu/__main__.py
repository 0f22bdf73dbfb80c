"""Checks PACE on one GPU, part by part, and writes ``gpu-check.json`` and ``gpu-check.md``.

python -m benchmarks gpu [--out FOLDER] [--wheels FOLDER] [--dry-run] [--only PART ...]
python -m benchmarks gpu --pack FOLDER
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
from benchmarks.studies.gpu.isolation import run_part
from benchmarks.studies.gpu.page import page
from benchmarks.studies.gpu.parts import PARTS, TOTAL_S
from benchmarks.studies.gpu.wheels import pack, unpack_missing

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
