"""Files of other tools, opened one way: gzip is seen through, faults are named with their position.

JSON is streamed item by item, because traces are larger than memory would hold as objects.
"""

import csv
import gzip
import itertools
import math
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from pydantic import ValidationError

from pace.counted import counted
from pace.documents.base import IS_UTF16, LIMIT, TOO_DEEP, UTF8_MARK, UTF16_MARKS, explain
from pace.errors import FormatError, InvalidProfile, InvalidSteps

_GZIP_MAGIC = b"\x1f\x8b"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
_CHUNK_BYTES = 1 << 20
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
MOST_LEVELS = 1000
# What version control keeps instead of a large file, and what it is called.
_POINTERS = {b"version https://git-lfs.": "Git LFS", b"/annex/objects/": "git-annex"}


class FormatWarning(UserWarning):
    """Something in a file was left out or taken as less than it claims; the import went on."""


def warn(path: object, message: str) -> None:
    """Warn about a file that was accepted all the same."""
    warnings.warn(f"{path}: {message}", FormatWarning, stacklevel=2)


def warn_of_workers(path: object, costed: int, workers: int) -> None:
    """Warn that a cost is used for another number of workers than it is of."""
    warn(
        path,
        f"the cost is of all-reduces among {counted(costed, 'worker')}, and may be higher among "
        f"{workers}: give it "
        "(--cost, or --bandwidth-gbps and --latency-s)",
    )


