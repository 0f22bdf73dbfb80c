"""Checks PACE on one GPU, part by part, and writes ``gpu-check.json`` and ``gpu-check.md``.

    python -m benchmarks gpu [--out FOLDER] [--dry-run] [--only PART ...] [OPTIONS]

Each part runs in a process of its own. This module uses the standard library alone, so that a package that is
missing fails the parts that need it and nothing else.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.prerequisites import Unavailable

ROOT = Path(__file__).resolve().parents[3]
DRY_PATIENCE = 5.0  # a dry run shares its machine with other tests, and compiles for CPUs
# Of the driver, on Linux and in WSL.
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part; `module`, in this folder, has a function of its name with arguments ``findings, setting``.

    Attributes
    ----------
    limit_s
        The process is ended after so long; what it had found by then is kept.
    """

    name: str
    module: str
    shows: str
    limit_s: float


PARTS = (
    Part(
        name="machine",
        module="part",
        shows="GPU, driver, versions of torch and of what PACE needs",
        limit_s=40,
    ),
    Part(
        name="cuda_tests",
        module="one_rank",
        shows="the tests marked cuda: two ranks on one GPU over Gloo, one over NCCL, no operation that waits",
        limit_s=120,
    ),
    Part(
        name="captures",
        module="one_rank",
        shows="real models captured, and traced and imported: predicted against plain iteration",
        limit_s=120,
    ),
    Part(
        name="compiled",
        module="ranks",
        shows="a compiled sharded transformer over NCCL: no pass, Inductor's overlap pass, PACE, FSDP2",
        limit_s=145,
    ),
    Part(
        name="overhead",
        module="one_rank",
        shows="time and peak memory of plain training, DDP and PACE where nothing is sent",
        limit_s=45,
    ),
    # Last, because it kills a rank.
    Part(
        name="nccl",
        module="ranks",
        shows="a model over NCCL: DDP, PACE with and without a schedule; clipped; HSDP; wraps; a killed rank",
        limit_s=120,
    ),
)
TOTAL_S = 590.0
"""All parts together; what is left after their limits is for starting and ending processes."""


def main() -> int:
    """Run what the arguments ask for; the exit status is 1 when a part did not pass."""
    started = time.monotonic()
    arguments = parse_arguments()
    if not arguments.dry and not any(Path(device).exists() for device in _DEVICES):
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
    if arguments.dry:
        environment["OMP_NUM_THREADS"] = "1"  # small models: threads would only wait for one another
    document: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["scripts/gpu-check", *sys.argv[1:]]),
        "dry_run": arguments.dry,
        "python": platform.python_version(),
        "parts": {},
    }
    setting = {name: value for name, value in vars(arguments).items() if name not in ("out", "only")}
    patience = DRY_PATIENCE if arguments.dry else 1.0
    for part in PARTS:
        if arguments.only and part.name not in arguments.only:
            continue
        left_s = TOTAL_S * patience - (time.monotonic() - started)
        limit_s = min(part.limit_s * patience, max(left_s, 1.0))
        found = run_part(part, work=work, setting=setting, limit_s=limit_s, environment=environment)
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
    add_options(parser)
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        metavar="PART",
        help=f"run only these parts: {', '.join(names)} (default: all)",
    )
    arguments = parser.parse_args()
    if arguments.ranks < 2:
        parser.error(f"--ranks {arguments.ranks}: expected at least 2, of which the last one is killed")
    return arguments


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that become fields of ``part.Setting``."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        dest="dry",
        help="run small models on the CPU, with a simulated device",
    )
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the part nccl (default: %(default)s)")
    parser.add_argument(
        "--model",
        choices=("ResNet-50", "GPT-2 small", "BERT-base"),
        default="ResNet-50",
        help="what they train (default: %(default)s)",
    )
    parser.add_argument("--samples", type=int, help="samples a batch (default: the model's own)")
    parser.add_argument(
        "--rate-mbit",
        type=float,
        default=10_000.0,
        dest="rate_mbit_s",
        help="rate of each rank's link in the part nccl (default: %(default)s)",
    )
    parser.add_argument(
        "--without-mps",
        action="store_false",
        dest="mps",
        help="let ranks take turns on the GPU, though MPS is there",
    )


GRACE_S = 4.0
"""Between SIGTERM, at which network namespaces are taken away again, and SIGKILL."""
TAIL_CHARACTERS = 3000


def run_part(
    part: Part, *, work: Path, setting: dict[str, Any], limit_s: float, environment: dict[str, str]
) -> dict[str, Any]:
    """Run one part for at most `limit_s` and return its findings, status and seconds.

    Status is "passed", "failed" or "timed out"; of a part that did not pass, the end of its output is kept.
    """
    result, log = work / f"{part.name}.json", work / f"{part.name}.log"
    command = [
        sys.executable,
        "-m",
        "benchmarks.studies.gpu.part",
        part.module,
        part.name,
        str(result),
        str(work),
        json.dumps(setting),
    ]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    found: dict[str, Any] = {"facts": {}, "rows": [], "failures": []}
    if result.exists():
        found = json.loads(result.read_text())
    if code is None:
        found["failures"].append(f"ended after {limit_s:.0f} s, its limit; what it had found is kept")
    elif code != 0:
        found["failures"].append(f"the process ended with {code}")
    status = "timed out" if code is None else "failed" if found["failures"] else "passed"
    found |= {"status": status, "seconds": time.monotonic() - started, "shows": part.shows}
    if status != "passed":
        found["output"] = log.read_text(errors="replace")[-TAIL_CHARACTERS:]
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of the process's group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
