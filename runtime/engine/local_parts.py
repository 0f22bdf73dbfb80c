"""A rank's own part of a tensor that lies on several ranks, as ``fully_shard`` leaves parameters (a DTensor).

Buffers, sums and marks know parts alone; users, optimizers and checkpoints see DTensors. A plain tensor is
its own part.
"""

from collections.abc import Sequence
from typing import Any

import torch


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of this rank's part."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def as_part_of(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the parameter's kind, sharded as it is, of which `part` is this rank's."""
    spec: Any = getattr(parameter, "_spec", None)
    if spec is None:
        return part
    from torch.distributed.tensor import DTensor

    made: torch.Tensor = DTensor(part, spec, requires_grad=False)  # type: ignore[no-untyped-call]  # in torch
    return made


def num_elements(parameter: torch.Tensor) -> int:
    """Return how many elements of a parameter every rank has room for.

    The same on all ranks, though the last ones may have fewer: sizes, and with them schedules, are then the
    same for all shards.
    """
    placements: Sequence[Any] | None = getattr(parameter, "placements", None)
    if placements is None:
        return parameter.numel()
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]  # only DTensors have placements
    shape = list(parameter.shape)
    for number, placement in enumerate(placements):
        if placement.is_shard():
            shape[placement.dim] = -(-shape[placement.dim] // mesh.size(number))
    return torch.Size(shape).numel()


def num_bytes(parameter: torch.Tensor) -> int:
    """Return how many bytes a gradient of a parameter has on every rank; see ``num_elements``."""
    return num_elements(parameter) * parameter.element_size()
