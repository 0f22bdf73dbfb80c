"""Gives a model planned settings of FSDP2: units of blocks, how far ahead each is gathered, and buffers."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from pace.documents.graph.fsdp2_settings import Fsdp2Settings
from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.transports.torch_versions import SCATTER_SETTINGS, require_torch


def shard_by_settings(
    model: nn.Module, settings: Fsdp2Settings, blocks: Sequence[nn.Module] | None, options: dict[str, Any]
) -> list[FSDPModule]:
    """Shard a model unless it is sharded, and set what is planned; return the units in forward order.

    The arguments are those of ``pace.runtime.fsdp.apply``.
    """
    if settings.max_input_buffers > 1 or settings.separate_reduce_scatter_group:
        require_torch(SCATTER_SETTINGS)
    found = blocks_of(model) if blocks is None else list(blocks)
    if not found:
        raise InvalidOptions("blocks is empty: give the blocks of the model in forward order")
    count = -(-len(found) // settings.blocks_per_unit)
    if settings.kept_units and settings.kept_units[-1] >= count:
        raise InvalidOptions(
            f"kept_units has unit {settings.kept_units[-1]}, and the model has {count} units: the settings "
            "are of another model"
        )
    inside = set(model.modules())
    for number, block in enumerate(found):
        if block not in inside or block is model:
            raise InvalidOptions(f"blocks[{number}] ({type(block).__name__}) is no module inside the model")
    if len(set(found)) < len(found):
        raise InvalidOptions("a block is listed twice: give each once, in the order of its first use")
    units = _sharded_units(found, settings) if isinstance(model, FSDPModule) else None
    if units is None:
        units = _shard(model, found, settings, options)
    elif options:
        raise InvalidOptions(
            f"{', '.join(sorted(options))}: the model is sharded already; give these to fully_shard, or call "
            "apply before"
        )
    assert isinstance(model, FSDPModule)
    _set(model, units, settings)
    return units


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules of the longest list, or dict, of modules of one type inside a model."""
    lists = [
        list(module.children())
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    ]
    alike = [modules for modules in lists if len(modules) > 1 and len({_kind(each) for each in modules}) == 1]
    if not alike:
        raise InvalidOptions(
            "the model has no list of blocks of one type: give them, blocks=[...], in forward order"
        )
    alike.sort(key=lambda modules: -sum(each.numel() for block in modules for each in block.parameters()))
    return alike[0]


def _kind(module: nn.Module) -> type:
    """Return a module's class before ``fully_shard`` changed it."""
    if isinstance(module, FSDPModule):
        return type(module).__mro__[2]
    return type(module)


def _shard(
    model: nn.Module, blocks: list[nn.Module], settings: Fsdp2Settings, options: dict[str, Any]
) -> list[FSDPModule]:
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise InvalidUse(
            "fully_shard was called with modules of the model, but not with the model: call it with the "
            "whole model too, or with none"
        )
    if "reshard_after_forward" in options:
        raise InvalidOptions(
            "reshard_after_forward is one of the settings: change it there, "
            "settings.model_copy(update={'reshard_after_forward': ...})"
        )
    size = settings.blocks_per_unit
    units = []
    for number, at in enumerate(range(0, len(blocks), size)):
        group = blocks[at : at + size]
        fully_shard(group, reshard_after_forward=_is_freed(settings, number), **options)
        units.append(group[0])
    fully_shard(model, **options)
    return [unit for unit in units if isinstance(unit, FSDPModule)]


def _is_freed(settings: Fsdp2Settings, number: int) -> bool:
    """Return whether a unit is freed after its forward pass."""
    return settings.reshard_after_forward and number not in settings.kept_units


def _sharded_units(blocks: list[nn.Module], settings: Fsdp2Settings) -> list[FSDPModule]:
    """Return the units of a sharded model, which must be those of the settings."""
    size = settings.blocks_per_unit
    for at in range(0, len(blocks), size):
        group = blocks[at : at + size]
        states = {id(each._get_fsdp_state()) if isinstance(each, FSDPModule) else None for each in group}
        if None in states:
            raise InvalidOptions(
                f"block {at} is no unit: call fully_shard with every block before the model, or let apply "
                "call it"
            )
        following = {
            id(each._get_fsdp_state())
            for each in blocks[at + size : at + size + 1]
            if isinstance(each, FSDPModule)
        }
        if len(states) > 1 or states & following:
            raise InvalidOptions(
                f"the settings have {size} blocks in a unit, and the model is sharded otherwise: call apply "
                "before fully_shard, or shard groups of so many blocks"
            )
    return [block for block in blocks[::size] if isinstance(block, FSDPModule)]


def _set(model: FSDPModule, units: list[FSDPModule], settings: Fsdp2Settings) -> None:
    ahead, behind = settings.forward_ahead, settings.backward_ahead
    model.set_modules_to_forward_prefetch(units[:ahead])
    # Kept units are not gathered in the backward pass, so they do not count as ahead.
    before = [unit for number, unit in enumerate(units) if number not in settings.kept_units]
    model.set_modules_to_backward_prefetch(before[::-1][:behind])
    for number, unit in reversed(list(enumerate(units))):
        unit.set_reshard_after_forward(_is_freed(settings, number), recurse=False)
        unit.set_modules_to_forward_prefetch(units[number + 1 : number + 1 + ahead])
        if before and before[-1] is unit:
            before.pop()
        unit.set_modules_to_backward_prefetch(before[::-1][:behind])
    if hasattr(model, "set_reduce_scatter_max_input_buffers"):
        model.set_reduce_scatter_max_input_buffers(settings.max_input_buffers)
    if hasattr(model, "set_separate_reduce_scatter_group"):
        model.set_separate_reduce_scatter_group(settings.separate_reduce_scatter_group)
