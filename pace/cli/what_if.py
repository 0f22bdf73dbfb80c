"""``pace what-if``: grids of simulations, as a table, JSON, CSV, a chart or a page."""

import json
import sys
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import typer

from pace.counted import counted
from pace.documents.options import For
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.kinds import load_problem
from pace.kinds.kind import WhatIfTable
from pace.kinds.registry import kinds
from pace.terminal.console import (
    ApiKeyOption,
    CsvOption,
    HtmlOption,
    JsonOption,
    PlotOption,
    ProfileOrGraphArgument,
    ServiceOption,
    TimeoutOption,
    make_console,
    make_table,
    progress_bar,
    refuse_unknown_ending,
)
from pace.terminal.kind_options import fields_of, kind_for, refuse_others, with_options_of
from pace.terminal.reporting import (
    reported,
    tell_slowdown,
    warn_if_misleading,
    warn_of_the_cost,
    warn_of_unused,
)
from pace.terminal.service_connection import connect

LONG_S = 3600.0
SHOWN_POINTS = 60

_KINDS = tuple(kinds().values())[::-1]
_ON_NETWORKS = For(tuple(kind.name for kind in _KINDS if kind.shares_network))


@with_options_of(
    {kind.name: grid for kind in _KINDS if (grid := kind.grid()) is not None},
    flags={"policies": "--policy"},
    own={
        "processes": _ON_NETWORKS,
        "html": _ON_NETWORKS,
        "service": For(tuple(kind.name for kind in _KINDS if kind.answers_what_ifs)),
    },
    as_measured=False,
)
def what_if(
    ctx: typer.Context,
    profile: ProfileOrGraphArgument,
    processes: Annotated[
        int | None,
        typer.Option(help="Number of processes that simulate in parallel.", show_default="one per CPU"),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before a simulation that takes over an hour.")
    ] = False,
    service: ServiceOption = None,
    api_key: ApiKeyOption = None,
    timeout_s: TimeoutOption = 600.0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    plot: PlotOption = None,
    html: HtmlOption = None,
    **asked: Any,
) -> None:
    """Predict iteration time and speed-up of a job for other policies, networks and scales.

    Every combination of the given values is simulated. Values that are not given stay as profiled.
    """
    with reported():
        refuse_unknown_ending(plot)
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both print to stdout: give only one of them")
        loaded: Any = load_problem(profile)
        kind = kinds()[kind_for(ctx.command, loaded, ctx.params)]
        refuse_others(ctx, kind.name)
        model = kind.grid()
        assert model is not None
        grid: Any = model(**fields_of(model, asked))
        warn_of_unused(loaded, kind)
        tell_slowdown(loaded, kind)
        if isinstance(loaded, Profile):
            warn_if_misleading(loaded)
            warn_of_the_cost(loaded)
            _say_what_is_assumed(loaded, grid)
        if service is None:
            _agree(kind.what_if_s(loaded, grid, processes), grid.num_cells, yes=yes)
        with ExitStack() as stack:
            client = None if service is None else stack.enter_context(connect(service, api_key, timeout_s))
            bar = stack.enter_context(progress_bar())
            progress = partial(bar.advance, bar.add_task("cells", total=grid.num_cells))
            result: Any
            if client is None:
                result = kind.what_if(loaded, grid, processes=processes, progress=progress)
            else:
                result = client.what_if(loaded, grid, progress=progress)
        if plot is not None:
            kind.draw_what_if(result, plot)
        if html is not None:
            from pace.view.what_if_page import to_html

            html.write_text(to_html(result), encoding="utf-8")
    if as_json:
        json.dump(result.to_document(), sys.stdout)
        sys.stdout.write("\n")
    elif as_csv:
        sys.stdout.write(result.to_csv())
    else:
        _show(kind.what_if_table(result))


def _say_what_is_assumed(profile: Profile, grid: Any) -> None:
    if profile.allreduce.kind != "samples" or grid.algorithm:
        return
    if grid.bandwidth_gbps or grid.workers or grid.latency_s:
        typer.echo(
            "pace: the measured all-reduce cost is scaled like that of a ring, with the cost of the smallest "
            "messages as latency. To use a formula instead, give --algorithm",
            err=True,
        )


def stdin_is_a_terminal() -> bool:
    """Return whether a question on the terminal can be answered."""
    return sys.stdin.isatty()


def _agree(seconds: float, num_cells: int, *, yes: bool) -> None:
    if yes or seconds <= LONG_S:
        return
    estimate = f"{counted(num_cells, 'simulation')} would take about {seconds / 3600:.1f} hours"
    if not stdin_is_a_terminal():
        raise InvalidOptions(f"{estimate}: give fewer values, or --yes to start anyway")
    if not typer.confirm(f"{estimate}. Go on?", err=True):
        raise typer.Exit(2)


def _show(shown: WhatIfTable) -> None:
    console = make_console(width=200)
    console.print(shown.title, highlight=False)
    table = make_table(*shown.headings)
    for row in shown.rows[:SHOWN_POINTS]:
        table.add_row(*row)
    console.print(table)
    if len(shown.rows) > SHOWN_POINTS:
        console.print(
            f"{len(shown.rows) - SHOWN_POINTS:,} more points: --csv or --json prints them", highlight=False
        )
    for note in shown.notes:
        console.print(note, highlight=False)
