"""``pace optimize``: the schedule of a profile, and how a schedule is shown to people."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from pace.cli.console import (
    ClusterOption,
    ColocatedOption,
    Exchange,
    JsonOption,
    ProfileArgument,
    ServersOption,
    make_console,
    make_table,
    refuse_unknown_ending,
)
from pace.cli.reporting import reported, tell_slowdown, warn_if_misleading
from pace.cli.servers.plans import cluster_of, describe_exchange
from pace.documents.base import explain
from pace.documents.cluster import Cluster
from pace.documents.options import Options, Risk
from pace.documents.profile import Profile, load_profile
from pace.documents.push_pull_schedule import PushPullSchedule
from pace.documents.schedule import AskedTarget, Fusion, Oracle, Schedule
from pace.documents.sharded_schedule import ShardedSchedule
from pace.errors import InvalidOptions


def optimize(
    profile: ProfileArgument,
    oracle: Annotated[
        Oracle, typer.Option(help="Longest tail first, or the LP (needs --slot-s).")
    ] = "jackson",
    fusion: Annotated[Fusion, typer.Option(help="How gradients are fused.")] = "optimal",
    target: Annotated[
        AskedTarget,
        typer.Option(
            help="Whose semantics: our runtime's (pace: sharded behind a global norm, else allreduce), "
            "DDP's or Horovod's."
        ),
    ] = "pace",
    slot_s: Annotated[
        float | None, typer.Option(help="Slot length in seconds; else continuous time.")
    ] = None,
    max_group_bytes: Annotated[int | None, typer.Option(help="Largest group of several gradients.")] = None,
    max_segment_bytes: Annotated[int | None, typer.Option(help="Largest segment.")] = None,
    scenarios: Annotated[int, typer.Option(help="Compare plans over this many jittered windows.")] = 0,
    jitter: Annotated[float, typer.Option(help="Relative spread of ops that have no measured one.")] = 0.0,
    risk: Annotated[Risk, typer.Option(help="What counts over the scenarios.")] = "mean",
    exchange: Annotated[
        Exchange, typer.Option(help="All-reduce, or push to parameter servers and pull.")
    ] = "allreduce",
    servers: ServersOption = None,
    colocated: ColocatedOption = False,
    cluster: ClusterOption = None,
    partition_bytes: Annotated[
        int | None, typer.Option(help="Size of parts for parameter servers; searched for by default.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the schedule here.")] = None,
    as_json: JsonOption = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the predicted window as a Chrome trace.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the predicted window: PNG, SVG or PDF.")] = None,
    write_lp: Annotated[Path | None, typer.Option(help="Write the linear program as .lp or .mps.")] = None,
) -> None:
    """Compute the schedule of a profile."""
    from pace.allreduce.optimize import optimize as solve
    from pace.schedule_choice import best_schedule

    with reported():
        refuse_unknown_ending(plot)
        loaded = load_profile(profile)
        warn_if_misleading(loaded)
        tell_slowdown(loaded)
        if exchange == "ps":
            allreduce_only = (oracle != "jackson", target != "pace", slot_s, max_segment_bytes, scenarios)
            if any(allreduce_only) or write_lp:
                raise InvalidOptions(
                    "--exchange ps takes --fusion, --max-group-bytes, --servers, --colocated, --cluster, "
                    "--partition-bytes, --output, --timeline, --plot and --json"
                )
            made = _exchange(
                loaded,
                cluster_of(loaded, cluster, servers, colocated=colocated),
                fusion=fusion,
                max_group_bytes=max_group_bytes,
                partition_bytes=partition_bytes,
            )
            if output is not None:
                output.write_bytes(made.to_json())
            if timeline is not None:
                from pace.view.exchange_timeline import exchange_trace

                timeline.write_text(json.dumps(exchange_trace(loaded, made)))
            if plot is not None:
                from pace.view.exchange_chart import plot_exchange

                plot_exchange(loaded, made, plot)
            if as_json:
                sys.stdout.buffer.write(made.to_json())
            else:
                describe_exchange(loaded, made, make_console())
            return
        if servers is not None or cluster is not None or colocated or partition_bytes is not None:
            raise InvalidOptions(
                "--servers, --colocated, --cluster and --partition-bytes belong to --exchange ps"
            )
        options = _options(
            oracle=oracle,
            fusion=fusion,
            target=target,
            slot_s=slot_s,
            max_group_bytes=max_group_bytes,
            max_segment_bytes=max_segment_bytes,
            scenarios=scenarios,
            jitter=jitter,
            risk=risk,
        )
        schedule = best_schedule(loaded, options)
        if output is not None:
            output.write_bytes(schedule.to_json())
        if isinstance(schedule, ShardedSchedule):
            if timeline or plot or write_lp:
                raise InvalidOptions(
                    "a schedule in two halves has no --timeline, --plot or --write-lp: "
                    "--target allreduce has them"
                )
            if as_json:
                sys.stdout.buffer.write(schedule.to_json())
            else:
                describe_sharded(loaded, schedule, make_console())
            return
        if timeline is not None:
            from pace.view.timeline import chrome_trace

            timeline.write_text(json.dumps(chrome_trace(loaded, schedule)))
        if plot is not None:
            from pace.view.schedule_chart import plot as draw

            draw(loaded, schedule, plot)
        if write_lp is not None:
            from pace.allreduce.optimize import write_lp as write_program

            write_program(schedule, write_lp)
        if as_json:
            sys.stdout.buffer.write(schedule.to_json())
        else:
            describe(loaded, schedule, make_console())
            if target in ("ddp", "horovod"):
                _describe_framework(loaded, schedule, solve(loaded), make_console())


def _exchange(profile: Profile, cluster: Cluster, **given: Any) -> PushPullSchedule:
    from pace.parameter_server.optimize import ExchangeOptions, optimize_exchange

    try:
        options = ExchangeOptions(**given)
    except ValidationError as error:
        raise InvalidOptions(explain(error)) from None
    return optimize_exchange(profile, cluster, options)


def _options(**given: Any) -> Options:
    try:
        return Options(**given)
    except ValidationError as error:
        raise InvalidOptions(explain(error)) from None


def _describe_framework(profile: Profile, schedule: Schedule, preemptive: Schedule, console: Console) -> None:
    """Print what to pass to the framework, and what its semantics cost against ours."""
    from pace.allreduce.frameworks import bucket_cap_mb_list, horovod_groups
    from pace.allreduce.thresholds import fusion_settings

    print_line = partial(console.print, highlight=False, soft_wrap=True)
    loss = schedule.predicted.iteration_s / preemptive.predicted.iteration_s - 1 if preemptive.groups else 0.0
    print_line("")
    print_line(
        f"{loss * 100:.1f} % slower than target pace is predicted to be "
        f"({preemptive.predicted.iteration_s * 1e3:.3f} ms)"
    )
    if schedule.target == "ddp":
        print_line(f"bucket_cap_mb_list={bucket_cap_mb_list(schedule)}")
        print_line("Frameworks that take one size for all buckets:")
        for framework, setting, iteration_s in fusion_settings(profile):
            print_line(f"  {framework}: {setting} ({iteration_s * 1e3:.3f} ms)")
    else:
        print_line(f"groups (names of parameters): {json.dumps(horovod_groups(schedule))}")


def describe(profile: Profile, schedule: Schedule, console: Console) -> None:
    """Print a schedule for people: predicted times, the proof in words, groups and segments."""
    predicted = schedule.predicted
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    print_line(f"[bold]{profile.name}[/bold]: {len(profile.gradients)} gradients, {profile.workers} workers")
    print_line(
        f"iteration   {predicted.iteration_s * 1e3:.3f} ms predicted; "
        f"{predicted.ideal_iteration_s * 1e3:.3f} ms if preemption were free; "
        f"compute alone {predicted.compute_s * 1e3:.3f} ms"
    )
    print_line(
        f"optimality  within {_percent(predicted.gap)} of what any schedule{_semantics(schedule)} can do "
        f"({predicted.lower_bound_s * 1e3:.3f} ms)"
    )
    print_line(f"plan        {len(schedule.groups)} groups in {len(schedule.segments)} segments")
    print_line(f"fusion      {schedule.solver.fusion}: {schedule.solver.method}")
    print_line("")
    columns = ("priority", "group", "bytes", "ready ms", "start ms", "end ms", "needed ms", "gradients")
    table = make_table(*columns, left=("gradients",))
    for segment in schedule.segments:
        group = schedule.groups[segment.group]
        first, *rest = group.gradients
        times = (group.ready_s, segment.start_s, segment.end_s, predicted.iteration_s - group.tail_s)
        table.add_row(
            str(segment.priority),
            str(segment.group),
            f"{segment.size_bytes:,}",
            *(f"{seconds * 1e3:.3f}" for seconds in times),
            first + (f" +{len(rest)}" if rest else ""),
        )
    console.print(table)


def describe_sharded(profile: Profile, schedule: ShardedSchedule, console: Console) -> None:
    """Print a schedule in two halves for people."""
    predicted = schedule.predicted
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    print_line(f"[bold]{profile.name}[/bold]: {len(profile.gradients)} gradients, {profile.workers} workers")
    print_line(
        f"iteration   {predicted.iteration_s * 1e3:.3f} ms predicted; "
        f"compute alone {predicted.compute_s * 1e3:.3f} ms; updates {schedule.update}"
    )
    print_line(
        f"optimality  within {_percent(predicted.gap)} of what any schedule in two halves can do "
        f"({predicted.lower_bound_s * 1e3:.3f} ms)"
    )
    print_line(
        f"plan        {len(schedule.reduce_scatters)} reduce-scatters, "
        f"{len(schedule.all_gathers)} all-gathers, {len(schedule.shards)} shards, "
        f"{len(schedule.segments)} segments"
    )
    if schedule.norm is not None:
        print_line(f"norm        exchanged at {schedule.norm.start_s * 1e3:.3f} ms")
    print_line(f"fusion      {schedule.solver.fusion}: {schedule.solver.method}")
    print_line("")
    columns = ("priority", "call", "bytes", "start ms", "end ms", "gradients")
    table = make_table(*columns, left=("gradients",))
    for segment in schedule.segments:
        call = schedule.calls[segment.half][segment.call]
        first, *rest = [name for shard in call.shards for name in schedule.shards[shard].gradients]
        table.add_row(
            str(segment.priority),
            f"{segment.half} {segment.call}",
            f"{segment.num_columns * schedule.column_bytes_of(call):,}",
            *(f"{seconds * 1e3:.3f}" for seconds in (segment.start_s, segment.end_s)),
            first + (f" +{len(rest)}" if rest else ""),
        )
    console.print(table)


def _semantics(schedule: Schedule) -> str:
    return "" if schedule.target == "pace" else " that stops at a barrier"


def _percent(gap: float) -> str:
    return f"{max(gap, 0.0) * 100:.2g} %" if gap >= 1e-5 else "0 %"
