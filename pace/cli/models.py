"""``pace model``: profiles computed from layer shapes."""

from pathlib import Path
from typing import Annotated

import typer

from pace.models import NAMES, build
from pace.models.catalog import architecture
from pace.terminal.command_line import output_option
from pace.terminal.console import make_console, make_table, question_tflops, write_profile
from pace.terminal.reporting import reported


def _list_architectures(wanted: bool) -> None:
    if wanted:
        table = make_table("name", "gradients", "parameters", "unit of --batch", left=("name",))
        for name in NAMES:
            counted = architecture(name)
            sizes = counted.parameters.values()
            table.add_row(name, str(len(sizes)), f"{sum(sizes):,}", counted.unit)
        make_console().print(table)
        raise typer.Exit


def model(
    name: Annotated[str, typer.Argument(help=f"Architecture to compute a profile of: {', '.join(NAMES)}.")],
    device_tflops: Annotated[
        float, typer.Option(help="Compute rate that the device reaches, in TFLOP/s, for example 15.")
    ],
    batch: Annotated[
        int, typer.Option(help="Number of images, or of a language model's tokens, per worker and iteration.")
    ],
    workers: Annotated[int, typer.Option(help="Number of workers that train together.")],
    output: Annotated[Path, output_option("Write the profile to this file (JSON).", "--output", "-o")],
    _list: Annotated[
        bool,
        typer.Option(
            "--list",
            callback=_list_architectures,
            is_eager=True,
            help="Print the architectures with their numbers of gradients and parameters, and exit.",
        ),
    ] = False,
) -> None:
    """Compute a profile from the layer shapes of a known model, without measuring anything."""
    with reported():
        question_tflops(device_tflops)
        profile = build(name, device_tflops=device_tflops, batch=batch, workers=workers)
        write_profile(profile, output, note=", computed, not measured")
