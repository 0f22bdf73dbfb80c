"""What a log says about the cost of an all-reduce, whatever tool wrote it: without NCCL's own messages."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pace.errors import FormatError

ALL_REDUCE = "all_reduce"
CUT_ROW = "other text cut a row in two: take that text out, or run again with NCCL_DEBUG_FILE set"
# In bytes/s, of large messages: 10 Mbit/s and 20 TB/s.
_SLOWEST, _FASTEST = 1.25e6, 2e13
_LARGE_BYTES = 1 << 16
# mpirun --tag-output writes [1,0]<stdout>:, srun --label writes 0:
_RANK_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<\w+>:?|\d+:)\s?")
_DEVICE_HOST = re.compile(r"^#?\s*Rank\s+\d+\s.*\son\s+(\S+)\s+device\s")
_MESSAGE = re.compile(
    r"(?:\[[^\[\]]*\] *|(?<![\w.-]))(?P<host>[\w.-]+):\d+:\d+ (?:\S+ )*?NCCL [A-Z]{4,5}\b|NCCL version \d"
)
_NAMED_HOST = re.compile(r"([\w.-]+):\d+:\d+ .*NCCL ")
_NUMBER = re.compile(r"-?\d*\.?\d*(?:e[-+]\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLog:
    """Measured all-reduces.

    Attributes
    ----------
    samples
        (bytes, seconds) pairs in the log's order, at least one; sizes above 0.
    workers
        How many took part, or None where the log does not say.
    """

    path: str
    tool: str
    samples: tuple[tuple[float, float], ...]
    workers: int | None


def cost_log(
    path: str | Path, tool: str, samples: Sequence[tuple[float, float]], workers: int | None
) -> CostLog:
    """Make a log of what was read: empty messages are left out, and nothing left is an error."""
    kept = tuple((size, seconds) for size, seconds in samples if size > 0)
    if not kept:
        raise FormatError(path, f"no all-reduce measurements found in what looks like {tool} output")
    if all(seconds == 0 for _, seconds in kept):
        raise FormatError(path, "every measured time is 0")
    _require_possible(path, kept)
    return CostLog(path=str(path), tool=tool, samples=kept, workers=workers)


def _require_possible(path: str | Path, samples: Sequence[tuple[float, float]]) -> None:
    """Refuse a log whose large all-reduces are all slower, or all faster, than networks are."""
    large = [sample for sample in samples if sample[0] >= _LARGE_BYTES]
    if not large:
        return
    if all(size <= seconds * _SLOWEST for size, seconds in large):
        limit = "slower than 10 Mbit/s"
    elif all(size > seconds * _FASTEST for size, seconds in large):
        limit = "faster than 20 TB/s"
    else:
        return
    size, seconds = max(large)
    reason = f"{size:,.0f} bytes would take {seconds:.3g} s, and all large all-reduces are {limit}"
    raise FormatError(path, f"{reason}: check which columns are sizes and times, and their units")


def lines_without_messages(path: str | Path, text: str, row: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and lines, without labels of ranks and messages of NCCL_DEBUG.

    Tools print a row in pieces, and NCCL writes between them: the parts of a row are joined again.

    Parameters
    ----------
    row
        How a row begins. A row that follows a message on the same line is kept.

    Raises
    ------
    FormatError
        If digits before a message are part of a row or of a host's name, and nothing tells which.
    """
    lines = [_RANK_PREFIX.sub("", line) for line in text.splitlines()]
    named = [found[1] for line in lines if (found := _NAMED_HOST.match(line))]
    # What a number was glued to does not come twice.
    hosts = {host for host, count in Counter(named).items() if host[0].isalpha() or count > 1}
    hosts |= {found[1] for line in lines if (found := _DEVICE_HOST.match(line))}
    begun, begun_at = "", 0
    for number, whole in enumerate(lines, start=1):
        line = whole
        while (message := _MESSAGE.search(line) if "NCCL" in line else None) is not None:
            glued = _glued(message, hosts)
            if glued is None:
                raise FormatError(path, CUT_ROW, f"line {number}")
            before = line[: message.start()] + glued
            if begun or row.search(before) or before.lstrip()[:1].isdigit():
                begun, begun_at = begun + before, begun_at or number
            after = row.search(line, message.end())
            if after is None:
                break
            if begun:
                yield begun_at, begun
                begun, begun_at = "", 0
            line = line[after.start() :]
        else:
            yield begun_at or number, begun + line
            begun, begun_at = "", 0
    if begun:
        yield begun_at, begun


def _glued(message: re.Match[str], hosts: set[str]) -> str | None:
    """Return the end of a cell to which the name of a message's host is glued; None if that is not sure."""
    word = message["host"]
    if word is None or message.start("host") > message.start():
        return ""
    known = [host for host in hosts if word.endswith(host)]
    if known:
        return word.removesuffix(max(known, key=len))
    number = _NUMBER.match(word)
    if number is None or not number[0]:
        return ""
    return number[0] if message.string[: message.start()].strip() else None


def only_all_reduces(
    lines: Iterable[tuple[int, str]], collective_of: Callable[[str], str | None]
) -> list[tuple[int, str]]:
    """Leave out what a log has of other collectives, if it has all-reduces as well.

    Parameters
    ----------
    collective_of
        The collective that a line announces, `ALL_REDUCE` for an all-reduce; None for all other lines.
    """
    kept, others = [], []
    found, inside = False, True
    for line in lines:
        announced = collective_of(line[1])
        if announced is not None:
            inside = announced == ALL_REDUCE
            found |= inside
        others.append(line)
        if inside:
            kept.append(line)
    return kept if found else others
