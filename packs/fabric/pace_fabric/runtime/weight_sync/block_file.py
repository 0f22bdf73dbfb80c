"""Weights that arrive in a file, block by block: what is in it already, by hash, is not sent again.

The blocks of weights that are not whole yet are in OUTPUT.part, which stays when the process is killed.
Those of the weights before are in OUTPUT. A block in either that has the hash of the new one is not sent.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pace.documents.base import Document, explain
from pace.errors import InvalidUse
from pace_fabric.runtime.formats.number_formats import Data
from pace_fabric.runtime.messages import BlocksCall, RelayOrder
from pace_fabric.runtime.update_records import Count, Text
from pace_fabric.runtime.weight_sync.buckets import BucketSource, WholeBytes, layout_hash

_LEAST_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 1024
_HASHING_THREADS = 4


class BlockLayout(Document):
    """Blocks of weights, and which of them a distribution carries, one a bucket.

    Attributes
    ----------
    size_bytes
        Of all weights.
    sha256
        Hash of every block.
    sent
        Numbers of the blocks that come.
    """

    size_bytes: Count
    block_bytes: Annotated[int, Field(gt=0, lt=2**53)]
    sha256: tuple[Text, ...]
    sent: tuple[Count, ...]

    def span(self, block: int) -> tuple[int, int]:
        """Return where a block begins and ends."""
        begin = block * self.block_bytes
        return begin, min(begin + self.block_bytes, self.size_bytes)


def blocks_of(data: memoryview) -> BlockLayout:
    """Return the blocks of weights, of which none is sent yet."""
    size = len(data)
    block = max(_LEAST_BLOCK_BYTES, -(-size // _MOST_BLOCKS))
    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        begins = range(0, size, block)
        hashes = threads.map(lambda b: hashlib.sha256(data[b : b + block]).hexdigest(), begins)
        return BlockLayout(size_bytes=size, block_bytes=block, sha256=tuple(hashes), sent=())


def block_source(data: memoryview, layout: BlockLayout, missing: Sequence[int]) -> BucketSource:
    """Return the blocks that are missing as buckets."""
    told = layout.model_copy(update={"sent": tuple(missing)})
    text = told.model_dump_json()
    spans = [told.span(block) for block in missing]
    return BucketSource(
        sizes=tuple(end - begin for begin, end in spans),
        parts=lambda bucket: [data[spans[bucket][0] : spans[bucket][1]]],
        layout=text,
        layout_sha256=layout_hash(text),
    )


class BlockFile:
    """A file that weights replace when they are whole.

    Parameters
    ----------
    output
        The file; OUTPUT.part beside it holds what has arrived of the next weights.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.part = output.with_name(f"{output.name}.part")
        self.newest: FileBlocks | None = None

    def missing(self, call: BlocksCall) -> tuple[int, ...]:
        """Return the numbers of the blocks that are in neither file, in the same place."""
        layout = BlockLayout(
            size_bytes=call.size_bytes, block_bytes=call.block_bytes, sha256=call.sha256, sent=()
        )
        every = range(len(layout.sha256))
        found = {number for path in (self.part, self.output) for number in _held(path, layout, every)}
        return tuple(number for number in every if number not in found)

    def taker(self, order: RelayOrder) -> "FileBlocks | WholeFile":
        """Return what takes the blocks of an order, or bytes that come without a layout.

        Raises
        ------
        InvalidUse
            When the order does not say which blocks it carries, or the file cannot be written.
        """
        if not order.layout:
            self.newest = None
            return WholeFile(self, order)
        try:
            layout = BlockLayout.model_validate_json(order.layout)
        except ValidationError as error:
            raise InvalidUse(f"the sender's weights are not blocks of a file: {explain(error)}") from None
        spans = [layout.span(block) for block in layout.sent]
        blocks = -(-layout.size_bytes // layout.block_bytes)
        if (
            len(layout.sha256) != blocks
            or any(block >= blocks for block in layout.sent)
            or tuple(end - begin for begin, end in spans) != tuple(order.sizes)
        ):
            raise InvalidUse("the weights' blocks do not fit their sizes")
        try:
            self.part.open("ab").close()
        except OSError as error:
            raise InvalidUse(f"{self.part} cannot be written: {error}") from error
        self.newest = FileBlocks(self, layout, layout_hash(order.layout))
        return self.newest


class WholeFile(WholeBytes):
    """Takes bytes that come without a layout, and writes them at the end."""

    def __init__(self, file: BlockFile, order: RelayOrder) -> None:
        super().__init__(order)
        self._file = file

    def finish(self) -> int:  # type: ignore[override]  # a file instead of bytes
        """Replace the file; return its size."""
        data = super().finish()
        self._file.part.write_bytes(data)
        os.replace(self._file.part, self._file.output)
        return len(data)


class FileBlocks:
    """Takes the blocks of one distribution; a later one to the same file ends it.

    The file is opened, cut and closed by the thread that takes blocks: an order that has only arrived must
    not touch the file of one that is being finished.
    """

    sender = ""
    whole: object | None = None

    def __init__(self, file: BlockFile, layout: BlockLayout, layout_sha256: str) -> None:
        self.layout_sha256 = layout_sha256
        self._file, self._layout = file, layout
        self._opened = -1

    def take(self, bucket: int, data: Data, _begin: int = 0, end: int | None = None) -> None:
        """Write a block once it is whole."""
        begun = self._begun()
        if end is None or end == len(data):
            _write(begun, data, self._layout.span(self._layout.sent[bucket])[0])

    def finish(self) -> int:
        """Replace the file; return its size.

        Raises
        ------
        InvalidUse
            When a block that was not sent is no longer in the files, or other weights have come.
        """
        layout, begun = self._layout, self._begun()
        here = sorted(set(range(len(layout.sha256))) - set(layout.sent))
        lacking = set(here) - set(_held(self._file.part, layout, here))
        if lacking - set(_held(self._file.output, layout, sorted(lacking))):
            raise InvalidUse(f"{self._file.output} has changed while weights came: send them again")
        for number in sorted(lacking):
            begin, end = layout.span(number)
            _write(begun, _read(self._file.output, begin, end), begin)
        os.fsync(begun)
        os.replace(self._file.part, self._file.output)
        self._close()
        return layout.size_bytes

    def keep(self) -> None:
        """Keep nothing: the file is in its place."""

    def drop(self) -> None:
        """Leave what has arrived where it is; a block may be being written, so the file is closed later."""

    def __del__(self) -> None:
        self._close()

    def _begun(self) -> int:
        if self._file.newest is not self:
            raise InvalidUse("other weights for the same file have come meanwhile")
        if self._opened < 0:
            self._opened = os.open(self._file.part, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._opened, self._layout.size_bytes)
        return self._opened

    def _close(self) -> None:
        if self._opened >= 0:
            os.close(self._opened)
            self._opened = -1


def _held(path: Path, layout: BlockLayout, numbers: Sequence[int]) -> list[int]:
    """Return which of these blocks a file has in their place."""
    if not path.is_file():
        return []

    def is_held(number: int) -> bool:
        begin, end = layout.span(number)
        block = _read(path, begin, end)
        return len(block) == end - begin and hashlib.sha256(block).hexdigest() == layout.sha256[number]

    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        return [n for n, held in zip(numbers, threads.map(is_held, numbers), strict=True) if held]


def _read(path: Path, begin: int, end: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def _write(file: int, data: bytes | Data, begin: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, begin)
        view, begin = view[written:], begin + written
