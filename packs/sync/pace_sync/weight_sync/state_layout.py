"""What a state dict is in buckets: names, types and shapes, and which bytes each bucket carries."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from pydantic import Field, ValidationError, model_validator

from pace.documents.base import Bytes, Document, explain, repeated
from pace.documents.profile import ELEMENT_BYTES
from pace.errors import InvalidUse, ScheduleMismatch
from pace_sync.documents.sync_plan import SyncPlan, layout_sha256
from pace_sync.documents.weight_sync import SyncTensor

# Without a plan, buckets have this size: large enough for a fast link, small enough to begin early.
DEFAULT_BUCKET_BYTES = 16 << 20

# A stretch of a tensor: its number, where it begins, and its bytes.
Stretch = tuple[Bytes, Bytes, Annotated[int, Field(gt=0, lt=2**63)]]


class StateTensor(Document):
    """One tensor of the sender's state dict, or a box of one.

    Attributes
    ----------
    begin, whole
        Where the box begins, and the shape of the whole tensor; by default it is the whole tensor.
    """

    name: str
    dtype: str
    shape: tuple[Bytes, ...]
    begin: tuple[Bytes, ...] | None = None
    whole: tuple[Bytes, ...] | None = None

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if (self.begin is None) != (self.whole is None):
            raise ValueError(f'tensor "{self.name}" has begin or whole, and not both')
        if self.begin is not None and self.whole is not None:
            spans = list(zip(self.begin, self.shape, self.whole, strict=False))
            same = len(self.begin) == len(self.shape) == len(self.whole)
            if not same or any(begin + length > whole for begin, length, whole in spans):
                raise ValueError(f'a box of tensor "{self.name}" is not inside it')
        return self

    @property
    def origin(self) -> tuple[int, ...]:
        """Where it begins in the whole tensor."""
        return (0,) * len(self.shape) if self.begin is None else self.begin

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self.shape if self.whole is None else self.whole

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of its elements."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise InvalidUse(f'tensor "{self.name}" has type {self.dtype}, which this PyTorch does not know')
        return found

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements."""
        elements = 1
        for length in self.shape:
            elements *= length
        return elements * self.torch_dtype.itemsize


class DeltaBase(Document):
    """The version that a delta changes: its number, and the hash of all its blocks."""

    version: Bytes
    sha256: str


class StateLayout(Document):
    """What both ends agree on before the first byte: every byte of every tensor is in one bucket.

    Attributes
    ----------
    plan_sha256, sender
        Of the reshard plan that this is a part of, and whose part; None for a whole state dict.
    base
        Of a delta, whose buckets carry only what changed.
    version_sha256, block_bytes
        Hash of all blocks of this version, and their size; None if no delta can follow.
    """

    plan_sha256: str | None = None
    sender: str = ""
    base: DeltaBase | None = None
    version_sha256: str | None = None
    block_bytes: Annotated[int, Field(gt=0)] | None = None
    tensors: tuple[StateTensor, ...]
    buckets: tuple[tuple[Stretch, ...], ...]

    @model_validator(mode="after")
    def _each_byte_once(self) -> Self:
        if (
            twice := repeated(f"{tensor.name} from {tensor.origin} on" for tensor in self.tensors)
        ) is not None:
            raise ValueError(f"tensor {twice} is there twice")
        sent: dict[int, list[tuple[int, int]]] = {}
        for bucket in self.buckets:
            for tensor, offset, size in bucket:
                sent.setdefault(tensor, []).append((offset, size))
        if any(tensor >= len(self.tensors) for tensor in sent):
            raise ValueError("a bucket carries a tensor that is not there")
        for number, each in enumerate(self.tensors):
            at = 0
            for offset, size in sorted(sent.get(number, ())):
                if offset < at or (offset > at and self.base is None):
                    raise ValueError(f'tensor "{each.name}": byte {at} is not sent once')
                at = offset + size
            if at > each.size_bytes or (at < each.size_bytes and self.base is None):
                raise ValueError(f'tensor "{each.name}": {at} of {each.size_bytes} bytes are sent')
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each bucket."""
        return tuple(sum(size for _, _, size in bucket) for bucket in self.buckets)

    @property
    def sha256(self) -> str:
        """SHA-256 of all that is here."""
        told = hashlib.sha256(f"{self.plan_sha256}\0{self.sender}\n".encode())
        told.update(f"{self.base}\0{self.version_sha256}\0{self.block_bytes}\n".encode())
        for tensor in self.tensors:
            told.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}".encode())
            told.update(f"\0{tensor.origin}\0{tensor.whole_shape}\n".encode())
        names = [tensor.name for tensor in self.tensors]
        buckets = layout_sha256(
            [(names[tensor], offset, size) for tensor, offset, size in bucket] for bucket in self.buckets
        )
        told.update(buckets.encode())
        return told.hexdigest()


def read_layout(text: str) -> StateLayout:
    """Read a sender's layout; raises InvalidUse for what is none."""
    try:
        return StateLayout.model_validate_json(text)
    except ValidationError as error:
        raise InvalidUse(f"the sender's layout is not valid: {explain(error)}") from None


