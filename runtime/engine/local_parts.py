"""A rank's part of a tensor that is spread over ranks (a DTensor), such as a parameter under ``fully_shard``.

Buffers, sums and marks use these parts. Users, optimizers and checkpoints use DTensors. A plain tensor is its
own part.
"""

from collections.abc import Sequence
from typing import Any

import torch


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of this rank's part."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def as_part_of(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor like the parameter (plain, or a DTensor sharded like it) with `part` on this rank."""
    spec: Any = getattr(parameter, "_spec", None)
    if spec is None:
        return part
    from torch.distributed.tensor import DTensor

    made: torch.Tensor = DTensor(part, spec, requires_grad=False)  # type: ignore[no-untyped-call]  # in torch
    return made


def num_elements(parameter: torch.Tensor) -> int:
    """Return the number of a parameter's elements for which every rank has room.

    The last ranks may have fewer elements. This number is the same on all ranks, and so are sizes and
    schedules.
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
    """Return the bytes of a parameter's gradient on every rank; see ``num_elements``."""
    return num_elements(parameter) * parameter.element_size()
