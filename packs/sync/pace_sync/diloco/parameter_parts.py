"""Which elements of which parameters a fragment of a plan has."""

from dataclasses import dataclass

import torch
from torch import nn

from pace.errors import ScheduleMismatch
from pace_sync.documents.outer_plan import OuterPlan
from pace_sync.documents.outer_sync import OuterLayer

# The outer step holds float32.
ELEMENT = 4


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """Elements `begin` to `end` of a parameter, in its own order."""

    parameter: nn.Parameter
    begin: int
    end: int


def outer_layers(model: nn.Module, modules: list[str] | None = None) -> list[OuterLayer]:
    """Return a model's layers for an outer-sync document, in bytes of float32.

    Parameters
    ----------
    modules
        Names of modules, such as "layers.0"; each is a layer with all its parameters. Every other parameter
        is a layer of its own.

    Raises
    ------
    ScheduleMismatch
        When the model has no parameter of a module.
    """
    sizes: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        layer = next((each for each in modules or () if name.startswith(f"{each}.")), name)
        sizes[layer] = sizes.get(layer, 0) + parameter.numel() * ELEMENT
    for each in modules or ():
        if each not in sizes:
            raise ScheduleMismatch(f'the model has no parameters of a module "{each}"')
    return [OuterLayer(name=name, size_bytes=size) for name, size in sizes.items()]


def parts_of_fragments(model: nn.Module, plan: OuterPlan) -> list[list[ParameterPart]]:
    """Return the parts of each fragment; a layer is a parameter, or a module with all its parameters.

    Raises
    ------
    ScheduleMismatch
        When names or sizes are not those of the model.
    """
    named = dict(model.named_parameters())
    sizes: dict[str, int] = {}
    for fragment in plan.fragments:
        for part in fragment.parts:
            sizes[part.layer] = max(sizes.get(part.layer, 0), part.offset_bytes + part.size_bytes)
    owner: dict[str, str] = {}
    for layer, size in sizes.items():
        members = [name for name in named if name == layer or name.startswith(f"{layer}.")]
        if not members:
            raise ScheduleMismatch(
                f'the plan has layer "{layer}", which is no parameter or module of the model'
            )
        for name in members:
            if name in owner:
                raise ScheduleMismatch(f'parameter "{name}" is in layers "{owner[name]}" and "{layer}"')
            owner[name] = layer
        has = sum(named[name].numel() for name in members) * ELEMENT
        if has != size:
            raise ScheduleMismatch(
                f'layer "{layer}" has {size} bytes in the plan, its parameters have {has} in float32'
            )
    if missing := [name for name in named if name not in owner]:
        raise ScheduleMismatch(f'the plan does not have parameter "{missing[0]}"')
    found: list[list[ParameterPart]] = []
    for fragment in plan.fragments:
        parts: list[ParameterPart] = []
        for stretch in fragment.parts:
            if stretch.offset_bytes % ELEMENT or stretch.size_bytes % ELEMENT:
                raise ScheduleMismatch(f'layer "{stretch.layer}" is cut inside a float32')
            begin, at = stretch.offset_bytes // ELEMENT, 0
            end = begin + stretch.size_bytes // ELEMENT
            for name, parameter in named.items():
                if owner[name] != stretch.layer:
                    continue
                first, last = max(begin - at, 0), min(end - at, parameter.numel())
                if first < last:
                    parts.append(ParameterPart(parameter, first, last))
                at += parameter.numel()
        found.append(parts)
    return found


def read_parts(parts: list[ParameterPart]) -> torch.Tensor:
    """Return a copy of parts as one row of float32 on the CPU."""
    rows = [part.parameter.detach().reshape(-1)[part.begin : part.end] for part in parts]
    return torch.cat([row.to("cpu", torch.float32) for row in rows])


def write_parts(parts: list[ParameterPart], row: torch.Tensor) -> None:
    """Write a row into parts."""
    at = 0
    with torch.no_grad():
        for part in parts:
            count = part.end - part.begin
            flat = part.parameter.detach().reshape(-1)  # a copy, if the parameter is not contiguous
            flat[part.begin : part.end].copy_(row[at : at + count])
            if not part.parameter.is_contiguous():
                part.parameter.copy_(flat.view_as(part.parameter))
            at += count
