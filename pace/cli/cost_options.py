"""Options that give the cost of an all-reduce to a command, and the cost that they give."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pace.documents.base import explain, read_file
from pace.documents.collective_costs import AllReduce, RingAllReduce
from pace.documents.options import NETWORK
from pace.errors import InvalidOptions
from pace.terminal.command_line import file_option
from pace.whatif.grid import MOST

Cost = Annotated[
    Path | None,
    file_option(
        "All-reduce cost (JSON), as `pace fit -o` writes it.",
        show_default="the file's own cost, if it has one",
        rich_help_panel=NETWORK,
    ),
]
Bandwidth = Annotated[
    float | None,
    typer.Option(
        help="Instead of --cost: link bandwidth of a ring all-reduce, in Gbit/s.",
        show_default="none",
        rich_help_panel=NETWORK,
    ),
]
Latency = Annotated[
    float,
    typer.Option(
        help="With --bandwidth-gbps: latency of one message of the ring, in seconds.", rich_help_panel=NETWORK
    ),
]


def given_cost(path: Path | None, bandwidth_gbps: float | None, latency_s: float) -> AllReduce | None:
    """Return the cost that the options of a command give; None if they give none."""
    if path is not None and bandwidth_gbps is not None:
        raise InvalidOptions(
            "--cost and --bandwidth-gbps both give the all-reduce cost: give only one of them"
        )
    if path is not None:
        adapter: TypeAdapter[AllReduce] = TypeAdapter(AllReduce)
        content = read_file(path, InvalidOptions)
        if b'"ops"' in content and b'"gradients"' in content:
            raise InvalidOptions(
                f"--cost {path}: expected a cost as `pace fit -o` writes it, not a profile. "
                'To use the cost of a profile, write the value of its "allreduce" to a file'
            )
        try:
            return adapter.validate_json(content)
        except ValidationError as error:
            raise InvalidOptions(f"{path}: {explain(error)}") from None
    if bandwidth_gbps is not None:
        if not 0 < bandwidth_gbps <= MOST or not 0 <= latency_s <= MOST:
            raise InvalidOptions(
                f"--bandwidth-gbps {bandwidth_gbps:g} --latency-s {latency_s:g}: expected a bandwidth above "
                f"0 and a latency of at least 0, both at most {MOST:g}"
            )
        return RingAllReduce(bandwidth_bytes_per_s=bandwidth_gbps * 1e9 / 8, latency_s=latency_s)
    return None


def needed_cost(allreduce: AllReduce | None) -> AllReduce:
    """Return the cost that a command cannot do without."""
    if allreduce is None:
        raise InvalidOptions("the file holds no all-reduce cost: give --cost FILE or --bandwidth-gbps NUMBER")
    return allreduce
