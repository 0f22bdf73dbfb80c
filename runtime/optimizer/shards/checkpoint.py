"""The optimizer's state for ``torch.distributed.checkpoint``: every rank writes and reads a part.

A checkpoint holds each entry of the state as one flat tensor, with the parameter's elements in memory order.
So it can be loaded with any other plan and number of ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from pace.errors import InvalidUse
from pace.runtime.optimizer.shards.shard_state import PieceState, SlotState

_EXISTS, _STRIDES, _GROUPS = "exists", "strides", "param_groups"


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
