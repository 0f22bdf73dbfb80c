"""``pace servers what-if``: compare numbers and places of parameter servers."""

import csv
import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pace.documents.options import JOB, NETWORK
from pace.documents.profile import load_profile
from pace.errors import InvalidOptions
from pace.terminal.console import (
    CsvOption,
    JitterOption,
    JsonOption,
    ProfileArgument,
    make_console,
    make_table,
)
from pace.terminal.number_lists import read_numbers, read_whole_numbers
from pace.terminal.reporting import reported
from pace_servers.commands.options import STALENESS_HELP, ColocatedOption
from pace_servers.what_if import ServerGrid, ServerWhatIf, what_if_servers


def what_if(
    profile: ProfileArgument,
    servers: Annotated[str, typer.Option(help="Numbers of parameter servers, for example 1,2,4.")] = "1",
    colocated: ColocatedOption = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to simulate; repeat the option for several.",
            show_default="fifo, bytescheduler, pace",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Numbers of workers, for example 8,16,32.", show_default="as profiled", rich_help_panel=JOB
        ),
    ] = None,
    bandwidth_gbps: Annotated[
        str | None,
        typer.Option(
            help="Link bandwidths in Gbit/s, for example 1,5,10.",
            show_default="as profiled",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    staleness: Annotated[
        str, typer.Option(help=f"{STALENESS_HELP} Several are separated by commas: sync,3,async.")
    ] = "sync",
    jitter: JitterOption = 0.0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Predict iteration times with other numbers of parameter servers, workers and links.

    Every combination of the given values is simulated, beside PACE's all-reduces on a ring of the same links.
    """
    with reported():
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both print to stdout: give only one of them")
        named: dict[str, Any] = {"policies": tuple(policy)} if policy else {}
        grid = ServerGrid(
            servers=read_whole_numbers("--servers", servers),
            colocated=colocated,
            bandwidth_gbps=read_numbers("--bandwidth-gbps", bandwidth_gbps),
            workers=read_whole_numbers("--workers", workers),
            staleness=tuple(staleness.replace(" ", "").split(",")),
            jitter=jitter,
            **named,
        )
        result = what_if_servers(load_profile(profile), grid)
    if as_json:
        json.dump(result.to_document(), sys.stdout)
        sys.stdout.write("\n")
    elif as_csv:
        rows = [asdict(cell) for cell in result.cells]
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _show(result)


def _show(result: ServerWhatIf) -> None:
    console = make_console(width=160)
    policies = result.grid.policies
    where = "on the workers' hosts" if result.grid.colocated else "on hosts of their own"
    console.print(
        f"{result.profile}, servers {where}: iteration ms (speed-up over {policies[0]})", highlight=False
    )
    table = make_table("workers", "Gbit/s", "servers", "staleness", *policies, "ring all-reduce")
    for at in range(0, len(result.cells), len(policies)):
        cells = result.cells[at : at + len(policies)]
        one = cells[0]
        table.add_row(
            str(one.workers),
            "" if one.bandwidth_gbps is None else f"{one.bandwidth_gbps:g}",
            str(one.servers),
            one.staleness,
            *(f"{cell.iteration_s * 1e3:.3f} ({cell.speedup:.2f})" for cell in cells),
            f"{one.allreduce_s * 1e3:.3f}",
        )
    console.print(table)