@contextmanager
def open_binary(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that may be gzipped, whatever its name; damage becomes a FormatError."""
    with open(path, "rb") as raw:
        head = raw.read(max(map(len, _POINTERS)))
        raw.seek(0)
        for mark, tool in _POINTERS.items():
            if head.startswith(mark):
                raise FormatError(path, f"this is a pointer of {tool} to a large file: fetch that file")
        try:
            if head.startswith(_GZIP_MAGIC):
                with gzip.open(raw) as unpacked:
                    yield cast("IO[bytes]", unpacked)
            else:
                yield raw
        except _DAMAGED as error:
            raise FormatError(path, f"the gzip stream is damaged or cut off: {error}") from None


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and lines without their ends; bytes that are no UTF-8 are replaced."""
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            bare = line.removeprefix(UTF8_MARK) if number == 1 else line
            yield number, bare.decode("utf-8", errors="replace").rstrip("\r\n")


def read_text(path: str | Path) -> str:
    """Return a whole small file."""
    with open_binary(path) as file:
        content = file.read()
    refuse_utf16(content, path)
    return content.removeprefix(UTF8_MARK).decode("utf-8", errors="replace")


def refuse_utf16(head: bytes, path: str | Path) -> None:
    """Refuse a text in UTF-16, as some spreadsheets write, by its first bytes; raises FormatError."""
    if head.startswith(UTF16_MARKS):
        raise FormatError(path, IS_UTF16)


DELIMITERS = ",;\t"


def read_table(path: str | Path) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV table that are not empty, each with its line's number.

    The delimiter is the most frequent of comma, semicolon and tab in the first line that is no comment.

    Raises
    ------
    FormatError
        If there is no row, or quotes do not end.
    """
    lines = read_text(path).splitlines()
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    reader = csv.reader(lines, strict=True, delimiter=max(DELIMITERS, key=first.count))
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise FormatError(path, f"not a CSV table: {error}", f"line {reader.line_num}") from None
    rows = [(line, row) for line, row in rows if any(row)]
    if not rows:
        raise FormatError(path, "the table is empty")
    return rows


class _Counted:
    """A reader that knows how far it has come, for error messages, and refuses what is nested too deep.

    The parser keeps the whole path of each level, so its memory is quadratic in the depth.
    """

    def __init__(self, path: str | Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._escape = b""
        self._in_string = False
        self._depth = 0
        self.position = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        begins = not self.position
        self.position += len(data)
        if begins:
            refuse_utf16(data, self._path)
        self._refuse_deep(data)
        return data.removeprefix(UTF8_MARK) if begins else data

    def _refuse_deep(self, data: bytes) -> None:
        text = self._escape + data
        if b"\\" in text:
            text = _ESCAPED.sub(b"", text)
        self._escape = b"\\" if text.endswith(b"\\") else b""
        parts = text.split(b'"')
        outside = np.frombuffer(b"".join(parts[self._in_string :: 2]), dtype=np.uint8)
        self._in_string ^= len(parts) % 2 == 0
        # Bits apart from this one, both kinds of brackets are the same.
        brackets = outside | 0x20
        levels = np.cumsum((brackets == ord("{")).astype(np.int64) - (brackets == ord("}")))
        if self._depth + levels.max(initial=0) > MOST_LEVELS:
            raise FormatError(self._path, TOO_DEEP)
        self._depth += int(levels[-1]) if len(levels) else 0


def stream_json(path: str | Path, prefix: str, *, cut_off_ok: bool = False) -> Iterator[Any]:
    """Yield the items under an ijson prefix, one at a time.

    With `cut_off_ok`, a document that ends too early ends the items with a FormatWarning.
    """
    num_items = 0
    try:
        for item in _stream_items(path, prefix, cut_off_ok=cut_off_ok, exact=False):
            num_items += 1
            yield item
    except _LargeNumber:
        # The fast parser takes no integers above 2^63; the exact one takes all.
        rest = _stream_items(path, prefix, cut_off_ok=cut_off_ok, exact=True)
        yield from map(_with_floats, itertools.islice(rest, num_items, None))


class _LargeNumber(Exception):
    """An integer that the fast parser cannot hold."""


def _stream_items(path: str | Path, prefix: str, *, cut_off_ok: bool, exact: bool) -> Iterator[Any]:
    import ijson  # only importers of JSON need it

    with open_binary(path) as file:
        counted = _Counted(path, file)
        try:
            yield from ijson.items(counted, prefix, use_float=not exact)
        except ijson.IncompleteJSONError as error:
            if not exact and "integer overflow" in str(error):
                raise _LargeNumber from None
            if not cut_off_ok or not _ends_early(error):
                raise _json_fault(path, error, counted.position) from None
            warn(path, "the document is cut off; what is there was read")
        except _DAMAGED as error:
            if not cut_off_ok:
                raise FormatError(path, f"the gzip stream is damaged or cut off: {error}") from None
            warn(path, "the gzip stream is cut off; what is there was read")
        except FormatError:
            raise
        except (ijson.JSONError, UnicodeDecodeError, ValueError, OverflowError) as error:
            raise _json_fault(path, error, counted.position) from None


def _with_floats(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_floats(item) for key, item in value.items()}
    return value


def read_json_before(path: str | Path, key: str) -> dict[str, Any]:
    """Return the top-level fields of a JSON object that come before `key`, which may be huge."""
    import ijson

    with open_binary(path) as file:
        counted = _Counted(path, file)
        fields: dict[str, Any] = {}
        try:
            events = ijson.parse(counted)
            for _, event, value in events:
                if event == "map_key":
                    if value == key:
                        break
                    fields[value] = _with_floats(_build_value(events, ijson))
        except FormatError:
            raise
        except (ijson.JSONError, UnicodeDecodeError, ValueError, OverflowError) as error:
            raise _json_fault(path, error, counted.position) from None
        return fields


def read_json_field(path: str | Path, key: str) -> Any:
    """Return one top-level field of a JSON object, wherever it stands; None if there is none."""
    if not _mentions(path, f'"{key}"'.encode()):
        return None
    return next(stream_json(path, key), None)


def _mentions(path: str | Path, word: bytes) -> bool:
    end = b""
    with open_binary(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            if word in end + chunk:
                return True
            end = chunk[-len(word) :]
    return False


def first_character(path: str | Path) -> bytes:
    """Return the first byte of a file that is no white space; nothing of an empty file."""
    with open_binary(path) as file:
        return file.read(_CHUNK_BYTES).removeprefix(UTF8_MARK).lstrip()[:1]


def _build_value(events: Iterator[tuple[str, str, Any]], ijson: Any) -> Any:
    builder = ijson.ObjectBuilder()
    depth = 0
    for _, event, value in events:
        builder.event(event, value)
        depth += event in ("start_map", "start_array")
        depth -= event in ("end_map", "end_array")
        if not depth:
            break
    return builder.value


def _ends_early(error: Exception) -> bool:
    # ijson raises the same error for faults in the text; its backends word this one differently.
    return any(words in str(error).lower() for words in ("premature eof", "incomplete "))


def _json_fault(path: str | Path, error: Exception, position: int) -> FormatError:
    said = error.args[0] if error.args else ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)  # bytes are in no encoding
    if _ends_early(error):
        return FormatError(
            path, "the file is cut off, or empty: it ends within the JSON", f"near byte {position}"
        )
    reason = next(iter(text.strip().splitlines()), type(error).__name__).strip()[:200]
    return FormatError(path, f"not the JSON that was expected: {reason}", f"near byte {position}")


def number(
    value: object, path: object, what: str, position: str | None = None, *, below: float = LIMIT
) -> float:
    """Return a number from 0 to `below`; a FormatError names `what` otherwise.

    Nothing that is measured comes near the limit: in microseconds it is 30,000 years.
    """
    try:
        parsed = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        parsed = math.nan
    if isinstance(value, bool) or not 0 <= parsed < below:
        shown = repr(value)[:80]
        raise FormatError(path, f"{what} is {shown}: expected a number from 0, below {below:g}", position)
    return parsed


def whole_or_none(value: object) -> int | None:
    """Return a value that is a whole number from 0 on, and None for any other."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def whole_number(
    value: object, path: object, what: str, position: str | None = None, *, below: float = 2.0**63
) -> int:
    """Return an integer from 0, as JSON or as text; a FormatError names `what` otherwise."""
    parsed = number(value, path, what, position, below=below)
    if parsed != int(parsed):
        raise FormatError(path, f"{what} is {value!r}: expected a whole number", position)
    return value if isinstance(value, int) else int(parsed)


@contextmanager
def validated(path: object, what: str = "profile") -> Iterator[None]:
    """Turn a document's own refusal of what was read into a FormatError for the file."""
    try:
        yield
    except ValidationError as error:
        raise FormatError(path, f"makes no valid {what}: {explain(error)}") from None
    except (InvalidProfile, InvalidSteps) as error:
        raise FormatError(path, f"makes no valid {what}: {error}") from None
