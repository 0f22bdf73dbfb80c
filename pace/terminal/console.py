"""What the commands share: arguments of one meaning, tables, and profiles written to files."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pace.documents.profile import Profile
from pace.errors import InvalidOptions

MOST_TFLOPS = 1e5
CHART_ENDINGS = (".png", ".svg", ".pdf")

ProfileArgument = Annotated[
    Path, typer.Argument(help="A profile document.", exists=True, dir_okay=False, readable=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
ServersOption = Annotated[int | None, typer.Option(help="How many parameter servers.")]
ColocatedOption = Annotated[
    bool, typer.Option("--colocated", help="The servers run on the workers' hosts, not on their own.")
]
ClusterOption = Annotated[
    Path | None, typer.Option(help="A cluster document, instead of --servers.", exists=True, dir_okay=False)
]
ApiKeyOption = Annotated[str | None, typer.Option(envvar="PACE_API_KEY", help="If the service wants one.")]


def make_console(width: int = 120) -> Console:
    """Return a console on stdout, `width` characters wide where that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def make_table(*headings: str, left: tuple[str, ...] = ()) -> Table:
    """Return an empty table without lines; columns are aligned right, except those named in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table


def refuse_unknown_ending(plot: Path | None) -> None:
    """Refuse a chart whose format its name does not tell, before anything is computed for it."""
    if plot is not None and plot.suffix.lower() not in CHART_ENDINGS:
        raise InvalidOptions(f"--plot {plot}: expected a name that ends in {', '.join(CHART_ENDINGS)}")


def question_tflops(device_tflops: float) -> None:
    """Refuse a rate that was meant in operations a second."""
    if device_tflops > MOST_TFLOPS:
        raise InvalidOptions(
            f"--device-tflops {device_tflops:g}: no device does so many TFLOP/s: "
            "give 15 for 15e12 operations a second"
        )


def write_profile(profile: Profile, output: Path, note: str = "") -> None:
    """Write a profile to a file, and say so on stderr."""
    output.write_bytes(profile.to_json())
    typer.echo(f"{output}: {len(profile.ops)} ops, {len(profile.gradients)} gradients{note}", err=True)
