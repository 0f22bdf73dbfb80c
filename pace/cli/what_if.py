"""``pace what-if``: grids of simulations, as a table, JSON, CSV, a chart or a page."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pace.cli.servers.what_if import report_servers
from pace.documents.profile import Profile, load_profile
from pace.errors import InvalidOptions
from pace.terminal.console import (
    ApiKeyOption,
    ColocatedOption,
    JsonOption,
    ProfileArgument,
    make_console,
    make_table,
    refuse_unknown_ending,
)
from pace.terminal.reporting import reported, tell_slowdown, warn_if_misleading, warn_of_the_cost
from pace.whatif import Grid, WhatIf, estimate_s
from pace.whatif.scenario import TwoLevel
from pace.whatif.servers import ServerGrid

LONG_S = 3600.0
ANSWERS_WITHIN_S = 15.0
MOST_VALUES = 100_000
SHOWN_POINTS = 60


def what_if(
    profile: ProfileArgument,
    bandwidth_gbps: Annotated[
        str | None, typer.Option(help="Of one link: 1,5,10 or 1:25:1 (from:to:step); the same below.")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="How many train together.")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Of the all-reduce: ring,tree,halving-doubling,two-level.")
    ] = None,
    latency_s: Annotated[str | None, typer.Option(help="Of one message, in seconds.")] = None,
    compute_speedup: Annotated[str | None, typer.Option(help="How many times as fast ops run.")] = None,
    batch: Annotated[str | None, typer.Option(help="Samples on each worker.")] = None,
    compression: Annotated[str | None, typer.Option(help="How many times smaller gradients are.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="A policy; repeat it for several.")] = None,
    baseline: Annotated[str | None, typer.Option(help="The policy that speed-ups are against.")] = None,
    target_efficiency: Annotated[
        float | None, typer.Option(help="Find the bandwidth at which this scaling efficiency is reached.")
    ] = None,
    workers_per_node: Annotated[int | None, typer.Option(help="For two-level.")] = None,
    intra_gbps: Annotated[float | None, typer.Option(help="Bandwidth inside a node, for two-level.")] = None,
    processes: Annotated[int | None, typer.Option(help="How many work; one a processor by default.")] = None,
    service: Annotated[
        str | None, typer.Option(help="Address of a service that is to simulate instead of this machine.")
    ] = None,
    api_key: ApiKeyOption = None,
    timeout_s: Annotated[float, typer.Option(help="How long to wait for the service.")] = 600.0,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before a grid of over an hour.")
    ] = False,
    servers: Annotated[
        str | None, typer.Option(help="Parameter servers instead of all-reduce: 1,2,4,8.")
    ] = None,
    colocated: ColocatedOption = False,
    consistency: Annotated[
        str | None, typer.Option(help="With --servers: sync,async or windows of lead, 0,3.")
    ] = None,
    jitter: Annotated[float, typer.Option(help="With --servers: relative spread of op durations.")] = 0.0,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the cells as CSV to stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the charts: PNG, SVG or PDF.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with charts and tables.")] = None,
) -> None:
    """Ask what a job would gain: from which policy, on which network, at which scale."""
    with reported():
        refuse_unknown_ending(plot)
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both want stdout: give one")
        if servers is not None:
            others = (algorithm, latency_s, compute_speedup, batch, compression, baseline, target_efficiency)
            if any(other is not None for other in (*others, workers_per_node, service, plot, html)):
                raise InvalidOptions(
                    "--servers goes with --bandwidth-gbps, --workers, --colocated, --consistency, --jitter, "
                    "--policy, --json and --csv"
                )
            named: dict[str, Any] = {"policies": tuple(policy)} if policy else {}
            if consistency is not None:
                named["consistency"] = tuple(consistency.replace(" ", "").split(","))
            report_servers(
                load_profile(profile),
                ServerGrid(
                    servers=_whole("--servers", servers),
                    colocated=colocated,
                    bandwidth_gbps=_numbers("--bandwidth-gbps", bandwidth_gbps),
                    workers=_whole("--workers", workers),
                    jitter=jitter,
                    **named,
                ),
                as_json=as_json,
                as_csv=as_csv,
            )
            return
        if colocated or consistency is not None or jitter:
            raise InvalidOptions("--colocated, --consistency and --jitter belong to --servers")
        two_level = None
        if workers_per_node is not None or intra_gbps is not None:
            if workers_per_node is None or intra_gbps is None:
                raise InvalidOptions("two-level needs both --workers-per-node and --intra-gbps")
            two_level = TwoLevel(workers_per_node=workers_per_node, intra_gbps=intra_gbps)
        given: dict[str, Any] = {"policies": tuple(policy)} if policy else {}
        grid = Grid(
            bandwidth_gbps=_numbers("--bandwidth-gbps", bandwidth_gbps),
            workers=_whole("--workers", workers),
            algorithm=tuple((algorithm or "").replace(" ", "").split(",")) if algorithm else (),  # type: ignore[arg-type]  # the grid refuses others
            latency_s=_numbers("--latency-s", latency_s),
            compute_speedup=_numbers("--compute-speedup", compute_speedup),
            batch=_numbers("--batch", batch),
            compression=_numbers("--compression", compression),
            baseline=baseline,
            two_level=two_level,
            **given,
        )
        loaded = load_profile(profile)
        warn_if_misleading(loaded)
        tell_slowdown(loaded)
        warn_of_the_cost(loaded)
        _say_what_is_assumed(loaded, grid)
        if processes is not None and processes < 1:
            raise InvalidOptions(f"{processes} processes: expected at least 1")
        if service is None:
            _agree(estimate_s(loaded, grid, processes=processes), grid, yes=yes)
            result = _run(loaded, grid, processes, target_efficiency)
        else:
            result = _ask(loaded, grid, target_efficiency, service, api_key, timeout_s)
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
        _show(result)


def _say_what_is_assumed(profile: Profile, grid: Grid) -> None:
    if profile.allreduce.kind != "samples" or grid.algorithm:
        return
    if grid.bandwidth_gbps or grid.workers or grid.latency_s:
        typer.echo(
            "pace: the measured samples are scaled as a ring scales, the cost of the smallest messages as "
            "latency; --algorithm ring,tree,... prices a formula instead",
            err=True,
        )


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Read ``1,5,10`` and ``1:25:1``."""
    if text is None:
        return ()
    values: list[float] = []
    for part in text.split(","):
        pieces = part.strip().split(":")
        try:
            numbers = [float(piece) for piece in pieces]
        except ValueError:
            numbers = []
        if len(numbers) == 1:
            values += numbers
        elif len(numbers) == 3 and numbers[2] > 0 and numbers[0] <= numbers[1] < float("inf"):
            first, last, step = numbers
            count = (last - first) / step
            if not count < MOST_VALUES:
                raise InvalidOptions(f"{option} {part}: more than {MOST_VALUES:,} values")
            values += [round(first + step * at, 12) for at in range(int(count + 1e-9) + 1)]
        else:
            raise InvalidOptions(f'{option} "{text}": expected numbers as 1,5,10 or from:to:step as 1:25:1')
    return tuple(values)


