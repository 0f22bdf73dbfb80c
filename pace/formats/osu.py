"""Output of the OSU micro-benchmarks' all-reduce latency tests (osu_allreduce, osu_iallreduce)."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pace.errors import FormatError
from pace.formats.cost_log import (
    ALL_REDUCE,
    CUT_ROW,
    CostLog,
    cost_log,
    lines_without_messages,
    only_all_reduces,
)
from pace.formats.reading import number, read_text, whole_number

_TITLE = re.compile(r"^#\s*OSU\s.*Latency", re.IGNORECASE)
_HEADER = re.compile(r"^#\s*Size\s+(.*)", re.IGNORECASE)
_ROW = re.compile(r"^\s*\d+\s")
_PART_OF_ROW = re.compile(r"^\d+(?:[a-zA-Z\[]|\s+\d+\.\d)")
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?$", re.IGNORECASE)


def read_osu(path: str | Path) -> CostLog:
    """Read the rows below `# Size  Avg Latency(us)`; what a job scheduler printed around is ignored.

    Raises
    ------
    FormatError
        If there is no such table, it is another collective's, or a row cannot be read or is not whole.
    """
    tables: list[list[tuple[str, list[str]]]] = []
    lines = lines_without_messages(path, read_text(path), _ROW)
    for line_number, text in only_all_reduces(lines, _collective_of):
        position = f"line {line_number}"
        line = text.strip()
        if _TITLE.match(line) and "allreduce" not in line.lower():
            raise FormatError(path, f"not an all-reduce test: {line[:80]!r}", position)
        if header := _HEADER.match(line):
            if not re.match(r"(Avg |Overall)?\s*Lat", header.group(1), re.IGNORECASE):
                raise FormatError(path, f"no average latency column: {line[:80]!r}", position)
            tables.append([])
            continue
        cells = line.split()
        are_numbers = all(map(_NUMBER.match, cells))
        if tables and len(cells) >= 2 and are_numbers:
            tables[-1].append((position, cells))
        elif tables and (_PART_OF_ROW.match(line) or (are_numbers and "." in line)):
            raise FormatError(path, CUT_ROW, position)
    if not tables:
        raise FormatError(path, "no table: expected a line like '# Size  Avg Latency(us)'")
    samples = [sample for rows in tables for sample in _samples(path, rows)]
    return cost_log(path, "OSU micro-benchmarks", samples, None)


def _collective_of(text: str) -> str | None:
    if not _TITLE.match(text.strip()):
        return None
    return ALL_REDUCE if "allreduce" in text.lower() else text


def _samples(path: str | Path, rows: list[tuple[str, list[str]]]) -> Iterator[tuple[float, float]]:
    """Yield the sizes and times of a table, whose rows have as many cells each and ever larger sizes."""
    usual = Counter(len(cells) for _, cells in rows).most_common(1)
    before = -1
    for position, cells in rows:
        if len(cells) != usual[0][0] or not cells[0].isdigit() or int(cells[0]) <= before:
            raise FormatError(path, CUT_ROW, position)
        size = before = whole_number(cells[0], path, "size", position)
        yield size, number(cells[1], path, "latency", position) * 1e-6
