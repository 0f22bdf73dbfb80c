"""The rows that a step's forward passes have used, with their gradients once there are some."""

import torch

from pace.solver.arrays import IntArray
from pace_servers.runtime.tables.initial_rows import RowArray


class UsedRows:
    """Collects rows when a backward pass reaches them, so that passes without one keep nothing alive.

    Attributes
    ----------
    forwarded
        Whether there was a forward pass with gradients since the last ``forget``.
    """

    def __init__(self) -> None:
        self.forwarded = False
        self._reached: dict[int, tuple[IntArray, torch.Tensor]] = {}

    def expect(self, keys: IntArray, rows: torch.Tensor) -> None:
        """Let a leaf with the rows of some keys require a gradient, and collect it."""
        self.forwarded = True
        rows.requires_grad_()
        if len(keys):
            rows.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda reached: self._note(keys, reached)
            )

    def _note(self, keys: IntArray, rows: torch.Tensor) -> None:
        # Several backward passes through one graph add to the same gradient.
        self._reached[id(rows)] = keys, rows

    def gradients(self) -> list[tuple[IntArray, RowArray]]:
        """Return keys and gradients; a key may be in several entries."""
        return [
            (keys, rows.grad.float().cpu().numpy())
            for keys, rows in self._reached.values()
            if rows.grad is not None
        ]

    def forget(self) -> None:
        """Begin a new step."""
        for _, rows in self._reached.values():
            rows.grad = None
        self._reached = {}
        self.forwarded = False