def _whole(option: str, text: str | None) -> tuple[int, ...]:
    values = _numbers(option, text)
    for value in values:
        if not value.is_integer():
            raise InvalidOptions(f"{option}: {value:g} is no whole number")
    return tuple(int(value) for value in values)


def stdin_is_a_terminal() -> bool:
    """Return whether anybody can be asked."""
    return sys.stdin.isatty()


def _agree(seconds: float, grid: Grid, *, yes: bool) -> None:
    if yes or seconds <= LONG_S:
        return
    estimate = f"{grid.num_cells:,} cells would take about {seconds / 3600:.1f} hours"
    if not stdin_is_a_terminal():
        raise InvalidOptions(f"{estimate}: make the grid smaller, or give --yes")
    if not typer.confirm(f"{estimate}. Go on?", err=True):
        raise typer.Exit(2)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _ask(
    profile: Profile,
    grid: Grid,
    target_efficiency: float | None,
    url: str,
    api_key: str | None,
    timeout_s: float,
) -> WhatIf:
    from pace.client import Client
    from pace.errors import ServiceUnavailable

    # Waiting for a result takes as long as it takes; that nobody is there shows at once.
    with Client(url, timeout_s=min(timeout_s, ANSWERS_WITHIN_S)) as client:
        if not client.healthy():
            raise ServiceUnavailable(f"{url} cannot be reached: no service answers there")
    with Client(url, api_key=api_key, timeout_s=timeout_s) as client, _bar() as bar:
        task = bar.add_task("cells", total=grid.num_cells)
        return client.what_if(profile, grid, target_efficiency, progress=lambda done: bar.advance(task, done))


def _run(profile: Profile, grid: Grid, processes: int | None, target_efficiency: float | None) -> WhatIf:
    from dataclasses import replace

    from pace.whatif import what_if as run
    from pace.whatif.target import answer_all

    with _bar() as bar:
        task = bar.add_task("cells", total=grid.num_cells)
        result = run(profile, grid, processes=processes, progress=lambda done: bar.advance(task, done))
        if target_efficiency is not None:
            bar.add_task("bandwidths for the target", total=None)
            result = replace(result, answers=answer_all(profile, grid, target_efficiency))
    return result


def _show(result: WhatIf) -> None:
    from pace.view.what_if_charts import LABELS

    console = make_console(width=200)
    axes = result.grid.varied()
    against = result.grid.baseline_policy
    console.print(
        f"{result.profile.name}: {result.unit}/s, scaling efficiency, speed-up over {against}",
        highlight=False,
    )
    table = make_table(*(LABELS[axis] for axis in axes), *result.grid.policies)
    points = list(result.points())
    for cells in points[:SHOWN_POINTS]:
        fastest = min(cell.iteration_s for cell in cells)
        shown = [
            f"{cell.throughput:.5g}  {cell.scaling_efficiency * 100:3.0f} %  {cell.speedup:.2f}"
            for cell in cells
        ]
        marked = [
            f"[bold]{text}[/bold]" if cell.iteration_s == fastest else text
            for cell, text in zip(cells, shown, strict=True)
        ]
        values = (getattr(cells[0].scenario, axis) for axis in axes)
        table.add_row(*(f"{v:g}" if isinstance(v, float) else str(v) for v in values), *marked)
    console.print(table)
    if len(points) > SHOWN_POINTS:
        console.print(
            f"{len(points) - SHOWN_POINTS:,} more points: --csv or --json prints them", highlight=False
        )
    for answer in result.answers:
        place = ", ".join(
            f"{LABELS[axis]} {getattr(answer.scenario, axis)}" for axis in axes if axis != "bandwidth_gbps"
        )
        reached = "no bandwidth" if answer.bandwidth_gbps is None else f"{answer.bandwidth_gbps:.3g} Gb/s"
        wanted = f"{answer.policy} reaches {answer.target_efficiency * 100:g} % at {reached}"
        console.print(f"{place}: {wanted}" if place else wanted, highlight=False)
