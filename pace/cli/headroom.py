"""``pace headroom``: how much faster a job could train, from its trace or its profile."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pace.cli.cost_options import Bandwidth, Cost, Latency, given_cost
from pace.terminal.command_line import file_argument
from pace.terminal.console import ExecutionTraceOption, HtmlOption, JsonOption, ParametersOption
from pace.terminal.reporting import reported, tell_slowdown


def headroom(
    source: Annotated[
        list[Path],
        file_argument(
            "PyTorch profiler traces, one for each rank; or a profile, or any other file that "
            "`pace import` reads."
        ),
    ],
    clip: Annotated[
        bool,
        typer.Option("--clip", help="Also estimate the gain if gradients are clipped by their global norm."),
    ] = False,
    execution_trace: ExecutionTraceOption = None,
    parameters: ParametersOption = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of workers that train together.", show_default="as recorded")
    ] = None,
    cost: Cost = None,
    bandwidth_gbps: Bandwidth = None,
    latency_s: Latency = 0.0,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate how much faster a job could train: with better DDP buckets, with PACE, and at best.

    Also shows where the time of an iteration goes, and what to do next.
    """
    from pace.formats.any_format import read_any
    from pace.formats.import_report import import_warnings
    from pace.view.headroom_page import headroom_page, text_lines
    from pace.view.step_timelines import step_timelines
    from pace.whatif.headroom import headroom as answer

    with reported():
        profile = read_any(
            source,
            execution_trace=execution_trace,
            parameters=parameters,
            workers=workers,
            allreduce=given_cost(cost, bandwidth_gbps, latency_s),
        )
        tell_slowdown(profile)
        made = answer(profile, clip=clip, warnings=tuple(import_warnings(profile)))
        if html is not None:
            html.write_text(headroom_page(made, step_timelines(profile)), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(made.to_document()))
        return

    for line in text_lines(made):
        typer.echo(line)
