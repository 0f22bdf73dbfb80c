"""``pace sync``: plan, check and compare how weights go from a trainer to its rollout engines."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pace.documents.sync.sync_plan import SyncPlan, load_sync_plan
from pace.documents.sync.weight_sync import WeightSync, load_weight_sync
from pace.errors import InvalidOptions
from pace.terminal.command_line import CommandLine, writable
from pace.terminal.console import OUTPUT, JsonOption, make_console, make_table
from pace.terminal.number_lists import read_numbers, read_whole_numbers
from pace.terminal.reporting import judged, reported

app = CommandLine(
    help="Plan how a trainer sends new weights to rollout engines: buckets, their order, and the pause."
)

SHOWN_BUCKETS = 12
SHOWN_POINTS = 400
SyncArgument = Annotated[
    Path,
    typer.Argument(
        help="Weight-sync document (JSON): tensors, links, and the receivers' own work.",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]


@app.command(epilog="Example: pace sync plan sync.json -o plan.json")
def plan(
    document: SyncArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            callback=writable,
            help="Write the plan to this file (JSON).",
            show_default="not written",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose buckets and their order for the shortest pause, and print how short any pause can be."""
    from pace.sync.plan import plan_sync

    with reported():
        problem = load_weight_sync(document)
        made = plan_sync(problem)
        if output is not None:
            output.write_bytes(made.to_json())
    if as_json:
        sys.stdout.buffer.write(made.to_json())
    else:
        _describe(problem, made, make_console())


def _describe(problem: WeightSync, made: SyncPlan, console: Console) -> None:
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    total = sum(tensor.size_bytes for tensor in problem.tensors)
    count = len(problem.receivers)
    print_line(
        f"[bold]{problem.name}[/bold]: {len(problem.tensors)} tensors, {total / 1e6:,.1f} MB, to "
        f"{count} receiver{'s' if count != 1 else ''} ({problem.fan_out})"
    )
    print_line(
        f"pause       {made.predicted.pause_s * 1e3:.3f} ms predicted; "
        f"link {made.predicted.link_s * 1e3:.3f} ms, "
        f"receiver's work {made.predicted.work_s * 1e3:.3f} ms"
    )
    print_line(
        f"optimality  within {made.predicted.gap * 100:.1f} % of what any buckets in any order can do "
        f"({made.bound.bound_s * 1e3:.3f} ms)"
    )
    print_line(f"method      {made.method}")
    table = make_table("bucket", "MB", "sent from ms", "to ms", "finished ms", "tensors", left=("tensors",))
    for number, bucket in enumerate(made.buckets[:SHOWN_BUCKETS], start=1):
        names = [part.tensor for part in bucket.parts]
        shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        table.add_row(
            str(number),
            f"{bucket.size_bytes / 1e6:,.3f}",
            f"{bucket.start_s * 1e3:.3f}",
            f"{bucket.end_s * 1e3:.3f}",
            f"{max(bucket.finished_s) * 1e3:.3f}",
            shown,
        )
    console.print(table)
    if len(made.buckets) > SHOWN_BUCKETS:
        print_line(f"and {len(made.buckets) - SHOWN_BUCKETS} more buckets; --output writes all")
    print_line("Other rules:")
    for rival in made.rivals:
        size = "" if rival.largest_bytes is None else f" of {rival.largest_bytes >> 20} MiB"
        took = "does not fit the credit" if rival.pause_s is None else f"{rival.pause_s * 1e3:.3f} ms"
        print_line(f"  {rival.rule}{size}: {took}")


@app.command(epilog="Example: pace sync check sync.json plan.json")
def check(
    document: SyncArgument,
    plan_file: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN",
            help="Plan (JSON), from `pace sync plan`.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Check a plan, independently of the planner.

    Prints every violation, and exits with 1 if there is one.
    """
    from pace.checker.weight_sync import check_sync

    with reported():
        problem = load_weight_sync(document)
        judged(plan_file, lambda: check_sync(problem, load_sync_plan(plan_file)), as_json=as_json)


@app.command(
    "what-if", epilog="Example: pace sync what-if sync.json --bandwidth-gbps 25,100 --receivers 4,16"
)
def what_if(
    document: SyncArgument,
    bandwidth_gbps: Annotated[
        str | None,
        typer.Option(
            help="Bandwidths of all links in Gbit/s, for example 1,5,10 or 1:25:1 (from:to:step).",
            show_default="as in the document",
        ),
    ] = None,
    receivers: Annotated[
        str | None,
        typer.Option(
            help="Numbers of receivers, for example 4,8 or 1-8; the last one of the document is repeated.",
            show_default="as in the document",
        ),
    ] = None,
    credit_mb: Annotated[
        str | None,
        typer.Option(
            help="Most MB (10^6 bytes) sent and not yet finished by every receiver, for example 64,512.",
            show_default="as in the document",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the pause with its bound and simple rules for buckets, over links, receivers and credits."""
    from pace.sync.what_if import sync_grid

    with reported():
        problem = load_weight_sync(document)
        rates = read_numbers("--bandwidth-gbps", bandwidth_gbps)
        counts = read_whole_numbers("--receivers", receivers)
        credits_mb = read_numbers("--credit-mb", credit_mb)
        points = max(len(rates), 1) * max(len(counts), 1) * max(len(credits_mb), 1)
        if points > SHOWN_POINTS:
            raise InvalidOptions(f"{points} points: give at most {SHOWN_POINTS}")
        grid = sync_grid(
            problem,
            bandwidth_gbps=rates,
            receivers=counts,
            credit_bytes=[round(each * 1e6) for each in credits_mb],
        )
    if as_json:
        typer.echo(json.dumps([asdict(point) for point in grid]))
        return
    heads = (
        "Gbit/s",
        "receivers",
        "credit MB",
        "pause ms",
        "bound ms",
        "buckets",
        "tensor by tensor ms",
        "fixed ms",
    )
    table = make_table(*heads)
    for point in grid:
        table.add_row(
            "as given" if point.bandwidth_gbps is None else f"{point.bandwidth_gbps:g}",
            str(point.receivers),
            "no limit" if point.credit_bytes is None else f"{point.credit_bytes / 1e6:g}",
            f"{point.pause_s * 1e3:.3f}",
            f"{point.bound_s * 1e3:.3f}",
            str(point.num_buckets),
            _milliseconds(point.tensor_by_tensor_s),
            _milliseconds(point.fixed_buckets_s),
        )
    make_console().print(table)


def _milliseconds(seconds: float | None) -> str:
    return "does not fit" if seconds is None else f"{seconds * 1e3:.3f}"
