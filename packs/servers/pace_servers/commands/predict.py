"""``pace predict`` and ``pace fit-overhead``: throughput at other scales."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from pace.counted import counted
from pace.documents.base import faults, read_file
from pace.documents.steps import load_steps
from pace.errors import InvalidOptions
from pace.terminal.command_line import CommandLine, file_argument, file_option
from pace.terminal.console import (
    OUTPUT,
    ApiKeyOption,
    CsvOption,
    HtmlOption,
    JsonOption,
    PlotOption,
    ServiceOption,
    TimeoutOption,
    make_console,
    make_table,
    progress_bar,
)
from pace.terminal.kind_options import fields_of, with_options_of
from pace.terminal.reporting import reported
from pace.terminal.service_connection import connect
from pace_servers.documents.fleet import Fleet
from pace_servers.documents.prediction import PredictionOptions, ThroughputPrediction

app = CommandLine()


@app.command(
    rich_help_panel="Plan and explore", epilog="Example: pace predict steps.json --workers 1-16 --servers 1,2"
)
@with_options_of(PredictionOptions)
def predict(
    recording: Annotated[
        Path,
        file_argument(
            "Steps of one worker with parameter servers (JSON), from `pace import tf-run-metadata` or "
            "`pace import profile`.",
            metavar="steps",
        ),
    ],
    fleet: Annotated[
        Path | None,
        file_option(
            "Fleet document (JSON): how workers differ from the recorded one.",
            show_default="all workers are like the recorded one",
        ),
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="Also print the predictions of simpler models.", rich_help_panel=OUTPUT)
    ] = True,
    service: ServiceOption = None,
    api_key: ApiKeyOption = None,
    timeout_s: TimeoutOption = 600.0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    plot: PlotOption = None,
    html: HtmlOption = None,
    **asked: Any,
) -> None:
    """Predict throughput of training with parameter servers for more workers, servers and bandwidths."""
    with reported():
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both print to stdout: give only one of them")
        options = PredictionOptions(fleet=_fleet(fleet), **fields_of(PredictionOptions, asked))
        document = load_steps(recording)
        with progress_bar() as bar:
            task = bar.add_task("scales", total=options.num_points)
            if service is None:
                from pace_servers.throughput import predict as run

                result = run(document, options, progress=lambda done: bar.advance(task, done))
            else:
                from pace_servers.service.client import ServersClient

                with connect(service, api_key, timeout_s, ServersClient) as client:
                    result = client.predict(document, options, progress=lambda done: bar.advance(task, done))
        if plot is not None:
            from pace_servers.prediction_charts import plot_prediction

            plot_prediction(result, plot)
        if html is not None:
            from pace_servers.prediction_charts import prediction_page

            html.write_text(prediction_page(result), encoding="utf-8")
    if as_json:
        typer.echo(result.model_dump_json())
    elif as_csv:
        sys.stdout.write(result.to_csv())
    else:
        _show(result, baselines=baselines)


@app.command(
    "fit-overhead", rich_help_panel="Profiles and costs", epilog="Example: pace fit-overhead transfers.csv"
)
def fit_overhead(
    table: Annotated[
        Path,
        file_argument(
            "CSV file with columns bytes and seconds: size of a transfer, and time from its last packet "
            "until the receiver has finished."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Fit the time that a receiver computes for each transfer, from measured transfers."""
    from pace_servers.throughput.recorded_steps import read_overhead_csv

    with reported():
        fitted = read_overhead_csv(table)
    if as_json:
        typer.echo(fitted.model_dump_json())
    else:
        typer.echo(f"{fitted.seconds_per_byte:.4g} s per byte and {fitted.seconds:.4g} s per transfer")


def _fleet(path: Path | None) -> Fleet:
    if path is None:
        return Fleet()
    document = read_file(path, InvalidOptions)
    try:
        return Fleet.model_validate_json(document)
    except ValidationError as error:
        raise InvalidOptions(f"{path}: {faults(Fleet, document, error)}") from None


def _show(result: ThroughputPrediction, *, baselines: bool) -> None:
    console = make_console(width=160)
    headings = [
        "workers",
        "servers",
        "Gbit/s",
        f"{result.unit}/s",
        "5-95 %",
        "busiest",
        "bottleneck",
        "stale",
    ]
    if baselines:
        headings += ["Cynthia", "closed network", "bound"]
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
        where = f"{counted(curve.servers, 'server')}, {curve.bandwidth_gbps:.4g} Gbit/s"
        knee = (
            "no knee yet"
            if curve.knee_workers is None
            else f"knee at {counted(curve.knee_workers, 'worker')}"
        )
        console.print(f"{where}: {knee}", highlight=False)
        if curve.dips:
            dips = ", ".join(map(str, curve.dips))
            console.print(
                f"  slower than their neighbors, as workers run in lock step: {dips} workers", highlight=False
            )
        if curve.at_workers is not None:
            console.print(f"  with {counted(curve.at_workers, 'worker')} now:", highlight=False)
        for better in curve.improvements:
            band = f"({better.low * 100:+.1f} to {better.high * 100:+.1f})"
            console.print(f"    {better.change}: {better.gain * 100:+.1f} % {band}", highlight=False)
    if result.trusted == "neither":
        console.print(
            "Do not rely on these predictions: the link's rate differs from the recorded one.",
            highlight=False,
        )
    if result.trusted == "closed_network":
        console.print("Rely on the column 'closed network' here, not on the simulation.", highlight=False)
    for note in result.notes:
        console.print(f"Note: {note}", highlight=False)
