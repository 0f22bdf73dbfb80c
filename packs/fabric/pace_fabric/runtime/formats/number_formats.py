"""Rows of numbers as bytes: float32, float16, bfloat16, and 8 bits with a scale for every block.

A row as ``int8`` is, little-endian: how many numbers lie in the first block (u32, blocks after it have
`BLOCK_NUMBERS`), the scale of every block (float32), and the numbers (int8). A number is its int8 times the
scale of its block.
"""

import numpy as np
from numpy.typing import NDArray

from pace.errors import InvalidUse
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.update_records import NumberFormat

BLOCK_NUMBERS = 1024
# Bytes as they are made here, or as they arrived.
Data = bytearray | memoryview

_HEAD_BYTES = 4
_HEAD, _SCALE = np.dtype("<u4"), np.dtype("<f4")
_WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2}
_MOST_INT8 = 127
# 127 times a larger one is beyond float32.
_MOST_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(_MOST_INT8), np.float32(0))


def encoded_bytes(numbers: int, form: NumberFormat) -> int:
    """Return how large a row of so many numbers is."""
    if form == "int8":
        return _HEAD_BYTES + 4 * -(-numbers // BLOCK_NUMBERS) + numbers
    return _WIDTH[form] * numbers


def encode(row: Vector, form: NumberFormat) -> bytearray:
    """Return a row of finite float32 as bytes; numbers are rounded to the nearest.

    Raises
    ------
    InvalidUse
        When a number is beyond the format.
    """
    match form:
        case "float32":
            return bytearray(row.tobytes())
        case "float16":
            with np.errstate(over="ignore"):
                narrow = row.astype("<f2")
            if not np.isfinite(narrow).all():
                most = np.abs(row).max()
                raise InvalidUse(f"a number of {most:g} is beyond float16 (65504): use bfloat16")
            return bytearray(narrow.tobytes())
        case "bfloat16":
            bits = row.view(np.uint32)
            # To the nearest, and to the even one of two that are equally near.
            rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
            if not np.isfinite(_of_bfloat16(rounded)).all():
                raise InvalidUse(f"a number of {np.abs(row).max():g} is beyond bfloat16: use float32")
            return bytearray(rounded.tobytes())
        case "int8":
            return _to_int8(row)


def decode(data: bytes | Data, form: NumberFormat) -> Vector:
    """Return bytes as a row of float32; those of float32 are not copied.

    Raises
    ------
    InvalidUse
        When they are no such row.
    """
    match form:
        case "int8":
            lead, scales, numbers = _parts_of_int8(data)
            lengths = _block_lengths(len(numbers), lead)
            return numbers.astype(np.float32) * np.repeat(scales, lengths)
        case _ if len(data) % _WIDTH[form]:
            raise InvalidUse(f"{len(data):,} bytes are no row of {form}")
        case "float16":
            return np.frombuffer(data, dtype="<f2").astype(np.float32)
        case "bfloat16":
            return _of_bfloat16(np.frombuffer(data, dtype="<u2"))
        case _:
            return np.frombuffer(data, dtype=np.float32)


def count(data: bytes | Data, form: NumberFormat) -> int:
    """Return how many numbers a row has; raises InvalidUse when it is none."""
    if form == "int8":
        return len(_parts_of_int8(data)[2])
    if len(data) % _WIDTH[form]:
        raise InvalidUse(f"{len(data):,} bytes are no row of {form}")
    return len(data) // _WIDTH[form]


def cut(data: Data, form: NumberFormat, first: int, last: int) -> Data:
    """Return the bytes of numbers `first` to `last`, which keep their values to the bit."""
    if form != "int8":
        return data[_WIDTH[form] * first : _WIDTH[form] * last]
    lead, scales, numbers = _parts_of_int8(data)
    if first >= last:
        return _join_int8(BLOCK_NUMBERS, scales[:0], numbers[:0])
    begin = _block_of(first, lead)
    ends = lead + begin * BLOCK_NUMBERS  # where that block ends
    return _join_int8(ends - first, scales[begin : _block_of(last - 1, lead) + 1], numbers[first:last])


def _of_bfloat16(narrow: NDArray[np.uint16]) -> Vector:
    return (narrow.astype(np.uint32) << 16).view(np.float32)


def _to_int8(row: Vector) -> bytearray:
    blocks = -(-len(row) // BLOCK_NUMBERS)
    padded = np.zeros(blocks * BLOCK_NUMBERS, dtype=np.float32)
    padded[: len(row)] = row
    table = padded.reshape(blocks, BLOCK_NUMBERS)
    scales = np.abs(table).max(axis=1) / np.float32(_MOST_INT8) if blocks else np.zeros(0, np.float32)
    scales = np.where(scales > _MOST_SCALE, np.nextafter(scales, np.float32(0)), scales)
    # A block of denormal numbers has no scale that divides them: they become 0.
    divisors = np.where(scales >= np.finfo(np.float32).tiny, scales, np.float32(np.inf))
    numbers = np.rint(table / divisors[:, None]).astype(np.int8).reshape(-1)[: len(row)]
    return _join_int8(BLOCK_NUMBERS, scales, numbers)


def _join_int8(lead: int, scales: Vector, numbers: NDArray[np.int8]) -> bytearray:
    head = np.array([lead], dtype=_HEAD)
    return bytearray(head.tobytes() + scales.astype(_SCALE).tobytes() + numbers.tobytes())


def _parts_of_int8(data: bytes | Data) -> tuple[int, Vector, NDArray[np.int8]]:
    """Return the length of the first block, scales and numbers."""
    if len(data) < _HEAD_BYTES:
        raise InvalidUse(f"{len(data)} bytes are no row of int8")
    lead = int(np.frombuffer(data, _HEAD, 1)[0])
    rest = len(data) - _HEAD_BYTES
    # Blocks b and numbers n with 4 b + n = rest, and n - lead between (b - 2) and (b - 1) whole blocks.
    blocks = max(-(-(rest - lead - 4) // (BLOCK_NUMBERS + 4)) + 1, 1) if rest else 0
    numbers = rest - 4 * blocks
    if not 1 <= lead <= BLOCK_NUMBERS or len(_block_lengths(numbers, lead)) != blocks or numbers < 0:
        raise InvalidUse(f"{len(data):,} bytes are no row of int8")
    scales = np.frombuffer(data, _SCALE, blocks, _HEAD_BYTES).astype(np.float32)
    if not (np.abs(scales) <= _MOST_SCALE).all():
        raise InvalidUse("a row of int8 with a scale that is not finite, or beyond float32")
    return lead, scales, np.frombuffer(data, np.int8, numbers, _HEAD_BYTES + 4 * blocks)


def _block_of(place: int, lead: int) -> int:
    return 0 if place < lead else 1 + (place - lead) // BLOCK_NUMBERS


def _block_lengths(numbers: int, lead: int) -> NDArray[np.int64]:
    if numbers <= 0:
        return np.zeros(0, dtype=np.int64)
    ends = np.arange(lead, numbers + BLOCK_NUMBERS, BLOCK_NUMBERS, dtype=np.int64)
    ends = ends[: int(np.searchsorted(ends, numbers)) + 1]
    return np.diff(np.minimum(ends, numbers), prepend=0)
