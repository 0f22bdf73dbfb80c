"""The resharding document: which shards trainers hold, which shards receivers want, and their links."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pace.documents.base import Bytes, Document, JsonDocument, load, parse, repeated
from pace.documents.cost_document import NonNegative
from pace.documents.profile import ELEMENT_BYTES, MAX_TOTAL_BYTES, MAX_TOTAL_S, DType, Name
from pace_sync.documents.weight_sync import SyncHost
from pace_sync.errors import InvalidSync

MOST_DIMENSIONS = 8
MOST_BOXES = 2000
Extent = Annotated[int, Field(gt=0, lt=2**63)]


class TensorBox(Document):
    """A rectangular part of a tensor: where it begins, and its size, by dimension."""

    refused_as = InvalidSync

    tensor: Name
    begin: Annotated[tuple[Bytes, ...], Field(max_length=MOST_DIMENSIONS)]
    shape: Annotated[tuple[Extent, ...], Field(max_length=MOST_DIMENSIONS)]

    @model_validator(mode="after")
    def _same_dimensions(self) -> Self:
        if len(self.begin) != len(self.shape):
            raise ValueError(f"begin has {len(self.begin)} dimensions, shape has {len(self.shape)}")
        return self

    @property
    def end(self) -> tuple[int, ...]:
        """Where it ends, by dimension."""
        return tuple(begin + length for begin, length in zip(self.begin, self.shape, strict=True))

    @property
    def num_elements(self) -> int:
        """How many elements it has."""
        return elements(self.shape)

    def told(self) -> str:
        """Return the box as Python would index it."""
        spans = ", ".join(f"{low}:{high}" for low, high in zip(self.begin, self.end, strict=True))
        return f"{self.tensor}[{spans}]"


class WholeTensor(Document):
    """A whole tensor of the model."""

    refused_as = InvalidSync

    name: Name
    shape: Annotated[tuple[Extent, ...], Field(max_length=MOST_DIMENSIONS)]
    dtype: DType = "bfloat16"

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements."""
        return elements(self.shape) * ELEMENT_BYTES[self.dtype]


class ShardHolder(SyncHost):
    """A trainer rank: its link, and the shards that it holds."""

    name: Name
    shards: tuple[TensorBox, ...]


class ShardReceiver(SyncHost):
    """A receiver: its link, and what it wants.

    Attributes
    ----------
    work_s_per_byte
        Seconds of work for each byte, such as a hash, a copy and a cast, while other bytes arrive.
    hop_s
        Seconds by which a byte arrives here later than at the previous host.
    """

    name: Name
    wants: tuple[TensorBox, ...]
    work_s_per_byte: NonNegative = 0.0
    hop_s: NonNegative = 0.0


class Resharding(JsonDocument):
    """Weights that go from M trainer ranks to N receivers, each with shards of its own.

    A document that was built is valid: names are unique, boxes lie inside their tensors, boxes of one host do
    not overlap, and a host has at most 2,000 boxes of a tensor. Bytes that several receivers want leave a
    sender once: each receiver forwards them to the next.
    """

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    name: Name
    tensors: Annotated[tuple[WholeTensor, ...], Field(min_length=1)]
    senders: Annotated[tuple[ShardHolder, ...], Field(min_length=1)]
    receivers: Annotated[tuple[ShardReceiver, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind, names in (
            ("tensor", self.tensors),
            ("sender", self.senders),
            ("receiver", self.receivers),
        ):
            if (twice := repeated(each.name for each in names)) is not None:
                raise ValueError(f'two {kind}s are named "{twice}"')
        shapes = {tensor.name: tensor.shape for tensor in self.tensors}
        hosts = [(f'sender "{each.name}"', each.shards) for each in self.senders]
        hosts += [(f'receiver "{each.name}"', each.wants) for each in self.receivers]
        for host, boxes in hosts:
            _refuse_outside(host, boxes, shapes)
            _refuse_overlaps(host, boxes)
        wanted = sum(self.size_bytes(box) for receiver in self.receivers for box in receiver.wants)
        if max(wanted, sum(tensor.size_bytes for tensor in self.tensors)) > MAX_TOTAL_BYTES:
            raise ValueError("tensors have more than 2^53 bytes together")
        slowest = min(host.bytes_per_s for host in (*self.senders, *self.receivers))
        work = max(receiver.work_s_per_byte for receiver in self.receivers)
        if wanted * (1 / slowest + work) > MAX_TOTAL_S:
            raise ValueError(f"the weights may take more than {MAX_TOTAL_S:g} s")
        return self

    @cached_property
    def _element_bytes(self) -> dict[str, int]:
        return {tensor.name: ELEMENT_BYTES[tensor.dtype] for tensor in self.tensors}

    def size_bytes(self, box: TensorBox) -> int:
        """Return the bytes of a box."""
        return box.num_elements * self._element_bytes[box.tensor]


def elements(shape: tuple[int, ...]) -> int:
    """Return how many elements a shape has."""
    count = 1
    for length in shape:
        count *= length
    return count


def _refuse_outside(host: str, boxes: tuple[TensorBox, ...], shapes: dict[str, tuple[int, ...]]) -> None:
    for box in boxes:
        shape = shapes.get(box.tensor)
        if shape is None:
            raise ValueError(f'{host}: there is no tensor "{box.tensor}"')
        if len(shape) != len(box.shape) or any(
            end > length for end, length in zip(box.end, shape, strict=False)
        ):
            raise ValueError(f"{host}: {box.told()} is not inside its tensor, which has shape {shape}")


def _refuse_overlaps(host: str, boxes: tuple[TensorBox, ...]) -> None:
    of_tensor: dict[str, list[TensorBox]] = {}
    for box in boxes:
        of_tensor.setdefault(box.tensor, []).append(box)
    for tensor, mine in of_tensor.items():
        if len(mine) > MOST_BOXES:
            raise ValueError(
                f'{host} has {len(mine)} boxes of tensor "{tensor}"; at most {MOST_BOXES} may be'
            )
        if len(mine) == 1:
            continue
        begins, ends = (
            np.array([getattr(box, way) for box in mine], dtype=np.int64) for way in ("begin", "end")
        )
        for place, box in enumerate(mine):
            meets = ((begins[:place] < ends[place]) & (begins[place] < ends[:place])).all(axis=1)
            if meets.any():
                raise ValueError(f"{host}: {mine[int(np.argmax(meets))].told()} and {box.told()} overlap")


def parse_resharding(document: bytes | str) -> Resharding:
    """Read a resharding document from JSON; raises InvalidSync with one line per fault."""
    return parse(Resharding, document)


def load_resharding(path: str | Path) -> Resharding:
    """Read a resharding document from a JSON file; raises InvalidSync and OSError."""
    return load(parse_resharding, path, InvalidSync)
