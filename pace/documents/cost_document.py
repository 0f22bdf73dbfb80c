"""What every cost document shares: its kind, its numbers, and what may be changed of its network."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from pace.documents.base import Document
from pace.errors import InvalidProfile

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChange:
    """Changes of a network; None keeps the present value.

    Attributes
    ----------
    measured_workers
        Number of workers with which the cost was measured.
    latency_s
        Latency of one message, in seconds.
    """

    measured_workers: int
    workers: int | None = None
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None


def _kind_is_required(schema: dict[str, Any]) -> None:
    # In Python the class says which kind it is; a document has only the field.
    if "kind" in schema["properties"]:
        schema["required"] = ["kind", *schema.get("required", [])]


class CostDocument(Document):
    """Base of all costs: the field `kind` says which, and a document must have it."""

    model_config = ConfigDict(json_schema_extra=_kind_is_required)
    refused_as = InvalidProfile
