"""From logs of any known tool, or a table, to one all-reduce cost: what ``pace fit`` does."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.errors import FormatError, InvalidOptions
from pace.formats.cost_log import (
    ALL_REDUCE,
    CUT_ROW,
    CostLog,
    cost_log,
    lines_without_messages,
    only_all_reduces,
)
from pace.formats.horovod_timeline import TOOL as HOROVOD_TIMELINE
from pace.formats.horovod_timeline import read_horovod_cost
from pace.formats.nccl_tests import read_nccl_tests
from pace.formats.reading import (
    DELIMITERS,
    number,
    open_binary,
    read_table,
    read_text,
    refuse_utf16,
    warn,
    whole_number,
)
from pace.formats.recognize import head_of, refuse_foreign

_TITLE = re.compile(r"^#\s*OSU\s.*Latency", re.IGNORECASE)
_HEADER = re.compile(r"^#\s*Size\s+(.*)", re.IGNORECASE)
_OSU_ROW = re.compile(r"^\s*\d+\s")
_PART_OF_ROW = re.compile(r"^\d+(?:[a-zA-Z\[]|\s+\d+\.\d)")
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?$", re.IGNORECASE)
_NO_NUMBER = re.compile(r"^\d[\d.,]*\s+[-+]?(nan|inf|\d[\d.,]*,\d+)\b", re.IGNORECASE)
_LATENCY = re.compile(r"((Avg |Overall )?Lat|Pure Comm)", re.IGNORECASE)


def read_osu(path: str | Path) -> CostLog:
    """Read an all-reduce latency test of the OSU micro-benchmarks (osu_allreduce, osu_iallreduce).

    Its rows are below `# Size  Avg Latency(us)`. What a job scheduler printed around is ignored.

    Raises
    ------
    FormatError
        If there is no such table, it is another collective's, or a row cannot be read or is not whole.
    """
    tables: list[tuple[int, list[tuple[str, list[str]]]]] = []
    written = read_text(path)
    lines = lines_without_messages(path, written, _OSU_ROW)
    for line_number, text in only_all_reduces(lines, _collective_of):
        position = f"line {line_number}"
        line = text.strip()
        if _TITLE.match(line) and "allreduce" not in line.lower():
            raise FormatError(path, f"not an all-reduce test: {line[:80]!r}", position)
        if header := _HEADER.match(line):
            columns = re.split(r"\s{2,}", header.group(1))
            place = next((place for place, name in enumerate(columns, 1) if _LATENCY.match(name)), None)
            if place is None:
                raise FormatError(path, f"no average latency column: {line[:80]!r}", position)
            tables.append((place, []))
            continue
        cells = line.removesuffix("Pass").split()  # a column of -c
        are_numbers = all(map(_NUMBER.match, cells))
        if tables and len(cells) >= 2 and are_numbers:
            tables[-1][1].append((position, cells))
        elif tables and _NO_NUMBER.match(line):
            raise FormatError(path, f"no size and latency, with a decimal point: {line[:80]!r}", position)
        elif tables and (_PART_OF_ROW.match(line) or (are_numbers and "." in line)):
            raise FormatError(path, CUT_ROW, position)
    if not tables:
        raise FormatError(path, "no table: expected a line like '# Size  Avg Latency(us)'")
    if not written.endswith("\n"):
        _leave_out_cut(path, [row for _, rows in tables for row in rows], tables[-1][1])
    samples = [sample for place, rows in tables for sample in _samples(path, rows, place)]
    return cost_log(path, "OSU micro-benchmarks", samples, None)


def _collective_of(text: str) -> str | None:
    if not _TITLE.match(text.strip()):
        return None
    return ALL_REDUCE if "allreduce" in text.lower() else text


def _leave_out_cut(
    path: str | Path, rows: list[tuple[str, list[str]]], last: list[tuple[str, list[str]]]
) -> None:
    """Drop the row that a log ends with if it lacks cells or decimals that all others have."""
    written = [(len(cells), len(cells[-1].partition(".")[2])) for _, cells in rows]
    if last and written[-1] < min(written[:-1], default=(0, 0)):
        position, cells = last.pop()
        warn(path, f"{position}: the last row, of {cells[0]} bytes, is not complete and was left out")


def _samples(
    path: str | Path, rows: list[tuple[str, list[str]]], place: int
) -> Iterator[tuple[float, float]]:
    """Yield the sizes and times of a table, whose rows have as many cells each and ever larger sizes."""
    usual = Counter(len(cells) for _, cells in rows).most_common(1)
    before = -1
    for position, cells in rows:
        if not place < len(cells) == usual[0][0] or not cells[0].isdigit() or int(cells[0]) <= before:
            raise FormatError(path, CUT_ROW, position)
        size = before = whole_number(cells[0], path, "size", position)
        yield size, number(cells[place], path, "latency", position) * 1e-6


_CSV_SIZES = {"bytes": 1, "size_bytes": 1, "kib": 2**10, "size_kib": 2**10, "mib": 2**20, "size_mib": 2**20}
_CSV_TIMES = {
    "seconds": 1.0,
    "time_s": 1.0,
    "ms": 1e-3,
    "time_ms": 1e-3,
    "us": 1e-6,
    "time_us": 1e-6,
    "duration_s": 1.0,
}


# Columns that may name collectives beside other things, and what these are called, without other characters.
_CSV_COLLECTIVES = ("op", "operation", "collective", "name", "primitive", "kind", "type")
_COLLECTIVE = re.compile(
    "allreduce|allgather|reducescatter|broadcast|alltoall|barrier|sendrecv|(reduce|gather|scatter|send|recv)$"
)
_CSV_WORKERS = {"workers", "ranks", "nranks", "num_ranks", "world_size"}


def read_cost_csv(path: str | Path) -> CostLog:
    """Read a table (CSV) with a size and a time in each row.

    The header names the units: one of `bytes`, `size_kib`, `size_mib`, ... and one of `seconds`,
    `time_ms`, `time_us`, ...; a column such as `workers` or `ranks` must have one value throughout. Of rows
    of several collectives, which a column names, those of all-reduces count. Other columns are ignored. A
    table of exactly two columns without a header is bytes and seconds.

    Raises
    ------
    FormatError
        With the line at fault.
    """
    rows = [(line, row) for line, row in read_table(path) if not row[0].startswith("#")]
    if not rows:
        raise FormatError(path, "the table is empty")
    header = [cell.lower() for cell in rows[0][1]]
    if len(header) == 2 and _is_number(header[0]):
        header = ["bytes", "seconds"]
    else:
        rows = rows[1:]
    size_column = _the_column(path, header, set(_CSV_SIZES), "size")
    time_column = _the_column(path, header, set(_CSV_TIMES), "time")
    rows = _of_all_reduces(path, header, rows)
    samples = []
    workers: set[int] = set()
    for line, row in rows:
        position = f"line {line}"
        if len(row) != len(header):
            raise FormatError(path, f"expected {len(header)} cells, but the row has {len(row)}", position)
        cells = dict(zip(header, row, strict=True))
        scale = _CSV_SIZES[size_column]
        read_size = whole_number if scale == 1 else number
        size = read_size(cells[size_column], path, size_column, position) * scale
        samples.append(
            (size, number(cells[time_column], path, time_column, position) * _CSV_TIMES[time_column])
        )
        workers |= {
            whole_number(cell, path, name, position)
            for name, cell in zip(header, row, strict=True)
            if name in _CSV_WORKERS
        }
    if 0 in workers:
        raise FormatError(path, "the number of workers is 0: expected at least 1")
    if len(workers) > 1:
        raise FormatError(path, f"several numbers of workers, {sorted(workers)}: make one file for each")
    return cost_log(path, "CSV", samples, workers.pop() if workers else None)


def _of_all_reduces(
    path: str | Path, header: list[str], rows: list[tuple[int, list[str]]]
) -> list[tuple[int, list[str]]]:
    """Return the rows of all-reduces, if a column names collectives."""
    for at, column in enumerate(header):
        named = {row[at] for _, row in rows if at < len(row)}
        words = {name: re.sub("[^a-z]", "", name.lower()) for name in named}
        known = [_COLLECTIVE.search(word) is not None for word in words.values()]
        if any(known) if column in _CSV_COLLECTIVES else known and all(known):
            kept = {name for name, word in words.items() if "allreduce" in word}
            if not kept:
                raise FormatError(path, f"no all-reduces: {header[at]} is {', '.join(sorted(named))}")
            return [(line, row) for line, row in rows if at >= len(row) or row[at] in kept]
    return rows


def is_cost_header(line: str) -> bool:
    """Return whether a line is the header of such a table: it names a size and a time."""
    cells = {cell.strip(' "').lower() for cell in re.split(f"[{DELIMITERS}]", line)}
    return not cells.isdisjoint(_CSV_SIZES) and not cells.isdisjoint(_CSV_TIMES)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _the_column(path: str | Path, header: list[str], known: set[str], kind: str) -> str:
    found = [column for column in header if column in known]
    if len(found) != 1:
        names = f"{', '.join(sorted(known)[:-1])} or {max(known)}"
        has = f"{len(found)} ({', '.join(found)})" if found else f"only {', '.join(header)}"
        reason = f"expected one column of {kind}s, named {names}; the header has {has}"
        raise FormatError(path, reason, "line 1")
    return found[0]


_READERS: dict[str, Callable[[str | Path], CostLog]] = {
    "nccl-tests": read_nccl_tests,
    "osu": read_osu,
    "horovod-timeline": read_horovod_cost,
    "csv": read_cost_csv,
}

FORMATS = tuple(_READERS)

_SNIFFED_BYTES = 1 << 16
_MARKERS = {
    "horovod-timeline": re.compile('NEGOTIATE_|"process_sort_index"'),
    "nccl-tests": re.compile(r'\bbusbw\b|"bus_bw"'),  # DeepSpeed has a column busbw_avg
    "osu": re.compile("# OSU |# Size "),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCost:
    """The cost of an all-reduce, fitted to all logs.

    Attributes
    ----------
    allreduce
        The measured samples, as a profile holds them.
    workers
        How many workers were measured.
    affine, affine_error
        The line with the least relative squared error, and its largest relative error: how much a
        model with one latency and one bandwidth would be off.
    """

    allreduce: SampledAllReduce
    workers: int
    logs: tuple[CostLog, ...]
    affine: AffineAllReduce
    affine_error: float


def read_cost_log(path: str | Path, format: str = "auto") -> CostLog:  # noqa: A002 - the option's name
    """Read one log; "auto" tells the format from the content.

    Raises
    ------
    FormatError
        If the format is not recognized or the file cannot be read as it.
    """
    if format == "auto":
        format = _recognize(path)  # noqa: A001
    if format not in _READERS:
        raise InvalidOptions(f'no log format "{format}": choose auto or one of {", ".join(FORMATS)}')
    return _READERS[format](path)


def fit_cost(
    paths: Sequence[str | Path],
    *,
    workers: int | None = None,
    format: str = "auto",  # noqa: A002
) -> FittedCost:
    """Fit one cost to the measurements of one or several logs, all of the same number of workers.

    Raises
    ------
    FormatError
        If a log cannot be read.
    InvalidOptions
        If the logs disagree on the number of workers, or none says it and `workers` is not given.
    """
    logs = tuple(read_cost_log(path, format) for path in paths)
    said = {log.workers for log in logs if log.workers is not None}
    if workers is not None:
        said = {workers}
    if not said:
        raise InvalidOptions("the logs do not say how many workers took part: give their number")
    if len(said) > 1:
        shown = ", ".join(f"{log.path}: {log.workers}" for log in logs if log.workers is not None)
        raise InvalidOptions(
            f"the logs are of different numbers of workers ({shown}): fit each number separately"
        )
    samples = sorted(sample for log in logs for sample in log.samples)
    affine, error = _affine(np.array(samples))
    return FittedCost(
        allreduce=SampledAllReduce(samples=tuple(samples), ranks=_ranks(logs, workers or max(said))),
        workers=said.pop(),
        logs=logs,
        affine=affine,
        affine_error=error,
    )


def _ranks(logs: Sequence[CostLog], workers: int) -> int:
    """Return how many ranks the logs are of: benchmarks wait for all of them, a timeline is one rank's."""
    return 1 if any(log.tool == HOROVOD_TIMELINE for log in logs) else workers


