"""Optimizer state in pieces: how ranks put it together again."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

SlotState = dict[str, Any]
"""What an optimizer keeps of one parameter, or of a piece of it, by name."""


class PieceState(NamedTuple):
    """The state of a piece of a parameter.

    Attributes
    ----------
    start, end
        Its elements, in the order in which the parameter lies in memory.
    values
        Tensors of as many elements, and numbers that hold for the whole parameter.
    """

    start: int
    end: int
    values: SlotState


def saved(pieces: Mapping[str, PieceState]) -> bytes:
    """Serialize pieces for the other ranks."""
    file = io.BytesIO()
    torch.save({name: tuple(piece) for name, piece in pieces.items()}, file)
    return file.getvalue()


def loaded(payload: bytes) -> dict[str, PieceState]:
    """Read what ``saved`` wrote."""
    found: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
    return {name: PieceState(*piece) for name, piece in found.items()}


def joined(
    pieces: Sequence[PieceState], size: int, shaped: Callable[[torch.Tensor], torch.Tensor]
) -> SlotState:
    """Put the pieces of one parameter's state together.

    Parameters
    ----------
    size
        How many elements the parameter has.
    shaped
        Views a flat tensor of so many elements as the parameter lies in memory.
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
