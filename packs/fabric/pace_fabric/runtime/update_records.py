"""Updates as messages and logs name them, and the types of their numbers."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document

Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
NumberFormat = Literal["float32", "float16", "bfloat16", "int8"]
UpdateForm = Literal["float32", "float16", "bfloat16", "int8", "sparse"]


def update_id(worker: str, start: str, number: int) -> str:
    """Return the id of an update: no two are the same, though a worker starts again under its name.

    Parameters
    ----------
    start
        What tells this start of the worker from all others.
    """
    return f"{worker}-{start}-{number}"


def worker_and_number(update: str) -> tuple[str, int]:
    """Return the worker of an update, and its number since the worker started, from the id."""
    worker, _, number = update.rsplit("-", 2)
    return worker, int(number)


class HeldUpdate(Document):
    """An update that a host keeps.

    Attributes
    ----------
    version
        Version of the model that it was computed from.
    numbers
        How many numbers the whole model has.
    norm
        Euclidean; of the update as it was pushed.
    weight
        Its share in a weighted mean; in a sum, what it is multiplied by.
    form
        What its bytes are: a row in a number format, or a `SparseUpdate`.
    committed
        Whether its ticket has ended, and it is only kept for the replica.
    """

    id: Text
    version: Count
    numbers: Count
    size_bytes: Count
    norm: Amount
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    kind: Literal["gradient", "pseudo-gradient", "delta", "rollouts"] = "gradient"
    form: UpdateForm = "float32"
    committed: bool = False


class CommitMember(Document):
    """An update of a commit, as the log has it; `worker_and_number` reads its id."""

    id: Text
    host: Text
    version: Count
    norm: Amount
    factor: Finite
