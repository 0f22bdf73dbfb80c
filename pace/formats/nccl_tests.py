"""Output of nccl-tests' all_reduce_perf: the table it prints, and the JSON that it writes with -J."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from pace.documents.profile import ELEMENT_BYTES
from pace.errors import FormatError
from pace.formats.cost_log import (
    ALL_REDUCE,
    CUT_ROW,
    CostLog,
    cost_log,
    lines_without_messages,
    only_all_reduces,
)
from pace.formats.reading import number, read_text, warn, whole_number, whole_or_none
from pace.formats.tensor_types import DTYPES

_TOOL = "nccl-tests"
_HEADER = re.compile(r"^#\s+size\s+count\s")
_DEVICE = re.compile(
    r"^#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+))?"
)  # copies lose the "#", which Markdown takes for a title
_PROGRAM = re.compile(r"\b(\w+)_perf\b")
_SIDE = ["time", "algbw", "busbw", "#wrong"]
_DEFAULT_COLUMNS = ["size", "count", "type", "redop", "root", *_SIDE, *_SIDE]
_REDUCTION = r"(?:sum|prod|max|min|avg|mulsum|none)\b"
_ROW = re.compile(rf"(\d+)\s+(\d+)\s+([a-z]\w*)\s+({_REDUCTION})")
_TYPE = r"(?:float|double|half|bfloat16|u?int\d*|char|fp?8\w+)"
_PART_OF_ROW = re.compile(rf"^\d+\s+\d+\s+{_TYPE}|\b{_TYPE}\s+{_REDUCTION}\s+-?\d")
_CELL = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|N/A|nan", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d")
_ENDS_A_PRINT = ("root", "#wrong", "error")
_MOST_APART = 1.5
_ROUNDING = 0.01  # GB/s: bandwidths have two decimals
_ACCURATE, _OTHER_FACTOR = 1.0, 0.1


def read_nccl_tests(path: str | Path) -> CostLog:
    """Read the printed table or the JSON document; the times of in-place calls are preferred.

    A rank's label before each line is taken off, N/A is skipped. Several tables in one log add up; those
    of other collectives are left out. Other text that was printed inside a row is taken out of it.

    Raises
    ------
    FormatError
        If another collective was measured, only the host's time was, a row cannot be read, or its time and
        its bandwidth contradict each other.
    """
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return _read_json(path, text)
    lines = lines_without_messages(path, text, _ROW)
    return _read_table(path, only_all_reduces(lines, _collective_of))


def _read_table(path: str | Path, lines: Iterable[tuple[int, str]]) -> CostLog:
    columns = list(_DEFAULT_COLUMNS)
    runs: list[dict[int, str]] = [{}]  # the group of each rank
    listed = 0
    samples: list[tuple[float, float]] = []
    bandwidths: list[tuple[object, object]] = []
    cells: list[str] = []  # of a row that other text has cut
    begun_at = ""
    for line_number, raw in lines:
        line = raw.strip()
        position = f"line {line_number}"
        begins = _ROW.search(line)
        if cells and (begins or _HEADER.match(line)):
            raise FormatError(path, CUT_ROW, begun_at)
        if _HEADER.match(line):
            columns = [name for name in line.lstrip("#").split() if name != "timestamp"]  # it comes last
            _require_all_reduce(path, columns, position)
        elif device := _DEVICE.match(line):
            if len(samples) > listed:  # another run's list of devices begins
                listed = len(samples)
                runs.append({})
            runs[-1][int(device.group(1))] = device.group(2) or ""
        elif line.startswith("#"):
            _require_program(path, line, position)
        elif begins:
            cells, line, begun_at = list(begins.groups()), line[begins.end() :], position
        elif not cells and _PART_OF_ROW.search(line):
            raise FormatError(path, CUT_ROW, position)
        if cells:
            words, wanted = line.split(), columns[len(cells) :]
            found, cut = _cells(words, wanted)
            cells += found
            if cut:
                raise FormatError(path, CUT_ROW, position)
            if len(cells) == len(columns):
                if sample := _row(path, cells, columns, begun_at):
                    samples.append(sample)
                named = pairwise([*zip(columns, cells, strict=True)])
                bandwidths += [(a[1], b[1]) for a, b in named if (a[0], b[0]) == ("algbw", "busbw")]
                cells = []
    if cells:
        warn(path, f"{begun_at}: the last row, of {cells[0]} bytes, is not complete and was left out")
    for ranks in runs:
        missing = next((rank for rank in range(len(ranks)) if rank not in ranks), None)
        if missing is not None:
            reason = f"lists the device of rank {max(ranks)} and not that of rank {missing}"
            raise FormatError(path, f"{reason}: restore that line, or remove all of them and give --workers")
    counts = [_of_one_group(list(ranks.values())) for ranks in runs if ranks]
    if len(set(counts)) > 1:
        told = " and ".join(map(str, counts))
        raise FormatError(path, f"holds runs of {told} ranks: split it, one file for each number of ranks")
    workers = counts[0] if counts else None
    _require_factor(path, workers, bandwidths)
    return cost_log(path, _TOOL, samples, workers)


def _of_one_group(groups: list[str]) -> int:
    """Return how many ranks are in the group of the first one: with a split, groups measure side by side."""
    return groups.count(groups[0])


def _require_factor(
    path: str | Path, workers: int | None, bandwidths: Iterable[tuple[object, object]]
) -> None:
    """Refuse bandwidths whose ratio is that of no all-reduce among so many ranks."""
    if workers is None or workers < 2:
        return
    factor = 2 * (workers - 1) / workers
    read = [(_as_float(algorithm), _as_float(bus)) for algorithm, bus in bandwidths]
    large = [(algorithm, bus) for algorithm, bus in read if algorithm >= _ACCURATE]
    if large and all(abs(bus / algorithm / factor - 1) > _OTHER_FACTOR for algorithm, bus in large):
        algorithm, bus = large[-1]
        raise FormatError(
            path,
            f"a busbw of {bus:g} beside an algbw of {algorithm:g} is not of an all-reduce among {workers} "
            "ranks: give a log of all_reduce_perf, with all lines of its devices",
        )


def _as_float(cell: object) -> float:
    """Return a measured bandwidth, and 0 for what was not measured."""
    try:
        return float(cell) if isinstance(cell, str | int | float) else 0.0
    except ValueError:
        return 0.0


def _cells(words: list[str], wanted: list[str]) -> tuple[list[str], bool]:
    """Return the cells that a line has of the wanted columns, before and after other text, if it has any.

    And whether it cut one in two. Text from within the run comes where the tool pauses, so it may be glued to
    a cell that ends a print.
    """
    found: list[str] = []
    for word, column in zip(words, wanted, strict=False):
        cell = _CELL.match(word)
        if cell is None or (cell[0] != word and column not in _ENDS_A_PRINT):
            if (cell is not None or word.startswith(".")) and not _DATE.match(word):
                return found, True
            break
        found.append(cell[0])
        if cell[0] != word:
            break
    missing = len(wanted) - len(found)
    if not missing and any(map(_CELL.fullmatch, words[len(wanted) :][:1])):
        return found, True
    after = list(takewhile(_CELL.fullmatch, reversed(words[len(found) :])))
    # Numbers may end the other text as well: what is not exactly the rest of the row is not taken for it.
    return found + after[::-1] if len(after) == missing else found, False


def _collective_of(text: str) -> str | None:
    program = _PROGRAM.search(text)
    return program and program.group(1)


def _require_program(path: str | Path, text: str, position: str) -> None:
    if (measured := _collective_of(text)) not in (None, ALL_REDUCE):
        raise FormatError(path, f"measures {measured}, not {ALL_REDUCE}", position)


def _require_all_reduce(path: str | Path, columns: list[str], position: str) -> None:
    if "redop" not in columns:
        raise FormatError(path, "the table has no reduction (redop): not an all-reduce", position)
    if "time" not in columns:
        raise FormatError(path, "the table has no device time (was it run with -C?)", position)


def _row(path: str | Path, cells: list[str], columns: list[str], position: str) -> tuple[float, float] | None:
    size = whole_number(cells[0], path, "size", position)
    said = dict(zip(columns, cells, strict=True))
    dtype = DTYPES.get(said.get("type", ""))
    if said.get("redop") == "none":
        raise FormatError(path, "no reduction (redop): not an all-reduce", position)
    if not said.get("root", "-1").startswith("-"):
        raise FormatError(
            path,
            f"has a root, rank {said['root'][:20]}: not an all-reduce. Give a log of all_reduce_perf",
            position,
        )
    if dtype is not None and size != int(cells[1]) * ELEMENT_BYTES[dtype]:
        # A reduce-scatter counts the elements that each rank gets.
        reason = f"{size} bytes are not {cells[1]} elements of {dtype}: not an all-reduce"
        raise FormatError(path, f"{reason}. Give a log of all_reduce_perf", position)
    named = list(zip(columns, cells, strict=True))
    sides = [
        (time, after[1] if after[0] == "algbw" else None)
        for (column, time), after in pairwise([*named, ("", "")])
        if column == "time"
    ]
    return _preferred(path, size, reversed(sides), position)


def _preferred(
    path: str | Path, size: int, sides: Iterable[tuple[object, object]], position: str
) -> tuple[float, float] | None:
    """Return the first side's time that was measured; its bandwidth must be that of these bytes in it."""
    for time, bandwidth in sides:
        if time in (None, "N/A", "nan"):
            continue
        microseconds = number(time, path, "time", position)
        if bandwidth not in (None, "N/A", "nan"):
            said = number(bandwidth, path, "algbw", position)
            found = size / microseconds * 1e-3 if microseconds else said and math.inf
            if not said / _MOST_APART - _ROUNDING <= found <= said * _MOST_APART + _ROUNDING:
                reason = (
                    f"{size} bytes in {microseconds:g} us are {found:.3g} GB/s, and the row says {said:g}"
                )
                raise FormatError(path, f"{reason}: is other text inside the row?", position)
        return size, microseconds * 1e-6
    return None


