"""Unpacks received files within a limit of bytes: gzip, and archives (tar, zip) of several files."""

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pace.api.errors import ContentTooLarge, InvalidFile, InvalidRequest
from pace.errors import PaceError
from pace.formats.recognize import SNIFFED_BYTES
from pace.gzipped import GZIP_MAGIC, GzipFault, GzipTooLarge, gunzipped

_TAR_MAGIC_AT = 257
_PIECE_BYTES = 1 << 20
# More files than any job has ranks; what they may hold in all is bounded in bytes.
_MOST_FILES = 10_000
# With folders, and what operating systems add to each file.
_MOST_ENTRIES = 4 * _MOST_FILES
_LONGEST_NAME = 200
_DEEPEST_GZIP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedFile:
    """A file of those that were sent.

    Attributes
    ----------
    name
        Name that the sender gave, for messages.
    path
        Path of the file; the sender cannot choose its folder.
    """

    name: str
    path: Path

    def head(self) -> bytes:
        """Return its first bytes."""
        with self.path.open("rb") as opened:
            return opened.read(SNIFFED_BYTES)


class _Room:
    """Counts the bytes that may still be unpacked."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left = max_bytes

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ContentTooLarge(f"the file is larger than {self._max_bytes} bytes once decompressed")


def unpack(
    content: bytes, filename: str, folder: Path, max_bytes: int, *, gzipped: bool
) -> list[UnpackedFile]:
    """Write received data to a folder: one file, or the files of an archive by their names.

    Parameters
    ----------
    gzipped
        Whether the body was compressed for the transfer; a ``.gz`` file is compressed once more.

    Raises
    ------
    ContentTooLarge
        If more than `max_bytes` are unpacked; every level of compression counts separately.
    InvalidRequest
        If gzip's stream is damaged or cut off.
    InvalidFile
        If an archive is damaged, empty, protected by a password or of too many files.
    """
    if gzipped:
        content = _gunzipped(content, max_bytes)
    content = _plain(content, max_bytes)
    members = _members(content)
    if members is None:
        return [_written(folder, 0, filename, content)]
    found: list[UnpackedFile] = []
    for name, inside in _unarchived(members, filename, max_bytes):
        if len(found) == _MOST_FILES:
            raise InvalidFile(f"{filename}: the archive holds more than {_MOST_FILES} files")
        found.append(_written(folder, len(found), name, inside))
    if not found:
        raise InvalidFile(f"{filename}: the archive holds no file")
    # Whatever the order in which they were packed or dropped, the profile is the same.
    return sorted(found, key=lambda each: _natural(each.name))


def _plain(content: bytes, max_bytes: int) -> bytes:
    for _ in range(_DEEPEST_GZIP):
        if not content.startswith(GZIP_MAGIC):
            break
        content = _gunzipped(content, max_bytes)
    return content


def _gunzipped(content: bytes, max_bytes: int) -> bytes:
    try:
        return gunzipped(content, max_bytes)
    except GzipTooLarge as fault:
        raise ContentTooLarge(f"the file is {fault}") from None
    except GzipFault as fault:
        raise InvalidRequest(f"the file cannot be unpacked: {fault}") from None


def _unarchived(
    members: Iterator[tuple[str, IO[bytes]]], filename: str, max_bytes: int
) -> Iterator[tuple[str, bytes]]:
    """Yield the files that the sender put into an archive."""
    room = _Room(max_bytes)
    try:
        for given, stream in members:
            name = given.encode("utf-8", "replace").decode()[-_LONGEST_NAME:]
            if not _is_litter(name):
                yield name, _member(stream, room, max_bytes)
    except (PaceError, MemoryError):
        raise
    except RuntimeError as error:  # zipfile's way to refuse passwords and rare methods
        raise InvalidFile(f"{filename}: {error}") from None
    except Exception as error:
        # Damage comes out of the libraries as errors of every kind; nothing else is read here.
        raise InvalidFile(f"{filename}: the archive is damaged: {error or type(error).__name__}") from None


def _members(content: bytes) -> Iterator[tuple[str, IO[bytes]]] | None:
    """Return names and contents of an archive's files; None if this is none."""
    if content[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        return _tar_members(content)
    # Empty archives begin with the end of their table.
    if content[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _zip_members(content)
    return None


def _tar_members(content: bytes) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            opened = archive.extractfile(member) if member.isfile() else None
            if opened is not None:
                with closing(opened):
                    yield member.name, opened


def _zip_members(content: bytes) -> Iterator[tuple[str, IO[bytes]]]:
    # Counted before the library makes an object of each: an entry of a table is 46 bytes.
    if content.count(b"PK\x01\x02") > _MOST_ENTRIES:
        raise InvalidFile(f"the archive's table has more than {_MOST_ENTRIES} entries")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            if not member.filename.endswith("/"):
                with archive.open(member) as opened:
                    yield member.filename, opened


def _member(stream: IO[bytes], room: _Room, max_bytes: int) -> bytes:
    pieces = []
    while piece := stream.read(_PIECE_BYTES):
        room.take(len(piece))
        pieces.append(piece)
    content = b"".join(pieces)
    plain = _plain(content, max_bytes)
    if plain is not content:
        room.take(len(plain))
    return plain


def _is_litter(name: str) -> bool:
    """Whether an operating system put this file into the archive, not the sender."""
    parts = name.replace("\\", "/").split("/")
    return "__MACOSX" in parts or parts[-1].startswith(".") or not parts[-1]


def _written(folder: Path, number: int, name: str, content: bytes) -> UnpackedFile:
    safe = re.sub(r"[^\w.() -]", "_", Path(name.replace("\\", "/")).name).lstrip(".")[-100:]
    place = folder / str(number)
    place.mkdir()
    path = place / (safe.removesuffix(".gz") or "file")
    path.write_bytes(content)
    return UnpackedFile(name=name, path=path)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort rank 10 after rank 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
