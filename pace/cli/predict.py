"""``pace predict`` and ``pace fit-overhead``: how many workers are worth having."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pace.documents.base import explain
from pace.documents.throughput.fleet import Fleet
from pace.documents.throughput.prediction import PredictionOptions, ThroughputPrediction
from pace.documents.throughput.steps import load_steps
from pace.errors import InvalidOptions
from pace.terminal.console import ApiKeyOption, JsonOption, make_console, make_table
from pace.terminal.reporting import reported

MOST_COUNTS = 10_000


def predict(
    steps: Annotated[
        Path, typer.Argument(help="A steps document.", exists=True, dir_okay=False, readable=True)
    ],
    workers: Annotated[str, typer.Option(help="How many: 1-8, or 1,2,4,8.")] = "1-8",
    servers: Annotated[str | None, typer.Option(help="How many; as recorded by default.")] = None,
    bandwidth_gbps: Annotated[str | None, typer.Option(help="Of the links: 1,5,10; as recorded.")] = None,
    discipline: Annotated[
        str | None,
        typer.Option(help="fifo, window, first-service-first, adaptive, tic, reverse or random."),
    ] = None,
    window_bytes: Annotated[int | None, typer.Option(help="Of a stream, for window.")] = None,
    share_spread: Annotated[
        float | None, typer.Option(help="How unequally transfers share a link; 0.02 is a good network's.")
    ] = None,
    share_spread_bytes: Annotated[
        int | None,
        typer.Option(help="The transfers it was measured with: others vary by the root of their size."),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option(help="JSON: how workers differ.", exists=True, dir_okay=False)
    ] = None,
    num_steps: Annotated[int, typer.Option("--steps", help="Simulated for each worker.")] = 400,
    skip: Annotated[int, typer.Option(help="How many of them come before measuring.")] = 50,
    seeds: Annotated[int, typer.Option(help="How many simulations of each scale.")] = 5,
    baselines: Annotated[bool, typer.Option(help="Show coarser models beside it.")] = True,
    advice: Annotated[bool, typer.Option(help="Find out what single changes are worth.")] = True,
    service: Annotated[
        str | None, typer.Option(help="Address of a service that is to simulate instead of this machine.")
    ] = None,
    api_key: ApiKeyOption = None,
    timeout_s: Annotated[float, typer.Option(help="How long to wait for the service.")] = 600.0,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the points as CSV to stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the charts: PNG, SVG or PDF.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with charts and tables.")] = None,
) -> None:
    """Predict throughput of asynchronous training for other numbers of workers, servers and other links."""
    with reported():
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both want stdout: give one")
        options = _options(
            {
                "workers": _counts("--workers", workers),
                "servers": _counts("--servers", servers),
                "bandwidth_gbps": _rates(bandwidth_gbps),
                "discipline": discipline,
                "window_bytes": window_bytes,
                "share_spread": share_spread,
                "share_spread_bytes": share_spread_bytes,
                "fleet": _fleet(fleet),
                "steps": num_steps,
                "skip": skip,
                "seeds": seeds,
                "advice": advice,
            }
        )
        document = load_steps(steps)
        with _bar() as bar:
            task = bar.add_task("scales", total=options.num_points)
            if service is None:
                from pace.throughput import predict as run

                result = run(document, options, progress=lambda done: bar.advance(task, done))
            else:
                from pace.client import Client

                with Client(service, api_key=api_key, timeout_s=timeout_s) as client:
                    result = client.predict(document, options, progress=lambda done: bar.advance(task, done))
        if plot is not None:
            from pace.view.prediction_charts import plot_prediction

            plot_prediction(result, plot)
        if html is not None:
            from pace.view.prediction_charts import prediction_page

            html.write_text(prediction_page(result), encoding="utf-8")
    if as_json:
        typer.echo(result.model_dump_json())
    elif as_csv:
        sys.stdout.write(result.to_csv())
    else:
        _show(result, baselines=baselines)


def fit_overhead(
    table: Annotated[Path, typer.Argument(help="CSV: bytes and seconds.", exists=True, dir_okay=False)],
    as_json: JsonOption = False,
) -> None:
    """Fit what a receiver computes for each transfer, from measured times after the last packet."""
    from pace.throughput.overhead import read_overhead_csv

    with reported():
        fitted = read_overhead_csv(table)
    if as_json:
        typer.echo(fitted.model_dump_json())
    else:
        typer.echo(f"{fitted.seconds_per_byte:.4g} s a byte and {fitted.seconds:.4g} s a transfer")


def _options(given: dict[str, Any]) -> PredictionOptions:
    try:
        return PredictionOptions.model_validate(given)
    except ValidationError as error:
        raise InvalidOptions(explain(error)) from None


def _fleet(path: Path | None) -> Fleet:
    if path is None:
        return Fleet()
    try:
        return Fleet.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InvalidOptions(f"{path}: {explain(error)}") from None


def _counts(option: str, text: str | None) -> tuple[int, ...]:
    """Read ``1-8`` and ``1,2,4``."""
    counts: list[int] = []
    for part in text.split(",") if text is not None else ():
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise InvalidOptions(f'{option} "{text}": expected counts as 1-8 or 1,2,4')
        if int(last or first) - int(first) >= MOST_COUNTS:
            raise InvalidOptions(f"{option} {part}: more than {MOST_COUNTS:,} numbers")
        counts += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(counts))


def _rates(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise InvalidOptions(f'--bandwidth-gbps "{text}": expected numbers as 1,5,10') from None


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show(result: ThroughputPrediction, *, baselines: bool) -> None:
    console = make_console(width=160)
    headings = ["workers", "servers", "Gb/s", f"{result.unit}/s", "5-95 %", "busiest", "bottleneck", "stale"]
    if baselines:
        headings += ["Cynthia", "network", "bound"]
    table = make_table(*headings, left=("bottleneck",))
    for point in result.points:
        busiest = max((link.utilization for link in point.links), default=0.0)
        row = [
            str(point.workers),
            f"{point.servers}{'*' if point.extrapolated else ''}",
            f"{point.bandwidth_gbps:.4g}",
            f"{point.throughput:.5g}",
            f"{point.low:.4g}-{point.high:.4g}",
            f"{busiest * 100:.0f} %",
            point.bottleneck,
            f"{point.mean_staleness:.2f}",
        ]
        if baselines:
            coarse = point.coarse
            row += [f"{value:.4g}" for value in (coarse.cynthia, coarse.closed_network, coarse.bound)]
        table.add_row(*row)
    console.print(table)
    for curve in result.curves:
        where = f"{curve.servers} servers, {curve.bandwidth_gbps:.4g} Gb/s"
        knee = "no knee yet" if curve.knee_workers is None else f"knee at {curve.knee_workers} workers"
        console.print(f"{where}: {knee}", highlight=False)
        for better in curve.improvements:
            console.print(f"  {better.change}: {better.gain * 100:+.1f} %", highlight=False)
    if result.trusted == "neither":
        console.print(
            "Rely on none of these columns: the link's rate is not what was recorded.", highlight=False
        )
    if result.trusted == "closed_network":
        console.print("Rely on the closed network here, not on the simulation.", highlight=False)
    for note in result.notes:
        console.print(f"Note: {note}", highlight=False)