def described(state: Mapping[str, Any]) -> tuple[StateTensor, ...]:
    """Return the tensors of a state dict; raises InvalidUse for what cannot be sent as it is."""
    found = []
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidUse(f'"{name}" is a {type(tensor).__name__}, not a tensor: leave it out')
        if hasattr(tensor, "full_tensor"):
            raise InvalidUse(
                f'"{name}" is a DTensor: send tensor.full_tensor(), or its shards with a ShardSender'
            )
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else str(tensor.layout)
            raise InvalidUse(f'"{name}" is {kind}: only dense tensors with data can be sent')
        dtype = str(tensor.dtype).removeprefix("torch.")
        found.append(StateTensor(name=name, dtype=dtype, shape=tuple(tensor.shape)))
    return tuple(found)


def sync_tensors(state: Mapping[str, Any], *, work: tuple[str, ...] = ("copy",)) -> tuple[SyncTensor, ...]:
    """Return the tensors of a state dict for a weight-sync document.

    Types that documents do not name, such as float8, are described by their bytes.
    """
    return tuple(
        SyncTensor(
            name=tensor.name,
            size_bytes=tensor.size_bytes,
            dtype=tensor.dtype if tensor.dtype in ELEMENT_BYTES else "uint8",
            block_bytes=None if tensor.dtype in ELEMENT_BYTES else tensor.torch_dtype.itemsize,
            work=work,
        )
        for tensor in described(state)
    )


def lay_out(state: Mapping[str, Any], plan: SyncPlan | None) -> StateLayout:
    """Return the buckets of a state dict: the plan's, or those of one size in the order of the dict.

    Raises
    ------
    ScheduleMismatch
        If the plan is for other tensors.
    """
    tensors = described(state)
    if plan is None:
        return StateLayout(tensors=tensors, buckets=filled(tensors))
    numbers = {tensor.name: number for number, tensor in enumerate(tensors)}
    planned: dict[str, int] = {}
    for bucket in plan.buckets:
        for part in bucket.parts:
            planned[part.tensor] = planned.get(part.tensor, 0) + part.size_bytes
    for name in planned:
        if name not in numbers:
            raise ScheduleMismatch(f'the plan sends tensor "{name}", which the state dict does not have')
    for tensor in tensors:
        if planned.get(tensor.name, 0) != tensor.size_bytes:
            raise ScheduleMismatch(
                f'tensor "{tensor.name}" has {tensor.size_bytes} bytes, the plan sends '
                f"{planned.get(tensor.name, 0)}: plan again with sync_tensors(state)"
            )
    return StateLayout(
        tensors=tensors,
        buckets=tuple(
            tuple((numbers[part.tensor], part.offset_bytes, part.size_bytes) for part in bucket.parts)
            for bucket in plan.buckets
        ),
    )


def filled(
    tensors: tuple[StateTensor, ...], bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> tuple[tuple[Stretch, ...], ...]:
    """Return buckets of one size, in the order of the tensors; the last one may be smaller."""
    buckets: list[list[Stretch]] = []
    room = 0
    for number, tensor in enumerate(tensors):
        at, total = 0, tensor.size_bytes
        while at < total:
            if not room:
                buckets.append([])
                room = bucket_bytes
            size = min(room, total - at)
            buckets[-1].append((number, at, size))
            at, room = at + size, room - size
    return tuple(map(tuple, buckets))
