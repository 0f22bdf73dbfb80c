"""``pace what-if``: grids of simulations, as a table, JSON, CSV, a chart or a page."""

import json
import sys
from typing import Annotated, Any

import typer

from pace.cli.graphs.what_if import report_graph
from pace.cli.what_if_table import show_what_if
from pace.counted import counted
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import For
from pace.documents.profile import Profile
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.kinds import load_problem
from pace.terminal.console import (
    JOB,
    NETWORK,
    ApiKeyOption,
    CsvOption,
    HtmlOption,
    JsonOption,
    PlotOption,
    ProfileOrGraphArgument,
    ServiceOption,
    TimeoutOption,
    progress_bar,
    refuse_unknown_ending,
)
from pace.terminal.kind_options import kind_for, refuse_others, with_options_of
from pace.terminal.number_lists import read_numbers, read_whole_numbers
from pace.terminal.reporting import reported, tell_slowdown, warn_if_misleading, warn_of_the_cost
from pace.terminal.service_connection import connect
from pace.whatif import Grid, WhatIf, estimate_s
from pace.whatif.graphs import GraphGrid
from pace.whatif.grid import PolicyGrid

LONG_S = 3600.0


def _profiled(what: str, panel: str) -> Any:
    return typer.Option(help=what, show_default="as profiled", rich_help_panel=panel)


_ON_NETWORKS: tuple[Exchange, ...] = ("allreduce", "sharded")
_GRIDS: dict[tuple[Exchange, ...], type[PolicyGrid]] = {
    _ON_NETWORKS: Grid,
    ("graph",): GraphGrid,
}


def _axes() -> dict[str, For]:
    """Return which exchanges have an option that is a field of a grid: those of all grids with this field."""
    names = dict.fromkeys(name for grid in _GRIDS.values() for name in grid.model_fields)
    return {
        name: For(
            tuple(
                exchange
                for exchanges, grid in _GRIDS.items()
                if name in grid.model_fields
                for exchange in exchanges
            )
        )
        for name in names
    }


