"""``pace diloco``: plan, check and simulate streaming DiLoCo, and find the bandwidth that it needs."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pace.counted import counted
from pace.terminal.command_line import CommandLine, file_argument
from pace.terminal.console import JsonOption, PlanOutput, make_console, make_table
from pace.terminal.number_lists import read_numbers
from pace.terminal.reporting import judged, reported
from pace_sync.documents.outer_plan import OuterPlan, load_outer_plan
from pace_sync.documents.outer_sync import OuterSync, load_outer_sync

app = CommandLine(
    help="Plan streaming DiLoCo: fragments, when each is sent over which link, and the utilization.\n\n"
    "The utilization is the share of time in which workers compute."
)

SHOWN_FRAGMENTS = 24
OuterArgument = Annotated[
    Path, file_argument("Outer-sync document (JSON): layers, steps, workers, links, and the largest delay.")
]
PlanArgument = Annotated[Path, file_argument("Plan (JSON), from `pace diloco plan`.", metavar="PLAN")]


@app.command(epilog="Example: pace diloco plan outer.json -o plan.json")
def plan(
    document: OuterArgument,
    for_torchft: Annotated[
        bool,
        typer.Option(
            "--for-torchft",
            help="Make a plan that torchft's DiLoCo can follow: whole layers, equal times between sends, one "
            "link.",
        ),
    ] = False,
    output: PlanOutput = None,
    as_json: JsonOption = False,
) -> None:
    """Choose fragments, send steps, links and delays for the highest utilization, and print its bound."""
    from pace_sync.planning.outer.plan import plan_outer

    with reported():
        problem = load_outer_sync(document)
        made = plan_outer(problem, torchft=for_torchft)
        if output is not None:
            output.write_bytes(made.to_json())
    if as_json:
        sys.stdout.buffer.write(made.to_json())
    else:
        _describe(problem, made, make_console())


def _describe(problem: OuterSync, made: OuterPlan, console: Console) -> None:
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    print_line(
        f"[bold]{problem.name}[/bold]: {counted(len(problem.layers), 'layer')}, "
        f"{problem.size_bytes / 1e6:,.1f} MB, "
        f"{counted(problem.workers, 'worker')}; every {counted(problem.period_steps, 'step')} of "
        f"{problem.step_s * 1e3:g} ms, "
        f"delays of at most {counted(problem.max_delay_steps, 'step')}"
    )
    predicted = made.predicted
    print_line(
        f"utilization {predicted.utilization * 100:.2f} %; "
        f"no plan exceeds {made.bound.utilization * 100:.2f} %"
    )
    longest = max(fragment.delay_steps for fragment in made.fragments)
    print_line(
        f"fragments   {len(made.fragments)}, at most {predicted.most_under_way} under way, "
        f"delays up to {longest} steps"
    )
    print_line(f"method      {made.method}")
    table = make_table(
        "after step", "MB", "link", "delay steps", "transfer s", "layers", left=("link", "layers")
    )
    for fragment in made.fragments[:SHOWN_FRAGMENTS]:
        names = [part.layer for part in fragment.parts]
        table.add_row(
            str(fragment.send_step),
            f"{fragment.size_bytes / 1e6:,.3f}",
            fragment.link,
            str(fragment.delay_steps),
            f"{fragment.end_s - fragment.start_s:.4g}",
            names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})",
        )
    console.print(table)
    if len(made.fragments) > SHOWN_FRAGMENTS:
        print_line(f"and {len(made.fragments) - SHOWN_FRAGMENTS} more fragments; --output writes all")
    if made.rivals:
        print_line("Other rules:")
    for rival in made.rivals:
        count = rival.num_fragments
        print_line(
            f"  {rival.rule}: {rival.utilization * 100:.2f} % "
            f"({counted(count, 'fragment')}, delay of {counted(rival.delay_steps, 'step')})"
        )


@app.command(epilog="Example: pace diloco check outer.json plan.json")
def check(document: OuterArgument, plan_file: PlanArgument, as_json: JsonOption = False) -> None:
    """Check a plan, independently of the planner.

    Prints every violation, and exits with 1 if there is one.
    """
    from pace_sync.checker.outer_sync import check_outer

    with reported():
        problem = load_outer_sync(document)
        judged(plan_file, lambda: check_outer(problem, load_outer_plan(plan_file)), as_json=as_json)


@app.command(epilog="Example: pace diloco simulate outer.json plan.json --jitter 0.05")
def simulate(
    document: OuterArgument,
    plan_file: PlanArgument,
    periods: Annotated[
        int, typer.Option(help="Number of periods to simulate. Links are idle before the first one.")
    ] = 20,
    jitter: Annotated[
        float, typer.Option(help="Standard deviation of a worker's step time, relative to its mean.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the random step times.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Simulate a plan with random step times, and print the utilization."""
    from pace_sync.planning.outer.simulation import simulate_outer

    with reported():
        problem, made = load_outer_sync(document), load_outer_plan(plan_file)
        run = simulate_outer(problem, made, periods=periods, jitter=jitter, seed=seed)
    if as_json:
        typer.echo(json.dumps(asdict(run) | {"utilization": run.utilization}))
        return
    print(f"utilization {run.utilization * 100:.2f} % over {periods} periods")
    print(f"predicted   {made.predicted.utilization * 100:.2f} % in the steady state, with equal steps")
    print(f"waiting     {sum(run.wait_s):.4g} s of {sum(run.period_s):.4g} s")


@app.command(epilog="Example: pace diloco bandwidth outer.json --utilization 0.8,0.95")
def bandwidth(
    document: OuterArgument,
    utilization: Annotated[
        str,
        typer.Option(help="Shares of time that workers should compute, for example 0.95 or 0.5,0.8,0.95."),
    ] = "0.95",
    as_json: JsonOption = False,
) -> None:
    """Print the bandwidth that a utilization needs: with PACE's plan, torchft, or the paper's fragments."""
    from pace_sync.planning.outer.bandwidth import needed_bandwidth

    with reported():
        problem = load_outer_sync(document)
        found = [needed_bandwidth(problem, each) for each in read_numbers("--utilization", utilization)]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
        return
    gbps = sum(link.bytes_per_s for link in problem.links) * 8 / 1e9
    table = make_table("utilization", "bound", "plan", "torchft", "torchft, one fragment", "strided")
    for each in found:
        factors = (each.bound, each.plan, each.torchft, each.torchft_one_fragment, each.strided)
        table.add_row(
            f"{each.utilization:g}",
            *("never" if factor is None else f"{factor * gbps:.4g}" for factor in factors),
        )
    make_console().print(table)
    print("Gbit/s of all links together")
