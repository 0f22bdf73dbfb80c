"""The units of a ``fully_shard`` model: the parameters that torch gathers and reduce-scatters together."""

from typing import Any, NamedTuple

from torch import nn

from pace.errors import InvalidUse

# By name, as an import takes a second.
UNIT_KIND = "FSDPModule"


class Unit(NamedTuple):
    """The result of one call of ``fully_shard``: the name of its first module, and torch's own state."""

    name: str
    group: Any

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The sharded parameters of this unit."""
        return [each.sharded_param for each in self.group.fsdp_params]


def is_unit(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called with a module."""
    return any(
        kind.__name__ == UNIT_KIND and kind.__module__.startswith("torch.") for kind in type(module).__mro__
    )


def units_of(model: nn.Module) -> list[Unit]:
    """Return a model's units in the order in which their modules are defined.

    Raises
    ------
    InvalidUse
        If parameters of one unit are on different meshes.
    """
    units: dict[int, Unit] = {}
    for name, module in model.named_modules():
        if not is_unit(module):
            continue
        state = module._get_fsdp_state()
        if hasattr(state, "_fsdp_param_groups"):
            groups = state._fsdp_param_groups
        else:  # before torch 2.12
            groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
        if len(groups) > 1:
            raise InvalidUse(
                f"fully_shard: {name or 'the model'} has {len(groups)} groups of parameters on different"
                " meshes (shard_placement_fn), so they cannot share an all-reduce: put the parameters of each"
                " mesh into a module of their own, and call fully_shard for it"
            )
        for group in groups:
            units.setdefault(id(group), Unit(name, group))
    return list(units.values())
