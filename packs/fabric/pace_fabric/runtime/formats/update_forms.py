"""What the bytes of an update are: a row in a number format, or a sparse update."""

from collections.abc import Sequence

from pace.errors import InvalidUse
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.formats.number_formats import Data, count, cut, decode
from pace_fabric.runtime.sparse_update import SparseUpdate
from pace_fabric.runtime.update_records import HeldUpdate, NumberFormat, UpdateForm


def numbers_of(data: Data, form: UpdateForm) -> int:
    """Return how many numbers the whole model has; raises InvalidUse for bytes that are no update."""
    return SparseUpdate.from_bytes(data).numbers if form == "sparse" else count(data, form)


def misfit(update: HeldUpdate, data: Data) -> str | None:
    """Return why bytes are not the update that was announced; None if they are."""
    try:
        numbers = numbers_of(data, update.form)
    except InvalidUse as error:
        return str(error)
    if (len(data), numbers) != (update.size_bytes, update.numbers):
        return f"{len(data):,} bytes came where {update.size_bytes:,} were announced"
    return None


def dense_vector(data: Data, form: UpdateForm) -> Vector:
    """Return an update as a whole row of float32."""
    return SparseUpdate.from_bytes(data).dense() if form == "sparse" else decode(data, form)


def cut_update(data: Data, form: UpdateForm, first: int, last: int) -> Data:
    """Return what lies from number `first` on, before `last`, in the same form."""
    if form == "sparse":
        return SparseUpdate.from_bytes(data).cut(first, last).to_bytes()
    return cut(data, form, first, last)


def mean_form(forms: Sequence[UpdateForm]) -> NumberFormat:
    """Return the format of the mean of a round: that of its updates, where all have one of 16 bits.

    The mean of updates of 8 bits is bfloat16: 8 bits would lose once more what members feed back.
    """
    narrow: dict[UpdateForm, NumberFormat] = {
        "float16": "float16",
        "bfloat16": "bfloat16",
        "int8": "bfloat16",
    }
    return narrow.get(forms[0], "float32") if len(set(forms)) == 1 else "float32"
