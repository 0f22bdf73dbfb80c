"""All-reduce measurements as CSV: sizes and times, and how many workers took part if it says so."""

import csv
from pathlib import Path

from pace.errors import FormatError
from pace.formats.cost_log import CostLog, cost_log
from pace.formats.reading import number, read_text, whole_number

_SIZES = {"bytes": 1, "size_bytes": 1, "kib": 2**10, "size_kib": 2**10, "mib": 2**20, "size_mib": 2**20}
_TIMES = {
    "seconds": 1.0,
    "time_s": 1.0,
    "ms": 1e-3,
    "time_ms": 1e-3,
    "us": 1e-6,
    "time_us": 1e-6,
    "duration_s": 1.0,
}


def read_cost_csv(path: str | Path) -> CostLog:
    """Read a table with a size and a time in each row.

    The header names the units: one of `bytes`, `size_kib`, `size_mib`, ... and one of `seconds`,
    `time_ms`, `time_us`, ...; a column `workers` must have one value throughout; other columns are
    ignored. A table of exactly two columns without a header is bytes and seconds.

    Raises
    ------
    FormatError
        With the line at fault.
    """
    text = read_text(path)
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise FormatError(path, f"not a CSV table: {error}", f"line {reader.line_num}") from None
    rows = [(line, row) for line, row in rows if not row[0].startswith("#")]
    if not rows:
        raise FormatError(path, "the table is empty")
    header = [cell.lower() for cell in rows[0][1]]
    if len(header) == 2 and _is_number(header[0]):
        header = ["bytes", "seconds"]
    else:
        rows = rows[1:]
    size_column = _the_column(path, header, set(_SIZES), "size")
    time_column = _the_column(path, header, set(_TIMES), "time")
    samples = []
    workers: set[int] = set()
    for line, row in rows:
        position = f"line {line}"
        if len(row) != len(header):
            raise FormatError(path, f"expected {len(header)} cells, but the row has {len(row)}", position)
        cells = dict(zip(header, row, strict=True))
        size = number(cells[size_column], path, size_column, position) * _SIZES[size_column]
        samples.append((size, number(cells[time_column], path, time_column, position) * _TIMES[time_column]))
        if "workers" in cells:
            workers.add(whole_number(cells["workers"], path, "workers", position))
    if len(workers) > 1:
        raise FormatError(path, f"several numbers of workers, {sorted(workers)}: make one file for each")
    return cost_log(path, "CSV", samples, workers.pop() if workers else None)


def is_cost_header(line: str) -> bool:
    """Return whether a line is the header of such a table: it names a size and a time."""
    cells = {cell.strip().lower() for cell in line.split(",")}
    return not cells.isdisjoint(_SIZES) and not cells.isdisjoint(_TIMES)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _the_column(path: str | Path, header: list[str], known: set[str], kind: str) -> str:
    found = [column for column in header if column in known]
    if len(found) != 1:
        reason = f"expected one {kind} column of {', '.join(sorted(known))}; found {found or header}"
        raise FormatError(path, reason, "line 1")
    return found[0]
