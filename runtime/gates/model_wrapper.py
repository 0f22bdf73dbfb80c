"""The runtime's interface to DistributedDataParallel or ``fully_shard`` around a model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Slot
from pace.runtime.engine.plan import Buckets
from pace.runtime.gates.gradient_gates import local_gradient


class ModelWrapper(Protocol):
    """DistributedDataParallel or ``fully_shard`` around a model whose gradients the runtime sums.

    Attributes
    ----------
    quiet
        Whether gradients of the current backward pass are not summed.
    quiet_passes
        The name of such passes in messages.
    kinds
        Names of torch's classes that the model may contain, though they sum gradients.
    swaps_parameters
        Whether modules hold other tensors than the optimizer's parameters during a pass.
    """

    quiet: bool
    quiet_passes: str
    kinds: frozenset[str]
    swaps_parameters: bool

    def wraps(self, parallel: DistributedDataParallel) -> bool:
        """Return whether this is the given DistributedDataParallel."""

    def buckets(self, parameters: Mapping[str, nn.Parameter]) -> Buckets:
        """Return how the wrapper itself fuses the gradients of these parameters, by name."""

    def watch(self, slots: Mapping[nn.Parameter, Slot], use: Callable[[Iterable[Slot]], None]) -> bool:
        """Call `use` with the slots of parameters that are about to be used, until called without slots.

        Returns
        -------
        bool
            Whether every use in the model's forward pass is announced in this way.
        """

    def sharing(self) -> list[torch.Tensor]:
        """Return the wrapper's own tensors that share the memory of parameters."""


def refuse_local_step(model_wrapper: ModelWrapper, slots: Iterable[Slot]) -> None:
    """Check that no update would use gradients of this rank only.

    Raises
    ------
    InvalidUse
        If one would.
    """
    if any(local_gradient(slot.parameter) is not None for slot in slots):
        raise InvalidUse(
            f"step() after a backward pass {model_wrapper.quiet_passes}: it would update from this rank's own"
            " gradients, and ranks would no longer have the same weights. Run the last forward and backward"
            " pass before step() otherwise"
        )


def refuse_reducing(model_wrapper: ModelWrapper | None) -> None:
    """Check that the forward pass is not inside a DistributedDataParallel that sums gradients itself.

    Raises
    ------
    InvalidUse
        If it is.
    """
    active = DistributedDataParallel._active_ddp_module
    if active is not None and (model_wrapper is None or not model_wrapper.wraps(active)):
        raise InvalidUse(
            "the model is inside DistributedDataParallel, which would reduce gradients a second time:"
            " use the model itself, or pace.runtime.ddp.attach; in Lightning strategy='pace'; with Accelerate"
            " pace.runtime.accelerate.attach"
        )
