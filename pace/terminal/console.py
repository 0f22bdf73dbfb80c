"""What several commands share: options, tables, and how profiles are written to files."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pace.counted import counted
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.terminal.command_line import file_argument, file_option, output_option

MOST_TFLOPS = 1e5
CHART_ENDINGS = (".png", ".svg", ".pdf")

SERVICE, OUTPUT = "Service", "Output"

ProfileArgument = Annotated[
    Path,
    file_argument(
        "Profile of one training iteration (JSON), from `pace import`, `pace model` or a training job."
    ),
]
ProfileOrGraphArgument = Annotated[
    Path,
    file_argument(
        "Profile of one training iteration (JSON), from `pace import`, `pace model` or a training job; "
        "or a graph, from `pace import node-list` or `CollectivePlanner`."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document to stdout.", rich_help_panel=OUTPUT)
]
JitterOption = Annotated[
    float,
    typer.Option(
        help="Standard deviation of random op durations, relative to their mean; 0 for fixed durations."
    ),
]
ExecutionTraceOption = Annotated[
    Path | None,
    file_option(
        "PyTorch execution trace of the same step, for the sizes of gradients.",
        show_default="sizes from the trace itself",
    ),
]
ParametersOption = Annotated[
    Path | None,
    file_option(
        "Names and shapes of the model's parameters (JSON), for traces that hold no shapes.",
        show_default="shapes from the trace itself",
    ),
]
CsvOption = Annotated[
    bool, typer.Option("--csv", help="Print the results as CSV to stdout.", rich_help_panel=OUTPUT)
]
PlotOption = Annotated[
    Path | None,
    output_option(
        "Write charts to this file: .png, .svg or .pdf.", show_default="no charts", rich_help_panel=OUTPUT
    ),
]
HtmlOption = Annotated[
    Path | None,
    output_option(
        "Write a self-contained HTML page to this file.", show_default="no page", rich_help_panel=OUTPUT
    ),
]
ScheduleOutput = Annotated[
    Path | None,
    output_option(
        "Write the schedule to this file (JSON).",
        "--output",
        "-o",
        show_default="not written",
        rich_help_panel=OUTPUT,
    ),
]
PlanOutput = Annotated[
    Path | None,
    output_option(
        "Write the plan to this file (JSON).",
        "--output",
        "-o",
        show_default="not written",
        rich_help_panel=OUTPUT,
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        help="Address of a PACE service that computes the answer, for example http://127.0.0.1:8080.",
        show_default="compute on this machine",
        rich_help_panel=SERVICE,
    ),
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        envvar="PACE_API_KEY", help="API key for the service.", show_default="none", rich_help_panel=SERVICE
    ),
]
TimeoutOption = Annotated[
    float, typer.Option(help="Seconds to wait for the service's answer.", rich_help_panel=SERVICE)
]


def make_console(width: int = 120) -> Console:
    """Return a console on stdout; `width` characters wide if stdout is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def make_table(*headings: str, left: tuple[str, ...] = ()) -> Table:
    """Return an empty table without lines; columns are aligned right, except those named in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table


def progress_bar() -> Progress:
    """Return a bar on stderr that shows how many steps of a task are done; hidden if it is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def refuse_unknown_ending(plot: Path | None) -> None:
    """Refuse a chart whose file name has an unknown ending, before anything is computed."""
    if plot is not None and plot.suffix.lower() not in CHART_ENDINGS:
        raise InvalidOptions(f"--plot {plot}: expected a file name that ends in {', '.join(CHART_ENDINGS)}")


def question_tflops(device_tflops: float) -> None:
    """Refuse a rate that was probably given in operations per second."""
    if device_tflops > MOST_TFLOPS:
        raise InvalidOptions(
            f"--device-tflops {device_tflops:g}: expected at most {MOST_TFLOPS:g} TFLOP/s. "
            "For 15e12 operations per second, give 15"
        )


def write_profile(profile: Profile, output: Path, note: str = "") -> None:
    """Write a profile to a file, and say so on stderr."""
    output.write_bytes(profile.to_json())
    typer.echo(
        f"{output}: {counted(len(profile.ops), 'op')}, {counted(len(profile.gradients), 'gradient')}{note}",
        err=True,
    )
