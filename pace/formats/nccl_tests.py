"""Output of nccl-tests' all_reduce_perf: the table it prints, and the JSON that it writes with -J."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pace.documents.profile import ELEMENT_BYTES
from pace.errors import FormatError
from pace.formats.cost_log import CostLog, cost_log
from pace.formats.reading import number, read_text, whole_number
from pace.formats.tensor_types import DTYPES

_TOOL = "nccl-tests"
# mpirun --tag-output writes [1,0]<stdout>:, srun --label writes 0:
_RANK_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<\w+>:?|\d+:)\s?")
_HEADER = re.compile(r"^#\s+size\s+count\s")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d+)\s")
_PROGRAM = re.compile(r"\b(\w+)_perf\b")
_SIDE = ["time", "algbw", "busbw", "#wrong"]
_DEFAULT_COLUMNS = ["size", "count", "type", "redop", "root", *_SIDE, *_SIDE]


def read_nccl_tests(path: str | Path) -> CostLog:
    """Read the printed table or the JSON document; the times of in-place calls are preferred.

    A rank's label before each line is taken off, N/A is skipped. Several tables in one log add up.

    Raises
    ------
    FormatError
        If another collective was measured, only the host's time was, or a row cannot be read.
    """
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return _read_json(path, text)
    return _read_table(path, text.splitlines())


def _read_table(path: str | Path, lines: Iterable[str]) -> CostLog:
    columns = list(_DEFAULT_COLUMNS)
    runs: list[set[int]] = [set()]
    listed = 0
    samples: list[tuple[float, float]] = []
    for line_number, raw in enumerate(lines, start=1):
        line = _RANK_PREFIX.sub("", raw).strip()
        position = f"line {line_number}"
        if _HEADER.match(line):
            columns = line.lstrip("#").split()
            _require_all_reduce(path, columns, position)
        elif device := _DEVICE.match(line):
            if len(samples) > listed:  # another run's list of devices begins
                listed = len(samples)
                runs.append(set())
            runs[-1].add(int(device.group(1)))
        elif line.startswith("#"):
            _require_program(path, line, position)
        elif sample := _row(path, line, columns, position):
            samples.append(sample)
    counts = [len(ranks) for ranks in runs if ranks]
    if len(set(counts)) > 1:
        told = " and ".join(map(str, counts))
        raise FormatError(path, f"holds runs of {told} ranks: split it, one file for each number of ranks")
    return cost_log(path, _TOOL, samples, counts[0] if counts else None)


def _require_program(path: str | Path, text: str, position: str) -> None:
    program = _PROGRAM.search(text)
    if program and program.group(1) != "all_reduce":
        raise FormatError(path, f"measures {program.group(1)}, not all_reduce", position)


def _require_all_reduce(path: str | Path, columns: list[str], position: str) -> None:
    if "redop" not in columns:
        raise FormatError(path, "the table has no reduction (redop): not an all-reduce", position)
    if "time" not in columns:
        raise FormatError(path, "the table has no device time (was it run with -C?)", position)


def _row(path: str | Path, line: str, columns: list[str], position: str) -> tuple[float, float] | None:
    cells = line.split()
    # A job's other output stands between the rows: a row is what starts with two whole numbers and a type.
    if len(cells) < len(columns) or not (cells[0].isdigit() and cells[1].isdigit()):
        return None
    size = whole_number(cells[0], path, "size", position)
    said = dict(zip(columns, cells, strict=False))
    dtype = DTYPES.get(said.get("type", ""))
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
    times = [cells[place] for place, column in enumerate(columns) if column == "time"]
    return _preferred(path, size, reversed(times), position)


def _preferred(
    path: str | Path, size: int, times: Iterable[object], position: str
) -> tuple[float, float] | None:
    for time in times:
        if time not in (None, "N/A", "nan"):
            return size, number(time, path, "time", position) * 1e-6
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
    return cost_log(path, _TOOL, list(_json_samples(path, results)), _json_workers(document))


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
        times = [side.get("time") for side in sides if isinstance(side, dict)]
        if sample := _preferred(path, size, times, position):
            yield sample


def _json_workers(document: dict[str, Any]) -> int | None:
    config = document.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    if not isinstance(devices, list):
        return None
    ranks = {str(device.get("rank")) for device in devices if isinstance(device, dict)}
    # Built without MPI, nccl-tests lists the first device only, whatever -g said.
    return len(ranks) if len(ranks) > 1 else None
