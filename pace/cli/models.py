"""``pace model``: profiles computed from layer shapes."""

from pathlib import Path
from typing import Annotated

import typer

from pace.cli.console import write_profile
from pace.cli.reporting import reported
from pace.models import NAMES, build


def model(
    name: Annotated[str, typer.Argument(help=f"An architecture: {', '.join(NAMES)}.")],
    device_tflops: Annotated[float, typer.Option(help="Rate of the device in TFLOP/s.")],
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")],
    workers: Annotated[int, typer.Option(help="Number of workers.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the profile here.")],
) -> None:
    """Compute a profile from a model's layer shapes; nothing is measured."""
    with reported():
        profile = build(name, device_tflops=device_tflops, batch=batch, workers=workers)
        write_profile(profile, output, note=", computed, not measured")
