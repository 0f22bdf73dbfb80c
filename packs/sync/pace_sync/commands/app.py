"""``pace sync``: plan, check and compare how weights go from a trainer to its rollout engines."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pace.errors import InvalidOptions
from pace.terminal.command_line import CommandLine, file_argument
from pace.terminal.console import JsonOption, PlanOutput, make_console, make_table
from pace.terminal.number_lists import read_numbers, read_whole_numbers
from pace.terminal.reporting import judged, reported
from pace_sync.commands.plan_tables import describe_deltas, describe_reshard, describe_sync
from pace_sync.documents.delta_sync import DeltaPlan, DeltaSync, load_delta_plan
from pace_sync.documents.outer_sync import OuterSync
from pace_sync.documents.reshard_plan import ReshardPlan, load_reshard_plan
from pace_sync.documents.resharding import Resharding
from pace_sync.documents.sync_plan import SyncPlan, load_sync_plan
from pace_sync.documents.sync_problem import load_sync_problem, sync_kind
from pace_sync.documents.weight_sync import WeightSync
from pace_sync.errors import InvalidSync

app = CommandLine(
    help="Plan how a trainer sends new weights to rollout engines: buckets, their order, and the pause."
)

SHOWN_POINTS = 400
SyncArgument = Annotated[
    Path,
    file_argument(
        "Weight-sync, resharding or delta-sync document (JSON): tensors, sender, receivers and links."
    ),
]


@app.command(epilog="Example: pace sync plan sync.json -o plan.json")
def plan(
    document: SyncArgument,
    output: PlanOutput = None,
    as_json: JsonOption = False,
) -> None:
    """Plan how new weights reach receivers with the shortest pause, and print a bound that no plan beats.

    For a weight-sync document (one sender), the plan has buckets and their order. For a resharding document
    (several senders with shards), it says which sender sends which part to which receivers. For a delta-sync
    document (versions that differ little), it says when to send whole weights, and when only what changed.
    """
    from pace_sync.planning.deltas import plan_deltas
    from pace_sync.planning.plan import plan_sync
    from pace_sync.planning.reshard import plan_reshard

    made: SyncPlan | ReshardPlan | DeltaPlan
    describe: Callable[[Console], None]
    with reported():
        problem = _load(document)
        if isinstance(problem, Resharding):
            made = streams = plan_reshard(problem)
            describe = partial(describe_reshard, problem, streams)
        elif isinstance(problem, DeltaSync):
            made = rule = plan_deltas(problem)
            describe = partial(describe_deltas, problem, rule)
        else:
            made = buckets = plan_sync(problem)
            describe = partial(describe_sync, problem, buckets)
        if output is not None:
            output.write_bytes(made.to_json())
    if as_json:
        sys.stdout.buffer.write(made.to_json())
    else:
        describe(make_console())


@app.command(epilog="Example: pace sync check sync.json plan.json")
def check(
    document: SyncArgument,
    plan_file: Annotated[Path, file_argument("Plan (JSON), from `pace sync plan`.", metavar="PLAN")],
    as_json: JsonOption = False,
) -> None:
    """Check a plan, independently of the planner.

    Prints every violation, and exits with 1 if there is one.
    """
    from pace_sync.checker.deltas import check_deltas
    from pace_sync.checker.resharding import check_reshard
    from pace_sync.checker.weight_sync import check_sync

    with reported():
        problem = _load(document)
        if isinstance(problem, Resharding):
            judged(plan_file, lambda: check_reshard(problem, load_reshard_plan(plan_file)), as_json=as_json)
        elif isinstance(problem, DeltaSync):
            judged(plan_file, lambda: check_deltas(problem, load_delta_plan(plan_file)), as_json=as_json)
        else:
            judged(plan_file, lambda: check_sync(problem, load_sync_plan(plan_file)), as_json=as_json)


def _load(document: Path) -> WeightSync | Resharding | DeltaSync:
    """Read a document; those of streaming DiLoCo have a command of their own."""
    problem = load_sync_problem(document)
    if isinstance(problem, OuterSync):
        raise InvalidSync(f"{document}: this is an outer-sync document: use `pace diloco` for it")
    return problem


@app.command(
    "what-if", epilog="Example: pace sync what-if sync.json --bandwidth-gbps 25,100 --receivers 4,16"
)
def what_if(
    document: Annotated[Path, file_argument("Weight-sync document (JSON): tensors, links and receivers.")],
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
            help="Numbers of receivers, for example 4,8 or 1-8; further ones are copies of the last one.",
            show_default="as in the document",
        ),
    ] = None,
    credit_mb: Annotated[
        str | None,
        typer.Option(
            help="Limits on bytes sent but not yet finished, in MB (10^6 bytes), for example 64,512.",
            show_default="as in the document",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare PACE's plan with simple rules and the bound, for other links, receivers and credit limits."""
    from pace_sync.planning.what_if import sync_grid

    with reported():
        problem = _load(document)
        if not isinstance(problem, WeightSync):
            kind = sync_kind(problem)
            raise InvalidSync(f"{document}: what-if takes a weight-sync document, and this is a {kind} one")
        rates = read_numbers("--bandwidth-gbps", bandwidth_gbps)
        counts = read_whole_numbers("--receivers", receivers)
        credits_mb = read_numbers("--credit-mb", credit_mb)
        points = max(len(rates), 1) * max(len(counts), 1) * max(len(credits_mb), 1)
        if points > SHOWN_POINTS:
            raise InvalidOptions(f"{points:,} points; at most {SHOWN_POINTS} are allowed: give fewer values")
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
        "fixed buckets ms",
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
