"""The memory budget of a graph's plan, as an option of commands."""

from typing import Annotated

import typer

from pace.errors import InvalidOptions

MemoryOption = Annotated[
    float | None,
    typer.Option(help="Largest peak memory of a graph, in GB (10^9 bytes).", show_default="no limit"),
]


def budget_bytes(memory_gb: float | None) -> int | None:
    """Return a budget in bytes, and None for no limit; raises InvalidOptions."""
    if memory_gb is None:
        return None
    if not 1e-9 <= memory_gb < 1e9:
        raise InvalidOptions(f"--memory-gb {memory_gb:g}: give a positive number of GB below a billion")
    return int(memory_gb * 1e9)
