"""Import of all Kineto traces in a folder: a line for each with the outcome and the error of the replay.

    python -m benchmarks importers.kineto FOLDER [--json out.json]

A folder's files that end in .json or .json.gz are traces of one rank each, but those of a folder named
`*.job` are the ranks of one job, imported together. An execution trace beside a trace, named `X.et.json.gz`
for `X.json.gz`, gives sizes, and so does a list of parameters named `X.parameters.json`. Where a trace names
no workers, or no all-reduce of known size, two workers and a ring at 100 Gbit/s stand in. The line says so.
"""

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from pace.documents.collective_costs import RingAllReduce
from pace.errors import FormatError, PaceError
from pace.formats.kineto import read_kineto

STAND_IN = RingAllReduce(bandwidth_bytes_per_s=12.5e9, latency_s=5e-6)


Beside = dict[str, Any]


def jobs(folder: Path) -> Iterator[tuple[str, list[Path], Beside]]:
    """Yield a name, the ranks' traces and what gives sizes, as an option of the importer, of every job."""
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(".gz").removesuffix(".json")
        if path.is_dir() and path.name.endswith(".job"):
            ranks = sorted(rank for rank in path.iterdir() if ".json" in rank.name)
            yield path.name.removesuffix(".job"), ranks, {}
        elif path.is_dir():
            yield from jobs(path)
        elif name != path.name.removesuffix(".gz") and not name.endswith((".et", ".parameters")):
            yield name, [path], _sizes_beside(path, name)


def _sizes_beside(path: Path, name: str) -> Beside:
    for option, kind in (("execution_trace", "et"), ("parameters", "parameters")):
        for end in ("", ".gz"):
            beside = path.with_name(f"{name}.{kind}.json{end}")
            if beside.is_file():
                return {option: beside}
    return {}


def tried(name: str, ranks: list[Path], beside: Beside) -> dict[str, Any]:
    """Import one job; a refusal because something is not recorded is tried again with stand-ins."""
    began = time.perf_counter()
    given: dict[str, Any] = {}
    row: dict[str, Any] = {"name": name, "ranks": len(ranks)}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        while True:
            try:
                profile = read_kineto(ranks, **beside, **given)
            except FormatError as error:
                if "one process (" in str(error) and not given:
                    given |= {"workers": 2, "allreduce": STAND_IN}
                elif "how many workers" in str(error) and "workers" not in given:
                    given["workers"] = 2
                elif "all-reduce of known size" in str(error) and "allreduce" not in given:
                    given["allreduce"] = STAND_IN
                else:
                    return row | {"outcome": "refused", "reason": error.reason}
            except PaceError as error:
                return row | {"outcome": "refused", "reason": str(error)}
            else:
                break
    found = profile.metadata
    return row | {
        "outcome": "imported",
        "stand_ins": sorted(given),
        "gradients": len(profile.gradients),
        "bytes": sum(gradient.size_bytes for gradient in profile.gradients),
        "steps": found["steps"],
        "clock": found["clock"],
        "recorded_s": found["step_wall_s"],
        "predicted_s": found["replay"]["predicted_s"],
        "error": found["replay"]["error"],
        "not_explained": found["replay"]["not_explained"],
        "all_reduces_match": found["recorded_allreduces_match"],
        "warnings": sorted({str(warning.message).partition(": ")[2] for warning in said}),
        "seconds": time.perf_counter() - began,
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of a Markdown table."""
    if row["outcome"] == "refused":
        return f"| {row['name']} | {row['ranks']} | refused: {row['reason']} | | | |"
    stand_ins = f"; given {' and '.join(row['stand_ins'])}" if row["stand_ins"] else ""
    return (
        f"| {row['name']} | {row['ranks']} | imported: {row['gradients']} gradients, {row['bytes']:,} bytes, "
        f"{row['steps']} steps{stand_ins} | {row['recorded_s'] * 1e3:.2f} | {row['predicted_s'] * 1e3:.2f} | "
        f"{row['error']:+.1%} |"
    )


def main() -> None:
    """Try every trace of a folder."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument("folder", type=Path, help="folder with the traces")
    options = parser.parse_args()
    print("| trace | ranks | outcome | recorded ms | replayed ms | error |\n|---|---|---|---|---|---|")
    rows = []
    for name, ranks, beside in jobs(options.folder):
        rows.append(tried(name, ranks, beside))
        print(line(rows[-1]), flush=True)
    write_json(options.json, {"rows": rows})
