"""How sums become what the update uses, and what a rank adds to a turn that sends a sum again."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from pace.runtime.engine.buffers import Slot
from pace.runtime.transports.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How sums become what the update uses.

    Attributes
    ----------
    divisor
        What gradients are divided by before they are summed.
    scale
        What the transport multiplies sums by.
    mean
        Whether the result is the mean over all ranks; otherwise it is the sum.
    rank
        This process.
    """

    divisor: float
    scale: float
    mean: bool
    rank: int

    @property
    def keeps_base(self) -> bool:
        """Whether this rank adds what is already reduced: all ranks do to a mean, one of them to a sum."""
        return self.mean or self.rank == 0

    def join(self, slot: Slot) -> bool:
        """Add what came late to what is reduced; return whether there is anything."""
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
        """Prepare a sum that replaces every rank's gradient by one rank's; return whether there is one."""
        if not (mine and slot.present):
            slot.view.zero_()
        elif self.scale != 1:
            slot.view.div_(self.scale)
        return mine and slot.present


def mean_loss(loss: Any, transport: Transport) -> Any:
    """Average a closure's loss: optimizers that decide by it must decide alike on all ranks."""
    if not isinstance(loss, torch.Tensor | float):
        return loss
    losses = [float(each) for each in transport.gather(repr(float(loss)).encode())]
    mean = math.fsum(losses) / len(losses)
    return torch.full_like(loss, mean) if isinstance(loss, torch.Tensor) else mean
