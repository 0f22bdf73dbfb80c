"""``pace what-if --servers``: compare numbers and places of parameter servers."""

import csv
import json
import sys
from dataclasses import asdict

from pace.documents.profile import Profile
from pace.terminal.console import make_console, make_table
from pace.whatif.servers import ServerGrid, ServerWhatIf, what_if_servers


def report_servers(profile: Profile, grid: ServerGrid, *, as_json: bool, as_csv: bool) -> None:
    """Run a grid of servers and print it as a table, JSON or CSV."""
    result = what_if_servers(profile, grid)
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
