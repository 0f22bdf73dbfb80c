"""Optimizer state in pieces: how ranks join it, and how ``torch.distributed.checkpoint`` stores it.

Every rank writes and reads its part of a checkpoint, which holds each entry of the state as one flat tensor
with the parameter's elements in memory order. So it can be loaded with any other plan and number of ranks.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.serialization import default_restore_location

from pace.errors import InvalidUse

_EXISTS, _STRIDES, _GROUPS = "exists", "strides", "param_groups"

SlotState = dict[str, Any]
"""The optimizer's state of one parameter or a piece of it, by the name of each entry."""


class PieceState(NamedTuple):
    """The state of a piece of a parameter.

    Attributes
    ----------
    start, end
        The range of the parameter's elements, in memory order.
    values
        Tensors with one value for each of these elements, and numbers that apply to the whole parameter.
    """

    start: int
    end: int
    values: SlotState


def saved(pieces: Mapping[str, PieceState]) -> bytes:
    """Serialize pieces for the other ranks."""
    file = io.BytesIO()
    torch.save({name: tuple(piece) for name, piece in pieces.items()}, file)
    return file.getvalue()


def loaded(payload: bytes, device: torch.device) -> dict[str, PieceState]:
    """Deserialize the pieces that ``saved`` returned; what was on another rank's device goes to this one."""
    restore: Any = default_restore_location  # untyped in torch

    def place(storage: Any, location: str) -> Any:
        return restore(storage, location if location == "cpu" else str(device))

    found: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True, map_location=place)
    return {name: PieceState(*piece) for name, piece in found.items()}


def joined(
    pieces: Sequence[PieceState], size: int, shaped: Callable[[torch.Tensor], torch.Tensor]
) -> SlotState:
    """Join the pieces of one parameter's state.

    Parameters
    ----------
    size
        Number of elements of the parameter.
    shaped
        Returns a view of a flat tensor with the parameter's shape and strides.
    """
    found: SlotState = {}
    for name, first in pieces[0].values.items():
        if not isinstance(first, torch.Tensor) or first.dim() == 0:
            found[name] = first
            continue
        flat = first.new_zeros(size)
        for piece in pieces:
            flat[piece.start : piece.end] = piece.values[name]
        found[name] = shaped(flat)
    return found


class FlatPart(torch.Tensor):
    """One rank's range of a flat tensor that is spread over ranks, for ``torch.distributed.checkpoint``.

    Parameters
    ----------
    values
        This rank's part, with one dimension.
    start
        Index of its first element in the whole tensor.
    size
        Number of elements of the whole tensor.
    """

    part: torch.Tensor
    _start: int
    _whole: torch.Size

    def __new__(cls, values: torch.Tensor, start: int, size: int) -> Self:
        """Return a tensor that shares the memory of `values`."""
        made: Self = torch.Tensor._make_subclass(cls, values)
        made.part = values
        made._start = start
        made._whole = torch.Size([size])
        return made

    def size(self, dim: Any = None) -> Any:
        """Return the size of the whole tensor, which the checkpoint stores."""
        return self._whole if dim is None else self._whole[dim]

    def _chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(offsets=torch.Size([self._start]), sizes=torch.Size([len(self.part)]))

    def __create_write_items__(self, fqn: str, _object: Any) -> list[WriteItem]:
        data = TensorWriteData(
            chunk=self._chunk(),
            properties=TensorProperties.create_from_tensor(self.part),
            size=self._whole,
        )
        index = MetadataIndex(fqn, torch.Size([self._start]))
        return [WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._chunk()]

    def __get_tensor_shard__(self, _index: MetadataIndex) -> torch.Tensor:
        return self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPiece:
    """The part of a parameter that this rank updates, and its optimizer state.

    Attributes
    ----------
    size
        Number of elements of the whole parameter.
    start, end
        This rank's range of them.
    state
        The optimizer's state of this part; None if the parameter has had no gradient yet.
    blank
        The state after a first step with a zero gradient. It tells which entries a state has.
    """

    size: int
    start: int
    end: int
    state: SlotState | None
    blank: SlotState


class ShardedState:
    """One rank's part of the optimizer's state: a ``Stateful`` of torch.distributed.checkpoint.

    ::

        dcp.save({"optimizer": optimizer.sharded_state()}, checkpoint_id=folder)
        dcp.load({"optimizer": optimizer.sharded_state()}, checkpoint_id=folder)

    Every rank must save, and every rank must load. The number of ranks may change in between.

    Parameters
    ----------
    pieces
        This rank's pieces, by the parameters' names.
    strides
        The strides of all parameters, by name.
    groups
        The hyper-parameters of each parameter group.
    load
        Called with the loaded state of pieces and hyper-parameters.

    Attributes
    ----------
    pieces
        The state of this rank's pieces that have one, by the parameters' names.
    """

    def __init__(
        self,
        pieces: Mapping[str, ParameterPiece],
        strides: Mapping[str, tuple[int, ...]],
        groups: list[dict[str, Any]],
        load: Callable[[dict[str, PieceState], list[dict[str, Any]]], None],
    ) -> None:
        self._parameters = pieces
        self._strides = strides
        self._groups = groups
        self._load = load
        self.pieces = {
            name: PieceState(piece.start, piece.end, piece.state)
            for name, piece in pieces.items()
            if piece.state is not None
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors to save, or to overwrite when loading."""
        # The tensor keeps the dictionary from being taken for one value on a rank without pieces.
        found: dict[str, Any] = {"version": torch.tensor(1), _GROUPS: self._groups}
        for name, strides in self._strides.items():
            found[f"{name}.{_STRIDES}"] = torch.tensor(strides, dtype=torch.int64)
        for name, piece in self._parameters.items():
            found[f"{name}.{_EXISTS}"] = torch.tensor(piece.state is not None)
            values = piece.blank if piece.state is None else piece.state
            for entry, value in values.items():
                flat = isinstance(value, torch.Tensor) and value.dim() > 0
                found[f"{name}.{entry}"] = FlatPart(value, piece.start, piece.size) if flat else value
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state that was read.

        Raises
        ------
        InvalidUse
            If a parameter had other strides when the checkpoint was written.
        """
        for name, strides in self._strides.items():
            saved = tuple(cast("torch.Tensor", state_dict[f"{name}.{_STRIDES}"]).tolist())
            if saved != strides:
                raise InvalidUse(
                    f"the checkpoint has the state of {name} with strides {saved}, but the parameter has"
                    f" {strides}: give the model the same memory format, or save and load state_dict()"
                )
        loaded: dict[str, PieceState] = {}
        for name, piece in self._parameters.items():
            if not bool(state_dict[f"{name}.{_EXISTS}"]):
                continue
            entries = piece.blank if piece.state is None else piece.state
            loaded[name] = PieceState(
                piece.start,
                piece.end,
                {
                    entry: value.part if isinstance(value, FlatPart) else value
                    for entry in entries
                    for value in [state_dict[f"{name}.{entry}"]]
                },
            )
        self._load(loaded, state_dict[_GROUPS])
