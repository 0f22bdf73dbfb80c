"""How a policy declares its knobs, so that wrong values are refused."""

from typing import Annotated, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Class = TypeVar("Class")

Bytes = Annotated[int, Field(ge=0, le=2**53)]
SomeBytes = Annotated[int, Field(ge=1, le=2**53)]
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def knobs(policy: type[Class]) -> type[Class]:
    """Make a class with annotated knobs a frozen dataclass that validates them and refuses unknown knobs."""
    make = dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
    return cast("type[Class]", make(policy))
