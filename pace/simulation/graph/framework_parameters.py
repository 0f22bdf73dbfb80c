"""Settings of FSDP2 as code to paste, and the same sizes as parameters of DeepSpeed and Megatron-LM."""

import json
from statistics import median_high

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.fsdp2_settings import Fsdp2Settings
from pace.documents.profile import ELEMENT_BYTES
from pace.planning.graph.arrays import bucket_keys, program_of
from pace.simulation.graph.units import sharded_units
from pace.solver.graph.program import Program

# Of an element in graphs that name no dtype.
_UNNAMED_BYTES = 2


def code_to_paste(settings: Fsdp2Settings) -> str:
    """Return Python code that gives a model these settings without PACE.

    `model` is the whole model, `blocks` its blocks in forward order.
    """
    size = settings.blocks_per_unit
    kept = settings.kept_units
    freed = f"number not in {set(kept)}"
    lines = [
        "from torch.distributed.fsdp import fully_shard",
        "",
        "blocks = list(model.layers)  # the transformer blocks, in forward order",
        f"groups = [blocks[at : at + {size}] for at in range(0, len(blocks), {size})]",
        "for number, group in enumerate(groups):" if kept else "for group in groups:",
        f"    fully_shard(group, reshard_after_forward={freed if kept else settings.reshard_after_forward})",
        "fully_shard(model)",
        "units = [group[0] for group in groups]",
        f"model.set_modules_to_forward_prefetch(units[:{settings.forward_ahead}])",
        *(
            [f"gathered = [unit for number, unit in enumerate(units) if {freed}]  # in the backward pass too"]
            if kept
            else []
        ),
        f"model.set_modules_to_backward_prefetch({'gathered' if kept else 'units'}[::-1]"
        f"[:{settings.backward_ahead}])",
        "for number, unit in enumerate(units):",
        f"    behind = units[number + 1 : number + {settings.forward_ahead + 1}]",
        "    unit.set_modules_to_forward_prefetch(behind)",
        "    before = [each for each in units[:number] if each in gathered]"
        if kept
        else f"    before = units[max(0, number - {settings.backward_ahead}) : number]",
        "    unit.set_modules_to_backward_prefetch(before[::-1]"
        + (f"[:{settings.backward_ahead}])" if kept else ")"),
    ]
    if settings.max_input_buffers > 1:
        lines.append(f"model.set_reduce_scatter_max_input_buffers({settings.max_input_buffers})")
    if settings.separate_reduce_scatter_group:
        lines.append("model.set_separate_reduce_scatter_group()")
    return "\n".join(lines) + "\n"


def deepspeed_config(graph: CollectiveGraph, settings: Fsdp2Settings) -> str:
    """Return the part of a DeepSpeed configuration with the same sizes, as JSON.

    ZeRO-3 prefetches and reduces what has so many elements: those of a unit, times the units that are ahead.
    Most units are blocks; embeddings are larger, and need room only.
    """
    program = program_of(graph)
    units = sharded_units(program, 0, settings.blocks_per_unit)
    gathered = [_elements(graph, program, unit) for unit in units.gathers]
    reduced = [_elements(graph, program, unit) for unit in units.reductions]
    ahead = settings.backward_ahead if units.reductions else settings.forward_ahead
    unit = median_high(gathered)
    zero: dict[str, object] = {
        "stage": 3,
        "overlap_comm": True,
        "stage3_prefetch_bucket_size": unit * ahead,
        "stage3_max_live_parameters": max(gathered) + unit * ahead,
    }
    if reduced:
        zero["reduce_bucket_size"] = median_high(reduced)
    return json.dumps({"zero_optimization": zero})


def megatron_arguments(graph: CollectiveGraph, settings: Fsdp2Settings) -> str:
    """Return Megatron-LM's arguments for its own FSDP: it prefetches what has so many elements."""
    program = program_of(graph)
    units = sharded_units(program, 0, settings.blocks_per_unit)
    unit = median_high(_elements(graph, program, unit) for unit in units.gathers)
    ahead = settings.backward_ahead if units.reductions else settings.forward_ahead
    return (
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --overlap-param-gather "
        f"--overlap-grad-reduce --suggested-communication-unit-size {unit * ahead}"
    )


def _elements(graph: CollectiveGraph, program: Program, unit: tuple[int, ...]) -> int:
    keys = bucket_keys(graph)
    total = 0
    for node in unit:
        dtype = keys[program.key[node]][2]
        size = max(int(program.input_bytes[node]), int(program.output_bytes[node]))
        total += size // (_UNNAMED_BYTES if dtype is None else ELEMENT_BYTES[dtype])
    return total
