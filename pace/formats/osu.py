"""Output of the OSU micro-benchmarks' all-reduce latency tests (osu_allreduce, osu_iallreduce)."""

import re
from pathlib import Path

from pace.errors import FormatError
from pace.formats.cost_log import CostLog, cost_log
from pace.formats.reading import number, read_lines, whole_number

_TITLE = re.compile(r"^#\s*OSU\s.*Latency", re.IGNORECASE)
_HEADER = re.compile(r"^#\s*Size\s+(.*)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?$", re.IGNORECASE)


def read_osu(path: str | Path) -> CostLog:
    """Read the rows below `# Size  Avg Latency(us)`; what a job scheduler printed around is ignored.

    Raises
    ------
    FormatError
        If there is no such table, it is another collective's, or a row cannot be read.
    """
    in_table = False
    samples = []
    for line_number, text in read_lines(path):
        position = f"line {line_number}"
        line = text.strip()
        if _TITLE.match(line) and "allreduce" not in line.lower():
            raise FormatError(path, f"not an all-reduce test: {line[:80]!r}", position)
        if header := _HEADER.match(line):
            if not re.match(r"(Avg |Overall)?\s*Lat", header.group(1), re.IGNORECASE):
                raise FormatError(path, f"no average latency column: {line[:80]!r}", position)
            in_table = True
            continue
        cells = line.split()
        if in_table and len(cells) >= 2 and all(_NUMBER.match(cell) for cell in cells):
            size = whole_number(cells[0], path, "size", position)
            samples.append((size, number(cells[1], path, "latency", position) * 1e-6))
    if not in_table:
        raise FormatError(path, "no table: expected a line like '# Size  Avg Latency(us)'")
    return cost_log(path, "OSU micro-benchmarks", samples, None)
