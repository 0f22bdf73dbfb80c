"""Settings of FSDP2 for one model: which modules are gathered together, and how far ahead."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Bytes, Index, JsonDocument, load, parse
from pace.documents.profile import Seconds
from pace.errors import InvalidSchedule

Few = Annotated[int, Field(ge=1, le=1000)]


class Fsdp2Settings(JsonDocument):
    """Settings that ``pace.runtime.fsdp.apply`` applies to a model.

    Attributes
    ----------
    blocks_per_unit
        Number of neighboring blocks that share one call of ``fully_shard``.
    forward_ahead, backward_ahead
        Number of units in ``set_modules_to_forward_prefetch`` and ``set_modules_to_backward_prefetch``.
    max_input_buffers
        Number of buffers in ``set_reduce_scatter_max_input_buffers``.
    separate_reduce_scatter_group
        Whether reduce-scatters have a separate process group.
    reshard_after_forward
        Whether blocks are freed after the forward pass.
    kept_units
        Numbers, in forward order, of units that are not freed after the forward pass although others are.
    forward_s, backward_s
        Predicted times of the passes that were planned.
    lower_bound_s
        Bound on the time of both passes together, in seconds: no plan within the memory is faster.
    peak_bytes
        Predicted peak memory of these passes, in bytes.
    """

    refused_as = InvalidSchedule

    schema_version: Literal[1] = 1
    blocks_per_unit: Few = 1
    forward_ahead: Few = 1
    backward_ahead: Few = 1
    max_input_buffers: Few = 1
    separate_reduce_scatter_group: bool = False
    reshard_after_forward: bool = True
    kept_units: Annotated[tuple[Index, ...], Field(exclude_if=lambda units: not units)] = ()
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    lower_bound_s: Annotated[Seconds | None, Field(exclude_if=lambda bound: bound is None)] = None
    peak_bytes: Bytes | None = None

    @model_validator(mode="after")
    def _keeps_some_units(self) -> Self:
        if self.kept_units and not self.reshard_after_forward:
            raise ValueError("kept_units are for reshard_after_forward=True: without it, all units are kept")
        if any(one >= other for one, other in pairwise(self.kept_units)):
            raise ValueError(f"kept_units {list(self.kept_units)} are not in order, each once")
        return self


def parse_fsdp2_settings(document: bytes | str) -> Fsdp2Settings:
    """Read settings from JSON; raises InvalidSchedule with one line per fault."""
    return parse(Fsdp2Settings, document)


def load_fsdp2_settings(path: str | Path) -> Fsdp2Settings:
    """Read settings from a JSON file; raises InvalidSchedule and OSError."""
    return load(parse_fsdp2_settings, path, InvalidSchedule)
