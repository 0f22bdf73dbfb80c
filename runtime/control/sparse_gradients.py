"""The elements of a group's buffer that this rank's gradients fill; a sparse one fills only its rows."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from pace.runtime.capture.touched_rows import sparse_tables
from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.event_log import log
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import Transport


def buffer_runs(group: FusedGroup, found: Mapping[Slot, torch.Tensor | None]) -> Runs:
    """Return the runs of a group's buffer that this rank's gradients fill.

    Parameters
    ----------
    found
        Coalesced sparse gradients, which fill only their rows, or None for a gradient of zeros. Gradients
        that are not in it fill all their elements.
    """
    parts: list[Runs] = []
    position = filled = 0
    for slot in group.slots:
        end = position + slot.view.numel()
        if slot in found:
            parts.append(Runs.whole(filled, position - filled))
            filled = end
            gradient = found[slot]
            if gradient is not None:
                parts.append(_rows(gradient).shifted(position))
        position = end
    return Runs.joined([*parts, Runs.whole(filled, len(group.buffer) - filled)])


def _rows(gradient: torch.Tensor) -> Runs:
    """Return the elements of a coalesced sparse gradient."""
    indices, values = gradient.indices().numpy(), gradient.values()
    places = np.ravel_multi_index(tuple(indices), gradient.shape[: gradient.sparse_dim()])
    return Runs.of_rows(places, math.prod(values.shape[1:]))


def warn_of_whole_gradients(model: nn.Module, transport: Transport) -> None:
    """Log on rank 0 if sparse gradients of a model's embeddings are sent whole."""
    tables = sparse_tables(model)
    reason: str | None = None
    if not transport.num_servers:
        reason = (
            "all-reduces sum whole gradients: to send only the rows that were used, pass"
            " communication=Mixed() of pace_servers.runtime to pace.runtime.torch.DistributedOptimizer"
        )
    elif not transport.takes_runs:
        reason = "compression sends whole gradients"
    if reason is None:
        tables = {name: weight for name, weight in tables.items() if weight.element_size() < 4}
        reason = "gradients in half precision are sent whole"
    if tables and transport.rank == 0:
        log.warning("pace.sparse_gradients_sent_whole", modules=list(tables)[:5], reason=reason)
