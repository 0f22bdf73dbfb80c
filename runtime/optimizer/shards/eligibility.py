"""Tells whether a job's updates can be sharded."""

from collections.abc import Mapping

import torch
from torch import nn

from pace.runtime.control.options import WrapperOptions
from pace.runtime.gates.gated_state import held_by_others
from pace.runtime.optimizer.shards.shard_memory import why_not_in_shards
from pace.runtime.optimizer.shards.shard_update import why_not_elementwise
from pace.runtime.transports.transport import Transport


def why_not_sharded(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    options: WrapperOptions,
    transport: Transport,
) -> str | None:
    """Return why updates cannot be sharded on this rank, or None if they can."""
    if not transport.has_halves and transport.device is not None:
        return "the model is on a GPU and gradients do not go over NCCL"
    if not transport.has_halves:
        return "gradients go over parameter servers"
    if options.communication.compression != "none":
        return f"compression is {options.communication.compression!r}"
    if held_by_others(optimizer):
        return "the training loop keeps the dictionary of optimizer.state, and no rank would have all of it"
    return why_not_elementwise(optimizer) or why_not_in_shards(parameters, model)
