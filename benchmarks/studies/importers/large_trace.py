"""Time and memory of importing a large Kineto trace: a real one, repeated.

    python -m benchmarks importers.large_trace TRACE [--execution-trace ET] [--gbytes 1] [--headroom]

Copies follow one another in time and have ids of their own, as the steps of one long recording have. The
import runs in a process of its own, ``pace import kineto`` or ``pace headroom``; its time and its peak memory
are printed.
"""

import gzip
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness.conditions import study_parser

IDS = ("External id", "correlation", "Sequence number", "Record function id", "Ev Idx")
APART = 10_000_000


def copy(events: list[dict[str, Any]], number: int, span: int) -> list[dict[str, Any]]:
    """Return the events `number` spans later and under other ids."""
    changed = []
    for event in events:
        if event.get("ph") == "M" and number:
            continue
        later = dict(event)
        if "ts" in event:
            later["ts"] = event["ts"] + number * span
        if isinstance(event.get("id"), int):
            later["id"] = event["id"] + number * APART
        if str(event.get("name")).startswith("ProfilerStep#"):
            later["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + 100 * number}"
        arguments = event.get("args")
        if isinstance(arguments, dict):
            ids = {name: arguments[name] for name in IDS if isinstance(arguments.get(name), int)}
            later["args"] = arguments | {name: n + number * APART for name, n in ids.items() if n > 0}
        changed.append(later)
    return changed


def write(source: Path, target: Path, size_bytes: int) -> int:
    """Write a trace of at least `size_bytes`; return the number of its events."""
    content = source.read_bytes()
    document = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    events = document.pop("traceEvents")
    times = [(event["ts"], event.get("dur", 0)) for event in events if event.get("ph") == "X"]
    span = int(max(start + length for start, length in times) - min(times)[0]) + 1000
    num_events = 0
    with target.open("w") as out:
        out.write(json.dumps(document)[:-1] + ', "traceEvents": [')
        for number in itertools.count():
            copied = copy(events, number, span)
            num_events += len(copied)
            out.write("\n" if number == 0 else ",\n")
            out.write(",\n".join(map(json.dumps, copied)))
            if out.tell() >= size_bytes:
                break
        out.write("]}")
    return num_events


def main() -> None:
    """Write the trace, import it, and say what that took."""
    parser = study_parser(__doc__)
    parser.add_argument("trace", type=Path, help="trace to read or write (JSON)")
    parser.add_argument(
        "--execution-trace",
        type=Path,
        help="execution trace (JSON) with the sizes of gradients (default: none)",
    )
    parser.add_number("--gbytes", 1.0, "size of the trace in GB")
    parser.add_argument(
        "--headroom", action="store_true", help="run `pace headroom` instead of `pace import`"
    )
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        large = Path(folder) / "large.json"
        num_events = write(arguments.trace, large, int(arguments.gbytes * 1e9))
        print(f"{large.stat().st_size / 1e9:.3f} GB, {num_events} events", flush=True)
        work = ["headroom"] if arguments.headroom else ["import", "kineto"]
        command = [str(Path(sys.executable).parent / "pace"), *work, str(large)]
        if arguments.execution_trace:
            command += ["--execution-trace", str(arguments.execution_trace)]
        started = time.perf_counter()
        if not arguments.headroom:
            command += ["-o", str(Path(folder) / "profile.json")]
        subprocess.run(command, check=True)
        wall_s = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, memory_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(f"{cpu_s:.0f} s of processor time, {wall_s:.0f} s in all, {memory_bytes / 1e9:.2f} GB of memory")
