"""Graphs of sharded training on the command line: the memory budget as an option, and settings of FSDP2."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pace.documents.graph.collective_graph import CollectiveGraph, load_graph
from pace.errors import InvalidOptions
from pace.terminal.console import make_console

MemoryOption = Annotated[
    float | None,
    typer.Option(help="Largest peak memory of a graph, in GB (10^9 bytes).", show_default="no limit"),
]


def report_fsdp2(
    graph: CollectiveGraph,
    other: Path | None,
    memory_bytes: int | None,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Choose settings of FSDP2, and print them as code and as parameters of other frameworks."""
    from pace.simulation.graph.framework_parameters import (
        code_to_paste,
        deepspeed_config,
        megatron_arguments,
    )
    from pace.simulation.graph.fsdp2_planner import plan_fsdp2

    passes = [graph] if other is None else [graph, load_graph(other)]
    settings = plan_fsdp2(passes, memory_bytes)
    if output is not None:
        output.write_bytes(settings.to_json())
    if as_json:
        sys.stdout.buffer.write(settings.to_json())
        return
    print_line = partial(make_console().print, highlight=False, soft_wrap=True, markup=False)
    for direction, seconds in (("forward ", settings.forward_s), ("backward", settings.backward_s)):
        if seconds is not None:
            print_line(f"{direction}  {seconds * 1e3:.3f} ms predicted")
    if settings.lower_bound_s is not None:
        print_line(f"bound     {settings.lower_bound_s * 1e3:.3f} ms: no plan of these passes is faster")
    if settings.kept_units:
        print_line(
            f"gathered  units {', '.join(map(str, settings.kept_units))} stay gathered for the backward pass"
        )
    elif not settings.reshard_after_forward:
        print_line("gathered  all units stay gathered for the backward pass")
    if settings.separate_reduce_scatter_group:
        print_line("groups    a separate process group for reduce-scatters")
    if settings.peak_bytes is not None:
        print_line(f"memory    {settings.peak_bytes / 1e9:.4g} GB at the peak")
    print_line(f"\nFSDP2, without PACE:\n\n{code_to_paste(settings)}")
    print_line(f"DeepSpeed: {deepspeed_config(passes[-1], settings)}")
    print_line(f"Megatron-LM: {megatron_arguments(passes[-1], settings)}")


def budget_bytes(memory_gb: float | None) -> int | None:
    """Return a budget in bytes, and None for no limit; raises InvalidOptions."""
    if memory_gb is None:
        return None
    if not 1e-9 <= memory_gb < 1e9:
        raise InvalidOptions(f"--memory-gb {memory_gb:g}: give a positive number of GB below a billion")
    return int(memory_gb * 1e9)
