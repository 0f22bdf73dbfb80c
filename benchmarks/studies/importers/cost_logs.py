"""Reading of nccl-tests' logs, compared with tables that others made from the same logs.

    python -m benchmarks importers.cost_logs FOLDER

A log is a file that ends in .out. The table of `job-7.out` or `job-7-SLURMID.out` is `job-7.csv` beside it,
with nccl-tests' own columns, out of place first. Prints a line for each log, and how many logs agree.
"""

import csv
import warnings
from pathlib import Path

from benchmarks.harness.conditions import study_parser
from pace.errors import PaceError
from pace.formats.fit import fit_cost

_TIMES = (5, 9)  # columns: out of place, in place, in us


def times_by_size(table: Path) -> dict[int, tuple[float, ...]]:
    """Return the times in us that a table has for each size in bytes."""
    with table.open(newline="") as lines:
        rows = list(csv.reader(lines))[1:]
    return {int(row[0]): tuple(float(row[column]) for column in _TIMES) for row in rows}


def table_of(log: Path) -> Path | None:
    """Return the table beside a log, if there is one."""
    names = (log.stem, log.stem.rpartition("-")[0])
    return next((path for name in names if (path := log.with_name(f"{name}.csv")).is_file()), None)


def outcome(log: Path) -> tuple[bool, str]:
    """Return whether a log was read and its table agrees in every number, and a line of text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = fit_cost([log])
    except PaceError as error:
        return False, f"refused: {error}"
    read = {size: 1e6 * seconds for size, seconds in fitted.allreduce.samples}
    shown = f"{fitted.workers} workers, {len(read)} sizes"
    if (table := table_of(log)) is None:
        return True, f"{shown}; no table beside it"
    times = times_by_size(table)
    missing = len(times.keys() - read.keys())
    different = sum(
        all(abs(microseconds - time) > 1e-6 * time for time in times.get(int(size), ()))
        for size, microseconds in read.items()
    )
    return not missing and not different, f"{shown}; missing {missing}, different {different}"


def main() -> None:
    """Read the folder that the command line names."""
    parser = study_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder with the logs")
    logs = sorted(parser.parse_args().folder.rglob("*.out"))
    num_equal = 0
    for log in logs:
        equal, said = outcome(log)
        num_equal += equal
        print(f"{log.name}: {said}")
    print(f"{num_equal} of {len(logs)} logs read as their tables say")