@with_options_of(
    own=_axes()
    | dict.fromkeys(
        ("target_efficiency", "workers_per_node", "intra_gbps", "processes", "html"), For(_ON_NETWORKS)
    )
    | dict.fromkeys(("service", "api_key", "timeout_s", "plot"), For((*_ON_NETWORKS, "graph"))),
    as_measured=False,
)
def what_if(
    ctx: typer.Context,
    profile: ProfileOrGraphArgument,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to simulate, one of those named below; repeat the option for several.",
            show_default="fifo, horovod, ddp, bytescheduler, pace; for a graph fsdp2, inductor, pace",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Policy with which the others are compared: a speed-up of 1 is as fast as this one.",
            show_default="ddp if it is simulated, else the first policy",
        ),
    ] = None,
    target_efficiency: Annotated[
        float | None,
        typer.Option(
            help="Find the bandwidth at which each policy reaches this scaling efficiency, for example 0.9.",
            show_default="not computed",
        ),
    ] = None,
    workers: Annotated[str | None, _profiled("Numbers of workers, for example 8,16,32 or 1-8.", JOB)] = None,
    batch: Annotated[
        str | None, _profiled("Samples per worker and iteration, for example 16,32,64.", JOB)
    ] = None,
    compute_speedup: Annotated[
        str | None, _profiled("Factors by which compute is faster, for example 1,2,4.", JOB)
    ] = None,
    compression: Annotated[
        str | None, _profiled("Factors by which gradients are compressed, for example 1,2,10.", JOB)
    ] = None,
    bandwidth_gbps: Annotated[
        str | None,
        _profiled("Link bandwidths in Gbit/s, for example 1,5,10 or 1:25:1 (from:to:step).", NETWORK),
    ] = None,
    latency_s: Annotated[
        str | None, _profiled("Latencies of one message in seconds, for example 1e-5,5e-5.", NETWORK)
    ] = None,
    algorithm: Annotated[
        str | None,
        _profiled(
            "All-reduce algorithms, separated by commas: ring, tree, halving-doubling, two-level.", NETWORK
        ),
    ] = None,
    workers_per_node: Annotated[
        int | None,
        typer.Option(
            help="With --algorithm two-level: number of workers in one node.",
            show_default="none",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    intra_gbps: Annotated[
        float | None,
        typer.Option(
            help="With --algorithm two-level: bandwidth inside a node, in Gbit/s.",
            show_default="none",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    bandwidth_factor: Annotated[
        str | None,
        typer.Option(
            help="Factors that multiply all bandwidths, for example 0.5,1,2.",
            show_default="1",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Numbers of ranks that parameters are sharded over, for example 8,16,32.",
            show_default="as in the graph",
            rich_help_panel=JOB,
        ),
    ] = None,
    memory_gb: Annotated[
        str | None,
        typer.Option(
            help="Memory budgets in GB (10^9 bytes), for example 38,40,42.",
            show_default="no limit",
            rich_help_panel=JOB,
        ),
    ] = None,
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
) -> None:
    """Predict iteration time and speed-up of a job for other policies, networks and scales.

    Every combination of the given values is simulated. Values that are not given stay as profiled.
    For parameter servers, see `pace servers what-if`.
    """
    with reported():
        refuse_unknown_ending(plot)
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both print to stdout: give only one of them")
        loaded = load_problem(profile)
        refuse_others(ctx, kind_for(ctx.command, loaded, ctx.params))
        if isinstance(loaded, CollectiveGraph):
            chosen: dict[str, Any] = {"policies": tuple(policy)} if policy else {}
            if bandwidth_factor is not None:
                chosen["bandwidth_factor"] = read_numbers("--bandwidth-factor", bandwidth_factor)
            report_graph(
                loaded,
                GraphGrid(
                    ranks=read_whole_numbers("--ranks", ranks),
                    memory_gb=read_numbers("--memory-gb", memory_gb),
                    **chosen,
                ),
                service,
                api_key,
                timeout_s,
                as_json=as_json,
                as_csv=as_csv,
                plot=plot,
            )
            return
        given: dict[str, Any] = {"policies": tuple(policy)} if policy else {}
        grid = Grid(
            bandwidth_gbps=read_numbers("--bandwidth-gbps", bandwidth_gbps),
            workers=read_whole_numbers("--workers", workers),
            algorithm=tuple((algorithm or "").replace(" ", "").split(",")) if algorithm else (),
            latency_s=read_numbers("--latency-s", latency_s),
            compute_speedup=read_numbers("--compute-speedup", compute_speedup),
            batch=read_numbers("--batch", batch),
            compression=read_numbers("--compression", compression),
            baseline=baseline,
            target_efficiency=target_efficiency,
            workers_per_node=workers_per_node,
            intra_gbps=intra_gbps,
            **given,
        )
        warn_if_misleading(loaded)
        tell_slowdown(loaded)
        warn_of_the_cost(loaded)
        _say_what_is_assumed(loaded, grid)
        if service is None:
            _agree(estimate_s(loaded, grid, processes=processes), grid, yes=yes)
            result = _run(loaded, grid, processes)
        else:
            result = _ask(loaded, grid, service, api_key, timeout_s)
        if plot is not None:
            from pace.view.what_if_charts import plot as draw

            draw(result, plot)
        if html is not None:
            from pace.view.what_if_page import to_html

            html.write_text(to_html(result), encoding="utf-8")
    if as_json:
        json.dump(result.to_document(), sys.stdout)
        sys.stdout.write("\n")
    elif as_csv:
        sys.stdout.write(result.to_csv())
    else:
        show_what_if(result)


def _say_what_is_assumed(profile: Profile, grid: Grid) -> None:
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


def _agree(seconds: float, grid: Grid, *, yes: bool) -> None:
    if yes or seconds <= LONG_S:
        return
    estimate = f"{counted(grid.num_cells, 'simulation')} would take about {seconds / 3600:.1f} hours"
    if not stdin_is_a_terminal():
        raise InvalidOptions(f"{estimate}: give fewer values, or --yes to start anyway")
    if not typer.confirm(f"{estimate}. Go on?", err=True):
        raise typer.Exit(2)


def _ask(profile: Profile, grid: Grid, url: str, api_key: str | None, timeout_s: float) -> WhatIf:
    with connect(url, api_key, timeout_s) as client, progress_bar() as bar:
        task = bar.add_task("cells", total=grid.num_cells)
        return client.what_if(profile, grid, progress=lambda done: bar.advance(task, done))


def _run(profile: Profile, grid: Grid, processes: int | None) -> WhatIf:
    from pace.whatif import what_if as run

    with progress_bar() as bar:
        task = bar.add_task("cells", total=grid.num_cells)
        return run(profile, grid, processes=processes, progress=lambda done: bar.advance(task, done))
