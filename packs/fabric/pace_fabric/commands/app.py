"""``pace fabric``: plan, check, simulate and compare transfers of updates."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pace.counted import counted
from pace.errors import InvalidOptions
from pace.terminal.command_line import CommandLine, file_argument, output_option
from pace.terminal.console import CsvOption, HtmlOption, JsonOption, PlanOutput, make_console, make_table
from pace.terminal.kind_options import fields_of, with_options_of
from pace.terminal.number_lists import read_whole_numbers
from pace.terminal.reporting import WRONG, judged, reported
from pace_fabric.commands import processes, weight_sync
from pace_fabric.documents.reading import load_batch, load_document, load_network, load_transfer_plan
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.documents.transfer_plan import TransferOptions, TransferPlan

app = CommandLine(
    help="Plan, simulate and run asynchronous training over unequal and changing links (after MLfabric).",
    rich_help_panel="Services",
)
app.command(epilog="Example: pace fabric scheduler --bind 127.0.0.1:7080 --delay-bound 8")(
    processes.scheduler
)
app.command(epilog="Example: pace fabric daemon --name h0 --scheduler 127.0.0.1:7080 --bind 127.0.0.1:7082")(
    processes.daemon
)
app.command(epilog="Example: pace fabric serve --name server --scheduler 127.0.0.1:7080 --model model.npy")(
    processes.serve
)
app.command(epilog="Example: pace fabric status --scheduler 127.0.0.1:7080")(processes.status)
app.command(epilog="Example: pace fabric distribute weights.bin --to H1:7090,H2:7090 --token-file token")(
    weight_sync.distribute
)
app.command(epilog="Example: pace fabric receive -o weights.bin --bind 0.0.0.0:7090 --token-file token")(
    weight_sync.receive
)

NetworkArgument = Annotated[
    Path, file_argument("Network document (JSON): hosts and the rates of their links.")
]
BatchArgument = Annotated[Path, file_argument("Batch document (JSON): the updates to transfer.")]
ScenarioArgument = Annotated[
    Path, file_argument("Scenario document (JSON): a network, its workers and their computations.")
]


@app.command(epilog="Example: pace fabric plan network.json batch.json -o plan.json")
@with_options_of(TransferOptions)
def plan(
    network: NetworkArgument,
    batch: BatchArgument,
    output: PlanOutput = None,
    timeline: Annotated[
        Path | None,
        output_option(
            "Write the plan to this file as a Chrome trace, for ui.perfetto.dev.", show_default="no trace"
        ),
    ] = None,
    as_json: JsonOption = False,
    **asked: Any,
) -> None:
    """Plan the transfers of a batch of updates: when, over which host, at which rate, and what is dropped."""
    from pace_fabric.plan import plan_transfers

    with reported():
        options = TransferOptions(**fields_of(TransferOptions, asked))
        made = plan_transfers(load_network(network), load_batch(batch), options)
        if output is not None:
            output.write_bytes(made.to_json())
        if timeline is not None:
            from pace.view.perfetto import window_trace
            from pace_fabric.timeline import lay_out_plan

            timeline.write_text(json.dumps(window_trace(lay_out_plan(made), carries="updates")))
    if as_json:
        sys.stdout.buffer.write(made.to_json())
    else:
        _describe(made, make_console())


def _describe(made: TransferPlan, console: Console) -> None:
    predicted = made.predicted
    console.print(
        f"{counted(len(made.order), 'update')} in {counted(len(made.commits), 'commit')}, "
        f"{len(made.dropped)} dropped; last commit "
        f"at {predicted.last_commit_s:.6g} s, mean {predicted.mean_commit_s:.6g} s, within "
        f"{predicted.gap * 100:z.1f} % of the bound for kept updates",
        highlight=False,
    )
    table = make_table("commit", "at s", "version", "updates", left=("updates",))
    for number, commit in enumerate(made.commits, start=1):
        table.add_row(str(number), f"{commit.at_s:.6g}", str(commit.version), " + ".join(commit.updates))
    console.print(table)
    for drop in made.dropped:
        because = f" ({', '.join(drop.witness)})" if drop.witness else ""
        console.print(f"dropped {drop.id}: {drop.reason}{because}", highlight=False)
    if made.replica.frozen or made.replica.punted:
        console.print(
            f"replica: {len(made.replica.frozen)} updates in this batch, {len(made.replica.punted)} later; "
            f"divergence at most {made.replica.bound:.6g}",
            highlight=False,
        )


@app.command(epilog="Example: pace fabric check network.json batch.json plan.json")
def check(
    network: NetworkArgument,
    batch: BatchArgument,
    plan: Annotated[Path, file_argument("Transfer plan to check (JSON), from `pace fabric plan`.")],
    as_json: JsonOption = False,
) -> None:
    """Check a transfer plan, independently of the solver.

    Prints every violation, and exits with 1 if there is one.
    """
    from pace_fabric.checker.transfers import check_transfers

    with reported():
        loaded = load_network(network), load_batch(batch)
        judged(plan, lambda: check_transfers(*loaded, load_transfer_plan(plan)), as_json=as_json)


@app.command(epilog="Example: pace fabric simulate scenario.json")
def simulate(
    scenario: ScenarioArgument,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to simulate, for example mlfabric-a, async or ring; repeat the option for several.",
            show_default="all policies",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a training run under several policies, with the same links and computations."""
    from pace_fabric.simulation import FABRIC_POLICIES, simulate_fabric

    with reported():
        loaded = load_document(FabricScenario, scenario)
        results = [simulate_fabric(loaded, name).to_document() for name in policy or FABRIC_POLICIES]
    if as_json:
        typer.echo(json.dumps({"scenario": loaded.name, "policies": results}))
        return
    table = make_table(
        "policy",
        "iteration s",
        "commits/s",
        "dropped",
        "mean delay versions",
        "max delay versions",
        left=("policy",),
    )
    for row in results:
        table.add_row(
            str(row["policy"]),
            f"{row['iteration_s']:.4g}",
            f"{row['commits_per_s']:.4g}",
            f"{float(row['drop_rate']) * 100:.1f} %",
            f"{row['mean_delay']:.3g}",
            str(row["max_delay"]),
        )
    console = make_console()
    console.print(
        f"{loaded.name}: {counted(loaded.num_workers, 'worker')}; one iteration is "
        f"{counted(loaded.num_workers, 'commit')}",
        highlight=False,
    )
    console.print(table)


