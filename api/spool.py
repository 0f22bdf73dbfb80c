"""Receives bodies: small ones in memory, large ones in a file, hashed while they arrive."""

import contextlib
import errno
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from pace.api.errors import SpoolFull

IN_MEMORY_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivedBody:
    """A whole body.

    Attributes
    ----------
    content
        The bytes, or the file that holds them; the owner of the body deletes it.
    """

    content: bytes | Path
    size_bytes: int
    sha256: bytes

    @classmethod
    def of(cls, content: bytes) -> "ArrivedBody":
        """Return a body in memory."""
        return cls(content=content, size_bytes=len(content), sha256=hashlib.sha256(content).digest())

    def delete(self) -> None:
        """Delete the file, if there is one."""
        if isinstance(self.content, Path):
            with contextlib.suppress(FileNotFoundError):
                self.content.unlink()


class BodySpool:
    """Collects the pieces of a body; deletes it at the end unless ``take`` was called.

    Parameters
    ----------
    folder
        Folder for bodies of more than 1 MiB; empty for the system's temporary folder.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder or None
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._size_bytes = 0
        self._sha256 = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file.name)

    def write(self, piece: bytes) -> None:
        """Add a piece.

        Raises
        ------
        SpoolFull
            If the disk has no room for it, or its folder is gone or read-only.
        """
        self._sha256.update(piece)
        self._size_bytes += len(piece)
        try:
            if self._file is None and self._size_bytes > IN_MEMORY_BYTES:
                # Unbuffered, so that a full disk shows at once.
                self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115  (outlives this call)
                    dir=self._folder, prefix="pace-body-", delete=False, buffering=0
                )
                for earlier in self._pieces:
                    self._put(earlier)
                self._pieces.clear()
            if self._file is None:
                self._pieces.append(piece)
            else:
                self._put(piece)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise SpoolFull("the service's disk has no room for this body; try again later") from None
            detail = f"the service cannot write this body to its disk ({error.strerror}); tell its operator"
            raise SpoolFull(detail) from None

    def _put(self, piece: bytes) -> None:
        assert self._file is not None
        left = memoryview(piece)
        while left:
            left = left[self._file.write(left) :]

    def take(self) -> ArrivedBody:
        """Return the body; the caller must delete its file."""
        content: bytes | Path
        if self._file is None:
            content = b"".join(self._pieces)
        else:
            content = Path(self._file.name)
            self._file.close()
            self._file = None
        return ArrivedBody(content=content, size_bytes=self._size_bytes, sha256=self._sha256.digest())
