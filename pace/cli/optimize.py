"""``pace optimize`` and ``pace check``: the schedule of a profile, and whether one is right."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pace.cli.description import describe
from pace.cli.servers.clusters import described_cluster
from pace.documents.options import Options, Risk
from pace.documents.profile import Profile, load_profile
from pace.documents.schedule import Exchange, Framework, Fusion, Oracle, Schedule, load_schedule
from pace.errors import InvalidOptions, InvalidSchedule
from pace.terminal.console import (
    ClusterOption,
    ColocatedOption,
    JsonOption,
    ProfileArgument,
    ServersOption,
    make_console,
    refuse_unknown_ending,
)
from pace.terminal.reporting import WRONG, reported, tell_slowdown, warn_if_misleading


def optimize(
    profile: ProfileArgument,
    oracle: Annotated[
        Oracle, typer.Option(help="Longest tail first, or the LP (needs --slot-s).")
    ] = "jackson",
    fusion: Annotated[Fusion, typer.Option(help="How gradients are fused.")] = "optimal",
    exchange: Annotated[
        Exchange | None,
        typer.Option(
            help="How gradients become updates. Default: servers where the profile or an option names them, "
            "sharded where updates wait for a global norm, else allreduce."
        ),
    ] = None,
    framework: Annotated[
        Framework | None,
        typer.Option("--for", help="Buckets or groups for a framework that keeps its barrier."),
    ] = None,
    slot_s: Annotated[
        float | None, typer.Option(help="Slot length in seconds; else continuous time.")
    ] = None,
    max_group_bytes: Annotated[int | None, typer.Option(help="Largest group of several gradients.")] = None,
    max_segment_bytes: Annotated[int | None, typer.Option(help="Largest segment.")] = None,
    scenarios: Annotated[int, typer.Option(help="Compare plans over this many jittered windows.")] = 0,
    jitter: Annotated[float, typer.Option(help="Relative spread of ops that have no measured one.")] = 0.0,
    risk: Annotated[Risk, typer.Option(help="What counts over the scenarios.")] = "mean",
    servers: ServersOption = None,
    colocated: ColocatedOption = False,
    cluster: ClusterOption = None,
    partition_bytes: Annotated[
        int | None, typer.Option(help="Size of segments for parameter servers; searched for by default.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the schedule here.")] = None,
    as_json: JsonOption = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the predicted window as a Chrome trace.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the predicted window: PNG, SVG or PDF.")] = None,
    write_lp: Annotated[
        Path | None, typer.Option(help="With --slot-s: write the linear program as .lp or .mps.")
    ] = None,
) -> None:
    """Compute the schedule of a profile."""
    from pace.planning.optimize import optimize as solve

    with reported():
        refuse_unknown_ending(plot)
        loaded = load_profile(profile)
        warn_if_misleading(loaded)
        tell_slowdown(loaded)
        named = servers is not None or cluster is not None or colocated
        if named and exchange not in (None, "servers"):
            raise InvalidOptions(f"--servers, --colocated and --cluster do not go with --exchange {exchange}")
        if write_lp is not None and slot_s is None:
            raise InvalidOptions("--write-lp: the linear program works in slots, give slot_s")
        options = Options(
            oracle=oracle,
            fusion=fusion,
            exchange=exchange,
            framework=framework,
            slot_s=slot_s,
            max_group_bytes=max_group_bytes,
            max_segment_bytes=max_segment_bytes,
            scenarios=scenarios,
            jitter=jitter,
            risk=risk,
            cluster=described_cluster(loaded, cluster, servers, colocated=colocated)
            if named or exchange == "servers"
            else None,
            partition_bytes=partition_bytes,
        )
        schedule = solve(loaded, options)
        if output is not None:
            output.write_bytes(schedule.to_json())
        if timeline is not None:
            from pace.view.perfetto import chrome_trace

            timeline.write_text(json.dumps(chrome_trace(loaded, schedule)))
        if plot is not None:
            from pace.view.chart import plot as draw

            draw(loaded, schedule, plot)
        if write_lp is not None:
            from pace.planning.allreduce.optimize import write_lp as write_program

            write_program(schedule, write_lp)
        if as_json:
            sys.stdout.buffer.write(schedule.to_json())
            return
        describe(loaded, schedule, make_console())
        if framework is not None:
            preemptive = solve(loaded, Options(exchange="allreduce"))
            _describe_framework(loaded, schedule, preemptive, make_console())


def _describe_framework(profile: Profile, schedule: Schedule, preemptive: Schedule, console: Console) -> None:
    """Print what to pass to the framework, and what its semantics cost against ours."""
    from pace.planning.frameworks.bucket_lists import bucket_cap_mb_list, horovod_groups
    from pace.planning.frameworks.thresholds import fusion_settings

    print_line = partial(console.print, highlight=False, soft_wrap=True)
    loss = schedule.predicted.iteration_s / preemptive.predicted.iteration_s - 1 if preemptive.groups else 0.0
    print_line("")
    print_line(
        f"{loss * 100:.1f} % slower than without the barrier "
        f"({preemptive.predicted.iteration_s * 1e3:.3f} ms)"
    )
    if schedule.framework == "ddp":
        print_line(f"bucket_cap_mb_list={bucket_cap_mb_list(schedule)}")
        print_line("Frameworks that take one size for all buckets:")
        for framework, setting, iteration_s in fusion_settings(profile):
            print_line(f"  {framework}: {setting} ({iteration_s * 1e3:.3f} ms)")
    else:
        print_line(f"groups (names of parameters): {json.dumps(horovod_groups(schedule))}")


def check(
    profile: ProfileArgument,
    schedule: Annotated[Path, typer.Argument(help="A schedule document.", exists=True, dir_okay=False)],
    as_json: JsonOption = False,
) -> None:
    """Check a schedule against its profile, independently of the solver; exit 1 and name every violation."""
    from pace.checker import check as judge

    with reported():
        loaded = load_profile(profile)
        try:
            violations = judge(loaded, load_schedule(schedule))
        except InvalidSchedule as error:
            violations = str(error).splitlines()
    if as_json:
        typer.echo(json.dumps({"valid": not violations, "violations": violations}))
    else:
        for violation in violations:
            typer.echo(violation)
        typer.echo(
            f"{schedule}: {'valid' if not violations else f'{len(violations)} violations'}",
            err=bool(violations),
        )
    if violations:
        raise typer.Exit(WRONG)
