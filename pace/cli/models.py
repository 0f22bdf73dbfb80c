"""``pace model``: profiles computed from layer shapes."""

from pathlib import Path
from typing import Annotated

import typer

from pace.models import NAMES, build
from pace.terminal.console import question_tflops, write_profile
from pace.terminal.reporting import reported, writable


def _list_names(wanted: bool) -> None:
    if wanted:
        for name in NAMES:
            typer.echo(name)
        raise typer.Exit


def model(
    name: Annotated[str, typer.Argument(help=f"Architecture to compute a profile of: {', '.join(NAMES)}.")],
    device_tflops: Annotated[
        float, typer.Option(help="Compute rate that the device reaches, in TFLOP/s, for example 15.")
    ],
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")],
    workers: Annotated[int, typer.Option(help="Number of workers that train together.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", callback=writable, help="Write the profile to this file (JSON).")
    ],
    _list: Annotated[
        bool,
        typer.Option(
            "--list",
            callback=_list_names,
            is_eager=True,
            help="Print the names of the architectures and exit.",
        ),
    ] = False,
) -> None:
    """Compute a profile from the layer shapes of a known model, without measuring anything."""
    with reported():
        question_tflops(device_tflops)
        profile = build(name, device_tflops=device_tflops, batch=batch, workers=workers)
        write_profile(profile, output, note=", computed, not measured")
