"""Norms and the optimizer's state in rounds in which every rank updates all parameters."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from pace.runtime.engine.buffers import Slot
from pace.runtime.optimizer.gradients.gradient_access import GradientAccess
from pace.runtime.optimizer.gradients.reduction import Reduction
from pace.runtime.optimizer.shards.clipping import clip_in_place


class WholeUpdates(ABC):
    """The part of ``Rounds`` that is different with sharded updates."""

    slots: Sequence[Slot]
    access: GradientAccess
    reduction: Reduction

    @property
    def number(self) -> int:
        """The number of rounds that have ended."""
        return self.reduction.step

    @abstractmethod
    def seal(self, *, read: bool) -> None:
        """Make this rank's contribution final."""

    @abstractmethod
    def wait_for_all(self) -> None:
        """Wait until every group of a sealed round is reduced."""

    def settle_aside(self) -> None:
        """While iterations are recorded, wait for what the update needs as soon as the round is sealed."""
        self.wait_for_all()

    def clip(self, max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip all gradients of a round by their norm, and return it; drop them if it is not finite."""
        if not self.reduction.sealed:
            self.seal(read=True)
        return clip_in_place(self.slots, self.access, max_norm, norm_type)

    def take_over(self) -> None:
        """See ``Reduction.take_over``; for updates that are applied in ``step()``."""
        self.reduction.take_over()

    def clip_at_step(self, max_norm: float) -> torch.Tensor:
        """Clip a round that is sealed, as a part of ``step()`` on every rank; see ``clip``."""
        self.reduction.take_over()
        return self.clip(max_norm, 2.0)

    def hand_back(self, *, last: bool = False) -> None:  # noqa: B027  # nothing is kept elsewhere
        """Give the user's optimizer the state that is kept elsewhere.

        Parameters
        ----------
        last
            Whether this is the last call in which this rank takes part.
        """

    def lend_state(self) -> None:  # noqa: B027  # it is there
        """Give the user's optimizer its whole state, and take over changes that user code makes to it."""

    def restore_held(self) -> None:  # noqa: B027  # they are
        """Gather the uncleared gradients of the last step; every rank calls it."""

    def give_state(self, asked: list[int]) -> bool:  # noqa: ARG002
        """Answer another rank that asks for state; return whether the answer was complete."""
        return False

    def take_state(self) -> None:  # noqa: B027  # as above
        """Move the user's optimizer's state to where it is kept during training."""

    def whole_state(self) -> contextlib.AbstractContextManager[bool]:
        """Inside, the user's optimizer has its whole state; yields whether it was gathered only for this."""
        return contextlib.nullcontext(enter_result=False)
