"""``pace check-order``: a proof that a job's collectives cannot hang, or which ranks wait for one another."""

from pathlib import Path
from typing import Annotated

import typer

from pace.documents.order.order_report import StreamRule
from pace.errors import InvalidOptions
from pace.terminal.command_line import file_argument
from pace.terminal.console import HtmlOption, JsonOption
from pace.terminal.reporting import WRONG, reported


def check_order(
    program: Annotated[
        list[Path],
        file_argument(
            "A job program (JSON), schedules or graphs; or one file for each rank: FX graphs, profiler "
            "traces, or dumps of PyTorch's flight recorder."
        ),
    ],
    streams: Annotated[
        StreamRule,
        typer.Option(
            help="How a device runs its streams: side-by-side (all at the same time), or launch-order (it "
            "starts operations as they are enqueued, as CUDA does with a single connection)."
        ),
    ] = "side-by-side",
    launch_slots: Annotated[
        int | None,
        typer.Option(
            help="Largest number of operations in a stream's queue; a thread that enqueues more waits.",
            show_default="no limit",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=RANKS of a process group, if the files do not list its ranks: 1=0,2 for ranks 0 and 2 "
            "of group 1; repeat the option for several.",
            show_default="as recorded",
        ),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prove that a job's collectives cannot hang, or show which ranks wait for one another.

    Exit code 1 if they can hang.
    """
    from pace.order.check_order import check_order as answer
    from pace.order.findings import text_lines
    from pace.view.order_page import order_page

    with reported():
        groups: dict[str, list[list[int]]] = {}
        for name, ranks in map(_ranks_of_group, group or ()):
            groups.setdefault(name, []).append(ranks)
        report = answer(program, streams=streams, launch_slots=launch_slots, groups=groups)
        if html is not None:
            html.write_text(order_page(report), encoding="utf-8")
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        for line in text_lines(report):
            typer.echo(line)
    if not report.cannot_hang:
        raise typer.Exit(WRONG)


def _ranks_of_group(text: str) -> tuple[str, list[int]]:
    name, _, ranks = text.rpartition("=")
    try:
        return name, [int(rank) for rank in ranks.split(",")]
    except ValueError:
        raise InvalidOptions(f"--group {text}: expected a name and ranks, for example 1=0,2") from None
