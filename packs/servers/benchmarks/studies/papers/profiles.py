"""Profiles of the papers' models: computed from architectures, or from PipeDream's measured layers."""

import argparse
from collections.abc import Mapping

from pace import Profile, read_pipedream
from pace.documents.collective_costs import AffineAllReduce
from pace.models import build

DEVICE_TFLOPS = 8.0


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Add the option that names measured tables."""
    parser.add_argument(
        "--layers",
        action="append",
        default=[],
        metavar="MODEL=FILE",
        type=lambda text: tuple(text.split("=", 1)),
        help="table of a model's layers, measured by PipeDream (default: computed layers)",
    )


def profile_of(model: str, *, batch: int, workers: int, layers: Mapping[str, str]) -> Profile:
    """Return a model's window; `layers` has the files of models with measured tables."""
    if model in layers:
        cost = AffineAllReduce(latency_s=0.0, seconds_per_byte=1e-9)
        return read_pipedream(layers[model], workers=workers, allreduce=cost)
    return build(model, device_tflops=DEVICE_TFLOPS, batch=batch, workers=workers)
