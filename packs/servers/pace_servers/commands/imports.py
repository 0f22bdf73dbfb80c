"""``pace import tf-run-metadata`` and ``pace import profile``: steps documents, for ``pace predict``."""

from pathlib import Path
from typing import Annotated

import typer

from pace.counted import counted
from pace.documents.steps import StepsDocument
from pace.errors import InvalidOptions
from pace.terminal.command_line import CommandLine, file_argument, output_option
from pace.terminal.console import ProfileArgument
from pace.terminal.reporting import reported

app = CommandLine()

StepsOutput = Annotated[
    Path, output_option("Write the steps document to this file (JSON).", "--output", "-o")
]
LinkRate = "Bandwidth of each link in Gbit/s"
Batch = Annotated[float, typer.Option(help="Samples per worker and step.")]


@app.command(
    "tf-run-metadata",
    epilog="Example: pace import tf-run-metadata trace.json --bandwidth-gbps 10 --batch 32 -o steps.json",
)
def tf_run_metadata(
    files: Annotated[
        list[Path],
        file_argument("RunMetadata of traced steps (JSON): each file has one step or a list of steps."),
    ],
    output: StepsOutput,
    bandwidth_gbps: Annotated[
        float | None,
        typer.Option(help=f"{LinkRate}, as measured.", show_default="estimated from the recorded transfers"),
    ] = None,
    batch: Batch = 1.0,
    name: Annotated[
        str | None, typer.Option(help="Name of the steps document.", show_default="the file's name")
    ] = None,
) -> None:
    """Convert TensorFlow RunMetadata of training with parameter servers to a steps document."""
    from pace_servers.tf_run_metadata import read_tf_run_metadata

    with reported():
        rate = None if bandwidth_gbps is None else _rate(bandwidth_gbps)
        document = read_tf_run_metadata(files, bytes_per_s=rate, batch=batch, name=name)
        _write_steps(document, output, f", {document.metadata['steps_dropped']} dropped")


@app.command("profile", epilog="Example: pace import profile profile.json --bandwidth-gbps 10 -o steps.json")
def profile_steps(
    profile: ProfileArgument,
    output: StepsOutput,
    bandwidth_gbps: Annotated[float, typer.Option(help=f"{LinkRate}.")],
    servers: Annotated[int, typer.Option(help="Number of parameter servers that hold the parameters.")] = 1,
    batch: Batch = 1.0,
    steps: Annotated[int, typer.Option(help="Number of steps to generate.")] = 1,
    jitter: Annotated[
        float,
        typer.Option(
            help="Standard deviation of op durations, relative to their mean, for ops without one in the "
            "profile."
        ),
    ] = 0.0,
) -> None:
    """Convert a PACE profile to a steps document: training with parameter servers, for `pace predict`."""
    from pace.documents.profile import load_profile
    from pace_servers.throughput import steps_from_profile

    with reported():
        document = steps_from_profile(
            load_profile(profile),
            bytes_per_s=_rate(bandwidth_gbps),
            servers=servers,
            batch=batch,
            count=steps,
            jitter=jitter,
        )
        _write_steps(document, output)


def _write_steps(document: StepsDocument, output: Path, note: str = "") -> None:
    output.write_bytes(document.to_json())
    typer.echo(
        f"{output}: {counted(len(document.ops), 'op')}, {counted(len(document.steps), 'step')}{note}",
        err=True,
    )


def _rate(gbps: float) -> float:
    if not 0 < gbps < float("inf"):
        raise InvalidOptions(f"--bandwidth-gbps {gbps:g}: expected a number above 0, in Gbit/s")
    return gbps * 1e9 / 8
