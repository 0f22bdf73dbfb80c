"""``pace model``: profiles computed from layer shapes."""

from pathlib import Path
from typing import Annotated

import typer

from pace.models import NAMES, build
from pace.terminal.console import question_tflops, write_profile
from pace.terminal.reporting import reported


def _list_names(wanted: bool) -> None:
    if wanted:
        for name in NAMES:
            typer.echo(name)
        raise typer.Exit


def model(
    name: Annotated[str, typer.Argument(help=f"An architecture: {', '.join(NAMES)}.")],
    device_tflops: Annotated[float, typer.Option(help="Rate of the device in TFLOP/s.")],
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")],
    workers: Annotated[int, typer.Option(help="Number of workers.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the profile here.")],
    _list: Annotated[
        bool, typer.Option("--list", callback=_list_names, is_eager=True, help="Print the architectures.")
    ] = False,
) -> None:
    """Compute a profile from a model's layer shapes; nothing is measured."""
    with reported():
        question_tflops(device_tflops)
        profile = build(name, device_tflops=device_tflops, batch=batch, workers=workers)
        write_profile(profile, output, note=", computed, not measured")
