"""Options that both studies have, and what is refused before anything is measured."""

import argparse

from benchmarks.harness.conditions import StudyParser


def add_workers(parser: StudyParser, *, workers: int, step_s: float, megabytes: float, of: str) -> None:
    """Add the options of workers, with these defaults.

    Parameters
    ----------
    of
        What has so many megabytes.
    """
    parser.add_number("--workers", workers, "number of workers, at least 2")
    parser.add_number("--step-s", step_s, "seconds of compute of a step")
    parser.add_number("--megabytes", megabytes, f"size of the parameters of {of} in MB")


def read_options(parser: StudyParser) -> argparse.Namespace:
    """Return the options; the command ends with one line where a number cannot be measured with."""
    arguments = parser.parse_args()
    for name, value in vars(arguments).items():
        least = {"workers": 2, "delay": 0, "seed": 0}.get(name)
        option = f"--{name.replace('_', '-')} {value}"
        if least is not None and value < least:
            parser.error(f"{option}: expected {least} or more")
        if least is None and isinstance(value, int | float) and not value > 0:
            parser.error(f"{option}: expected a number above 0")
    return arguments
