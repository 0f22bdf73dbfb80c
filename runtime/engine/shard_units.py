"""The units of a model in ``fully_shard``: what torch gathers and reduce-scatters together."""

from typing import Any, NamedTuple

import torch
from torch import nn

from pace.errors import InvalidUse

# By name, as importing it takes a second.
UNIT_KIND = "FSDPModule"


class Unit(NamedTuple):
    """What one call of ``fully_shard`` made: the name of its first module, and torch's own state."""

    name: str
    group: Any

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its sharded parameters."""
        return [each.sharded_param for each in self.group.fsdp_params]


def is_unit(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called with a module."""
    return any(
        kind.__name__ == UNIT_KIND and kind.__module__.startswith("torch.") for kind in type(module).__mro__
    )


def units_of(model: nn.Module) -> list[Unit]:
    """Return a model's units in the order in which their modules are defined.

    Raises
    ------
    InvalidUse
        When a module has several kinds of parameters, or this version of torch is not known.
    """
    units: dict[int, Unit] = {}
    for name, module in model.named_modules():
        if not is_unit(module):
            continue
        try:
            groups = module._get_fsdp_state()._fsdp_param_groups
        except AttributeError as error:
            raise InvalidUse(
                f"torch {torch.__version__} keeps what fully_shard made in another way than is known here:"
                f" {error}"
            ) from error
        if len(groups) > 1:
            raise InvalidUse(
                f"fully_shard: {name or 'the model'} has {len(groups)} groups of parameters, each on a mesh"
                " of its own (shard_placement_fn), so it is not one all-reduce: give such parameters a"
                " module, and a call of fully_shard, of their own"
            )
        for group in groups:
            units.setdefault(id(group), Unit(name, group))
    return list(units.values())
