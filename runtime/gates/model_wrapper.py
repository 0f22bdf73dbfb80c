"""DistributedDataParallel or ``fully_shard`` around a model: what the runtime needs to know of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Slot
from pace.runtime.gates.gradient_gates import local_gradient


class ModelWrapper(Protocol):
    """DistributedDataParallel or ``fully_shard`` around a model whose all-reduces the runtime makes.

    Attributes
    ----------
    quiet
        Whether gradients of the backward pass under way stay on this rank.
    quiet_passes
        What users call such passes, for a message.
    kinds
        Names of torch's classes that may be in the model, though they sum gradients.
    """

    quiet: bool
    quiet_passes: str
    kinds: frozenset[str]

    def wraps(self, parallel: DistributedDataParallel) -> bool:
        """Whether this is the given DistributedDataParallel."""

    def watch(self, slots: Mapping[nn.Parameter, Slot], use: Callable[[Iterable[Slot]], None]) -> bool:
        """Call `use` with the slots of parameters that are about to be used, until called with none.

        Returns
        -------
        Whether every use in the model's forward pass is announced so.
        """


def refuse_local_step(model_wrapper: ModelWrapper, slots: Iterable[Slot]) -> None:
    """Refuse an update from gradients of this rank alone.

    Raises
    ------
    InvalidUse
        When there are some.
    """
    if any(local_gradient(slot.parameter) is not None for slot in slots):
        raise InvalidUse(
            f"step() after a backward pass {model_wrapper.quiet_passes}: it would update from this rank's own"
            " gradients, and ranks would no longer have the same weights. Run the last forward and backward"
            " pass before step() otherwise"
        )


def refuse_reducing(model_wrapper: ModelWrapper | None) -> None:
    """Refuse a forward pass inside a DistributedDataParallel that sums gradients itself.

    Raises
    ------
    InvalidUse
        When there is one.
    """
    active = DistributedDataParallel._active_ddp_module
    if active is not None and (model_wrapper is None or not model_wrapper.wraps(active)):
        raise InvalidUse(
            "the model is inside DistributedDataParallel, which would reduce gradients a second time:"
            " use the model itself, or pace.runtime.ddp.attach"
        )