def _affine(samples: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> tuple[AffineAllReduce, float]:
    from scipy.optimize import nnls  # 0.2 s to import

    sizes, seconds = samples[:, 0], samples[:, 1]
    weights = 1.0 / np.maximum(seconds, seconds.max() * 1e-9)
    scale = float(sizes.max())
    matrix = np.stack([weights, weights * sizes / scale], axis=1)
    (latency, slope), _ = nnls(matrix, weights * seconds)
    affine = AffineAllReduce(latency_s=float(latency), seconds_per_byte=float(slope) / scale)
    predicted = affine.latency_s + sizes * affine.seconds_per_byte
    positive = seconds > 0
    return affine, float(np.abs(predicted[positive] / seconds[positive] - 1).max())


def _recognize(path: str | Path) -> str:
    """Tell the format from words that only one tool writes; a batch system's log may come before them."""
    first = ""
    with open_binary(path) as file:
        while head := file.read(_SNIFFED_BYTES):
            if not first:
                refuse_utf16(head, path)
            # A marker may lie across the end of what was read.
            text = (head + file.readline()).decode("utf-8", errors="replace")
            first = first or next(
                (line for line in text.splitlines() if line.strip() and not line.startswith("#")), ""
            )
            if is_cost_header(first):  # further columns may have the names of any tool
                return "csv"
            for name, marker in _MARKERS.items():
                if marker.search(text):
                    return name
    if any(mark in first for mark in DELIMITERS) and not first.lstrip().startswith(("{", "[")):
        return "csv"
    refuse_foreign(head_of(path), path)
    if not first:
        raise FormatError(path, "the file is empty")
    raise FormatError(
        path, f"not a log of a known tool ({', '.join(FORMATS)}); its first line is {first[:40]!a}"
    )