def _read_json(path: str | Path, text: str) -> CostLog:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(path, f"not JSON: {error}") from None
    results = document.get("results")
    if not isinstance(results, list):
        raise FormatError(path, 'no "results": expected what all_reduce_perf -J writes')
    arguments = document.get("args")
    if isinstance(arguments, list):
        _require_program(path, " ".join(map(str, arguments[:1])), "args")
    workers = _json_workers(document)
    samples = list(_json_samples(path, results))
    sides = [each.get(side) for each in results for side in ("in_place", "out_of_place")]
    told = [(side.get("alg_bw"), side.get("bus_bw")) for side in sides if isinstance(side, dict)]
    _require_factor(path, workers, told)
    return cost_log(path, _TOOL, samples, workers)


def _json_samples(path: str | Path, results: list[Any]) -> Iterator[tuple[float, float]]:
    for place, result in enumerate(results):
        position = f"results[{place}]"
        if not isinstance(result, dict):
            raise FormatError(path, "expected an object", position)
        if result.get("redop") in (None, "none"):
            raise FormatError(path, "no reduction (redop): not an all-reduce", position)
        size = whole_number(result.get("size"), path, "size", position)
        sides = [result.get(side) for side in ("in_place", "out_of_place")]
        if any(isinstance(side, dict) and "cpu_time" in side for side in sides):
            raise FormatError(path, "only the host's time was measured (was it run with -C?)", position)
        told = [(side.get("time"), side.get("alg_bw")) for side in sides if isinstance(side, dict)]
        if sample := _preferred(path, size, told, position):
            yield sample


def _json_workers(document: dict[str, Any]) -> int | None:
    config = document.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(devices, list):
        return None
    ranks = {str(each.get("rank")): str(each.get("group")) for each in devices if isinstance(each, dict)}
    if not ranks:
        return None
    # Of each process nccl-tests lists the first device only; built without MPI, it lists one process.
    each = [whole_or_none(config.get(field)) or 1 for field in ("nthreads", "ngpus")]
    workers = _of_one_group(list(ranks.values())) * math.prod(each)
    return workers if workers > 1 else None
