"""Optimizer state in pieces, and how ranks join it."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.serialization import default_restore_location

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
