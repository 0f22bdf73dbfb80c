"""Which elements of a group's buffer this rank's gradients have: of a sparse one, its rows alone."""

import math

import numpy as np
import torch
from torch import nn

from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.event_log import log
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import Transport


class BufferRuns:
    """Collects the runs of a buffer, from its first gradient to its last.

    Parameters
    ----------
    wanted
        Whether the transport takes runs; else nothing is collected.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._parts: list[Runs] = []
        self._position = 0
        self._zeros = False

    def add_all(self, slot: Slot) -> None:
        """Take all elements of the next gradient."""
        size = slot.view.numel()
        self._parts.append(Runs.whole(self._position, size))
        self._position += size

    def add_none(self, slot: Slot) -> None:
        """Take no element of the next gradient: all of them are zero."""
        self._zeros = True
        self._position += slot.view.numel()

    def add(self, slot: Slot, gradient: torch.Tensor) -> None:
        """Take the next gradient's elements, of a sparse one those of its rows."""
        if not (self._wanted and gradient.is_sparse and slot.view.is_contiguous()):
            self.add_all(slot)
            return
        self._parts.append(_rows(gradient).shifted(self._position))
        self._position += slot.view.numel()
        self._zeros = True

    def of(self, group: FusedGroup) -> Runs | None:
        """Return the runs of a group's whole buffer; None where no gradient leaves anything zero."""
        if not (self._wanted and self._zeros):
            return None
        behind = Runs.whole(self._position, len(group.buffer) - self._position)
        return Runs.joined([*self._parts, behind])


def _rows(gradient: torch.Tensor) -> Runs:
    """Return the elements that a coalesced sparse gradient has."""
    indices, values = gradient.indices().numpy(), gradient.values()
    places = np.ravel_multi_index(tuple(indices), gradient.shape[: gradient.sparse_dim()])
    return Runs.of_rows(places, math.prod(values.shape[1:]))


def warn_of_whole_gradients(model: nn.Module, transport: Transport, reason: str | None = None) -> None:
    """Say on rank 0 that sparse gradients of a model's embeddings are sent whole, if they are.

    Parameters
    ----------
    reason
        Why they are, whatever the transport can; None where that depends on the transport.
    """
    tables = {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }
    if reason is None and not transport.num_servers:
        reason = "all-reduces sum whole gradients: give backend='mixed' to push the rows of embeddings alone"
    if reason is None and not transport.takes_runs:
        reason = "compression sends whole gradients"
    if reason is None:
        tables = {name: weight for name, weight in tables.items() if weight.element_size() < 4}
        reason = "gradients in half precision are sent whole"
    if tables and transport.rank == 0:
        log.warning("pace.sparse_gradients_sent_whole", modules=list(tables)[:5], reason=reason)
