"""What this process holds, or wants, of each tensor of a state dict: all of it, or a DTensor's shard."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement

from pace.documents.profile import ELEMENT_BYTES, DType
from pace.errors import InvalidUse
from pace_sync.documents.resharding import TensorBox, WholeTensor
from pace_sync.weight_sync.state_layout import described


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShard:
    """The box of a tensor that is here.

    Attributes
    ----------
    begin, shape
        Of the box; `whole` is the shape of the tensor.
    mesh, placements
        Of a DTensor; None for a tensor that is here whole.
    """

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] = ()

    def made(self, local: torch.Tensor) -> torch.Tensor:
        """Return the tensor of which this is the local part."""
        if self.mesh is None:
            return local
        return DTensor.from_local(
            local,
            self.mesh,
            self.placements,
            run_check=False,
            shape=torch.Size(self.whole),
            stride=torch.empty(self.whole, device="meta").stride(),
        )


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return what is here of a tensor."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def local_shards(state: Mapping[str, Any]) -> dict[str, LocalShard]:
    """Return what is here of each tensor.

    Raises
    ------
    InvalidUse
        For what is no box of a dense tensor: partial sums, other layouts, other objects.
    """
    plain = {name: local_tensor(each) if isinstance(each, DTensor) else each for name, each in state.items()}
    described(plain)
    found = {}
    for name, tensor in state.items():
        local = plain[name]
        begin, mesh = (0,) * local.ndim, None
        placements: tuple[Placement, ...] = ()
        if isinstance(tensor, DTensor):
            begin = _offset(name, tensor, local)
            mesh, placements = tensor.device_mesh, tuple(tensor.placements)
        found[name] = LocalShard(
            begin=begin,
            shape=tuple(local.shape),
            whole=tuple(tensor.shape),
            dtype=local.dtype,
            device=local.device,
            mesh=mesh,
            placements=placements,
        )
    return found


def _offset(name: str, tensor: DTensor, local: torch.Tensor) -> tuple[int, ...]:
    partial = next((each for each in tensor.placements if each.is_partial()), None)
    if partial is not None:
        raise InvalidUse(f'"{name}" has placement {partial}: redistribute it to shards first')
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) != tuple(local.shape):
        raise InvalidUse(
            f'"{name}" has a local part of shape {tuple(local.shape)}, its placements {tensor.placements} '
            f"say {tuple(shape)}: redistribute it first"
        )
    begin = [int(each) for each in offset]
    coordinate = tensor.device_mesh.get_coordinate()
    for axis in range(tensor.ndim):
        here = [
            (placement, place)
            for place, placement in enumerate(tensor.placements)
            if getattr(placement, "dim", None) == axis
        ]
        if coordinate is None or not any(hasattr(placement, "split_factor") for placement, _ in here):
            continue
        rows = torch.arange(tensor.shape[axis])
        for placement, place in here:
            count, mine = tensor.device_mesh.size(place), coordinate[place]
            pieces = rows.chunk(getattr(placement, "split_factor", 1))
            rows = torch.cat([_chunk(piece, count, mine) for piece in pieces])
        if len(rows) and int(rows[-1] - rows[0]) + 1 != len(rows):
            raise InvalidUse(
                f'"{name}" has rows here that do not follow one another ({tensor.placements}): '
                "redistribute it to plain shards first"
            )
        begin[axis] = int(rows[0]) if len(rows) else 0
    return tuple(begin)


def _chunk(rows: torch.Tensor, count: int, place: int) -> torch.Tensor:
    pieces = rows.chunk(count)
    return pieces[place] if place < len(pieces) else rows[:0]


def _named(name: str, dtype: torch.dtype) -> DType:
    for known in ELEMENT_BYTES:
        if getattr(torch, known) is dtype:
            return known
    raise InvalidUse(f'"{name}" has type {dtype}, which documents do not name: send it as a view of uint8')


def shard_boxes(state: Mapping[str, Any]) -> tuple[TensorBox, ...]:
    """Return the boxes that this process holds, or wants: for a resharding document."""
    return tuple(
        TensorBox(tensor=name, begin=shard.begin, shape=shard.shape)
        for name, shard in local_shards(state).items()
        if all(shard.shape)
    )


def whole_tensors(state: Mapping[str, Any]) -> tuple[WholeTensor, ...]:
    """Return the tensors of a state dict, whole: for a resharding document.

    Tensors without elements are left out: nothing of them is sent.
    """
    return tuple(
        WholeTensor(name=name, shape=shard.whole, dtype=_named(name, shard.dtype))
        for name, shard in local_shards(state).items()
        if all(shard.whole)
    )
