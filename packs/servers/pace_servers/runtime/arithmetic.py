"""Addition in flat memory: by NumPy, whose calls are cheap, and by torch for half precision.

NumPy converts half precision ten times as slowly as torch, and has no bfloat16.
"""

from typing import Any

import numpy as np
import torch

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ITEM_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}

# Below this, torch starts no threads: each receiving thread would have as many as the machine has cores.
_MOST_ELEMENTS = 16_384


class Flat:
    """A range of memory as numbers.

    Parameters
    ----------
    memory
        Writable memory of whole elements.
    dtype
        A key of ``ITEM_BYTES``.

    Attributes
    ----------
    wide
        Whether sums of such numbers are held in float32.
    """

    __slots__ = ("_array", "_halves", "_item_bytes", "dtype", "memory", "wide")

    def __init__(self, memory: memoryview, dtype: str) -> None:
        self.memory = memory
        self.dtype = dtype
        self.wide = dtype in HALVES
        self._item_bytes = ITEM_BYTES[dtype]
        self._halves: torch.Tensor | None = None
        self._array: Any = None
        if self.wide:
            self._halves = torch.frombuffer(memory, dtype=HALVES[dtype])
        else:
            self._array = np.frombuffer(memory, dtype=dtype)

    @classmethod
    def zeros(cls, size_bytes: int, dtype: str) -> "Flat":
        """Return new memory of zeros; the system allocates it when it is first written."""
        array: Any = np.zeros(size_bytes, dtype=np.uint8)
        return cls(memoryview(array), dtype)

    def copy(self, values: "Flat", start: int, stop: int, at: int = 0) -> None:
        """Overwrite bytes `start` to `stop` with those of `values` from `at` on.

        Parameters
        ----------
        start, stop
            Bytes of this memory.
        at
            Byte of `values`, which may have another dtype.
        """
        self._combine(values, start, stop, at, add=False)

    def add(self, values: "Flat", start: int, stop: int, at: int = 0) -> None:
        """Add; see ``copy``."""
        self._combine(values, start, stop, at, add=True)

    def fill(self, value: float, start: int, stop: int) -> None:
        """Overwrite bytes `start` to `stop` with a number."""
        where = slice(start // self._item_bytes, stop // self._item_bytes)
        (self._array if self._halves is None else self._halves)[where] = value

    def put_at(self, places: Any, values: Any) -> None:
        """Overwrite elements; no place may occur twice. Not for half precision."""
        self._array[places] = values

    def add_at(self, places: Any, values: Any) -> None:
        """Add to elements; no place may occur twice. Not for half precision."""
        self._array[places] += values

    def values_at(self, places: Any) -> Any:
        """Return a copy of elements. Not for half precision."""
        return self._array[places]

    @property
    def neutral(self) -> float:
        """The number that changes no bit when it is added: -0.0, as 0.0 would change -0.0 to 0.0."""
        return 0 if self._array is not None and self._array.dtype.kind != "f" else -0.0

    def _combine(self, values: "Flat", start: int, stop: int, at: int, *, add: bool) -> None:
        first, last, other = (
            start // self._item_bytes,
            stop // self._item_bytes,
            at // values._item_bytes,
        )
        if self._array is not None and values._array is not None:
            into, more = self._array[first:last], values._array[other : other + last - first]
            if add:
                into += more
            else:
                into[:] = more
            return
        mine, theirs = self._tensor(), values._tensor()
        for position in range(first, last, _MOST_ELEMENTS):
            end = min(position + _MOST_ELEMENTS, last)
            more = theirs[other + position - first : other + end - first]
            if add:
                mine[position:end].add_(more)
            else:
                mine[position:end].copy_(more)

    def _tensor(self) -> torch.Tensor:
        if self._halves is None:
            self._halves = torch.from_numpy(self._array)
        return self._halves
