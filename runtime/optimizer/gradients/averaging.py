"""How sums become the gradients of the update, and what a rank contributes when a sum is sent again."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from pace.runtime.engine.buffers import Slot
from pace.runtime.transports.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How sums become the gradients of the update.

    Attributes
    ----------
    divisor
        Gradients are divided by this before they are summed.
    scale
        The transport multiplies sums by this.
    mean
        Whether the result is the mean over all ranks. Otherwise it is the sum.
    rank
        The rank of this process.
    """

    divisor: float
    scale: float
    mean: bool
    rank: int

    @property
    def keeps_base(self) -> bool:
        """Whether this rank contributes the earlier result again: for a mean all ranks do, for a sum one."""
        return self.mean or self.rank == 0

    def join(self, slot: Slot) -> bool:
        """Add late gradients to the earlier result, for another turn; return whether there is either."""
        if not (slot.present and self.keeps_base):
            slot.view.zero_()
        if slot.late is not None:
            slot.view.add_(slot.late.to_dense() if slot.late.is_sparse else slot.late)
        if self.divisor != 1:
            slot.view.div_(self.divisor)
        here = slot.present or slot.late is not None
        slot.late = None
        return here

    def hand_on(self, slot: Slot, *, mine: bool) -> bool:
        """Prepare a sum that gives all ranks one rank's gradient; return whether this rank contributes it."""
        if not (mine and slot.present):
            slot.view.zero_()
        elif self.scale != 1:
            slot.view.div_(self.scale)
        return mine and slot.present


def mean_loss(loss: Any, transport: Transport) -> Any:
    """Return the mean of a closure's loss over all ranks, so that all optimizers decide the same."""
    if not isinstance(loss, torch.Tensor | float):
        return loss
    losses = [float(each) for each in transport.gather(repr(float(loss)).encode())]
    mean = math.fsum(losses) / len(losses)
    return torch.full_like(loss, mean) if isinstance(loss, torch.Tensor) else mean
