"""Updates as messages and logs name them, and the types of their numbers."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document

Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class HeldUpdate(Document):
    """An update that a host keeps.

    Attributes
    ----------
    version
        Of the model that it was computed from.
    norm
        Euclidean; of the update as it was pushed.
    weight
        Its share in a weighted mean; in a sum, what it is multiplied by.
    sparse
        Whether it is sent as a `SparseUpdate`.
    committed
        Whether its ticket has ended, and it is only kept for the replica.
    """

    id: Text
    version: Count
    size_bytes: Count
    norm: Amount
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    kind: Literal["gradient", "pseudo-gradient", "delta", "rollouts"] = "gradient"
    sparse: bool = False
    committed: bool = False


class CommitMember(Document):
    """An update of a commit, as the log has it; the worker is the id without its number."""

    id: Text
    host: Text
    version: Count
    norm: Amount
    factor: Finite
