"""``pace servers what-if``: compare numbers and places of parameter servers."""

import json
import sys
from typing import Any

import typer

from pace.documents.profile import load_profile
from pace.errors import InvalidOptions
from pace.terminal.console import CsvOption, JsonOption, ProfileArgument, make_console, make_table
from pace.terminal.kind_options import fields_of, with_options_of
from pace.terminal.reporting import reported
from pace_servers.what_if import ServerGrid, ServerWhatIf, what_if_servers


@with_options_of(ServerGrid, flags={"policies": "--policy", "colocated": "--colocated"})
def what_if(
    profile: ProfileArgument, as_json: JsonOption = False, as_csv: CsvOption = False, **asked: Any
) -> None:
    """Predict iteration times with other numbers of parameter servers, workers and links.

    Every combination of the given values is simulated, beside PACE's all-reduces on a ring of the same links.
    """
    with reported():
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both print to stdout: give only one of them")
        result = what_if_servers(load_profile(profile), ServerGrid(**fields_of(ServerGrid, asked)))
    if as_json:
        typer.echo(json.dumps(result.to_document()))
    elif as_csv:
        sys.stdout.write(result.to_csv())
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