@app.command(
    "what-if",
    epilog="Example: pace fabric what-if scenario.json --bound 15,30 --aggregators 0,4 --html answer.html",
)
def what_if(
    scenario: ScenarioArgument,
    bound: Annotated[
        str | None,
        typer.Option(
            help="Delay bounds to compare, in versions, for example 15,30,60.", show_default="the scenario's"
        ),
    ] = None,
    aggregators: Annotated[
        str | None,
        typer.Option(
            help="Numbers of aggregators to compare, for example 0,4,15.", show_default="the scenario's"
        ),
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    html: HtmlOption = None,
) -> None:
    """Compare delay bounds and numbers of aggregators in one scenario."""
    from pace_fabric.simulation.run import cells_csv, cells_html, fabric_what_if

    with reported():
        if as_json and as_csv:
            raise InvalidOptions("--json and --csv both print to stdout: give only one of them")
        loaded = load_document(FabricScenario, scenario)
        cells = fabric_what_if(
            loaded, _at_least("--bound", bound, 1), _at_least("--aggregators", aggregators, 0)
        )
        if html is not None:
            html.write_text(cells_html(loaded, cells), encoding="utf-8")
    if as_json:
        document = {"scenario": loaded.name, "cells": [asdict(cell) for cell in cells]}
        typer.echo(json.dumps(document))
    elif as_csv:
        sys.stdout.write(cells_csv(cells))
    else:
        table = make_table(
            "bound", "aggregators", "iteration s", "speed-up over ring", "dropped", "mean delay versions"
        )
        for cell in cells:
            table.add_row(
                str(cell.delay_bound),
                str(cell.aggregators),
                f"{cell.iteration_s:.4g}",
                f"{cell.speedup:.2f}",
                f"{cell.drop_rate * 100:.1f} %",
                f"{cell.mean_delay:.3g}",
            )
        make_console().print(table)


def _at_least(option: str, text: str | None, least: int) -> tuple[int, ...]:
    values = read_whole_numbers(option, text)
    if any(value < least for value in values):
        raise InvalidOptions(f'{option} "{text}": expected numbers of at least {least}')
    return values


@app.command("check-log", epilog="Example: pace fabric check-log commits.jsonl --delay-bound 8")
def check_log(
    log: Annotated[Path, file_argument("Commit log to check, as `pace fabric serve --log` writes it.")],
    delay_bound: Annotated[
        int | None,
        typer.Option(
            min=1, help="Bound on delays in versions: every delay must be smaller.", show_default="no bound"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a commit log: versions without a gap, and every delay below the bound.

    Prints every violation, and exits with 1 if there is one.
    """
    with reported():
        from pace_fabric.runtime.commit_log import LoggedCommit, read_log, violations

        lines = list(read_log(log))
        found = violations(lines, delay_bound)
    commits = [line for line in lines if isinstance(line, LoggedCommit)]
    if as_json:
        typer.echo(json.dumps({"commits": len(commits), "violations": found}))
    else:
        for violation in found:
            typer.echo(violation)
        greatest = max((delay for line in commits for delay in line.delays), default=0)
        wrong = counted(len(found), "violation")
        typer.echo(
            f"{counted(len(commits), 'commit')}, greatest delay {counted(greatest, 'version')}, {wrong}"
        )
    if found:
        raise typer.Exit(WRONG)
