"""Updates in fewer bytes whose error is not lost: it is added to the next update of the same worker."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pace.errors import InvalidOptions, InvalidUse
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.formats.number_formats import decode, encode
from pace_fabric.runtime.sparse_update import SparseUpdate
from pace_fabric.runtime.update_records import NumberFormat


@dataclass(frozen=True, slots=True, eq=False)
class NarrowUpdate:
    """An update in a number format; what ``FabricClient.push`` and rounds take.

    Attributes
    ----------
    data
        The row as `form`.
    """

    numbers: int
    form: NumberFormat
    data: bytearray

    @classmethod
    def of(cls, row: NDArray[np.float32], form: NumberFormat) -> "NarrowUpdate":
        """Return a row in a format; raises InvalidUse when a number is not finite, or beyond the format."""
        flat = np.ascontiguousarray(row, dtype=np.float32).reshape(-1)
        if not np.isfinite(flat).all():
            raise InvalidUse(f"the update of {flat.size:,} numbers has some that are not finite")
        return cls(flat.size, form, encode(flat, form))

    def dense(self) -> Vector:
        """Return what a receiver makes of it."""
        return decode(self.data, self.form)


class ErrorFeedback:
    """Makes updates small, and keeps what that leaves out for the next one.

    One for each worker and model: the sum of all updates it returns is the sum of those it was given, but
    for what is left out of the last one. Memory: one row of float32.

    Parameters
    ----------
    form
        Number format of the updates.
    share
        Send only this share of the numbers, the largest, as a sparse update of float32. None sends all.

    Raises
    ------
    InvalidOptions
        When both are given, or the share is none.
    """

    def __init__(self, form: NumberFormat = "float32", *, share: float | None = None) -> None:
        if form not in ("float32", "float16", "bfloat16", "int8"):
            raise InvalidOptions(f"form is {form!r}: float32, float16, bfloat16 or int8 is needed")
        if share is not None and (form != "float32" or not 0 < share <= 1):
            raise InvalidOptions(
                f"share is {share} and form is {form}: a share from 0 to 1 is needed, and form float32"
            )
        self._form, self._share = form, share
        self._left: Vector | None = None

    @property
    def left_norm(self) -> float:
        """Norm of what the next update is to contain besides."""
        return 0.0 if self._left is None else float(np.linalg.norm(self._left.astype(np.float64)))

    def compress(self, update: NDArray[np.float32]) -> NarrowUpdate | SparseUpdate:
        """Return an update in fewer bytes; it contains what earlier ones left out.

        Raises
        ------
        InvalidUse
            When it is not finite, of another size than the one before, or beyond the format. What was left
            out before is kept then.
        """
        row = np.ascontiguousarray(update, dtype=np.float32).reshape(-1)
        if self._left is not None and len(row) != len(self._left):
            raise InvalidUse(
                f"the update has {len(row):,} numbers, but the one before had {len(self._left):,}"
            )
        if not len(row) or not np.isfinite(row).all():
            raise InvalidUse(f"an update of {len(row):,} numbers; finite numbers are needed")
        whole = row.copy() if self._left is None else row + self._left
        if self._share is None:
            narrow = NarrowUpdate.of(whole, self._form)
            self._left = whole - narrow.dense()
            return narrow
        kept = max(int(np.ceil(self._share * len(whole))), 1)
        places = np.sort(np.argpartition(np.abs(whole), len(whole) - kept)[len(whole) - kept :])
        sparse = SparseUpdate.of_places(places.astype(np.int64), whole[places], len(whole))
        whole[places] = 0.0
        self._left = whole
        return sparse

    def take_back(self, update: NarrowUpdate | SparseUpdate) -> None:
        """Put an update that was not applied into the next one."""
        dense = update.dense()
        self._left = dense.copy() if self._left is None else self._left + dense
