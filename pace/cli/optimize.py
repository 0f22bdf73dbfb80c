"""``pace optimize`` and ``pace check``: compute the schedule of a profile, and check one."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pace.cli.description import describe
from pace.cli.graphs.description import draw_graph
from pace.cli.graphs.fsdp2 import report_fsdp2
from pace.cli.graphs.memory import MemoryOption, budget_bytes
from pace.cli.servers.clusters import described_cluster
from pace.documents.graph.collective_graph import is_graph, load_graph
from pace.documents.options import Options, Risk, SearchR
from pace.documents.profile import Profile, load_profile
from pace.documents.schedule import Exchange, Framework, Fusion, Oracle, Schedule, load_schedule
from pace.errors import InvalidOptions
from pace.terminal.command_line import file_argument, file_option, output_option
from pace.terminal.console import (
    OUTPUT,
    SERVERS,
    ClusterOption,
    ColocatedOption,
    JsonOption,
    PlotOption,
    ProfileOrGraphArgument,
    ScheduleOutput,
    ServersOption,
    make_console,
    refuse_unknown_ending,
)
from pace.terminal.reporting import judged, reported, tell_slowdown, warn_if_misleading


def optimize(
    profile: ProfileOrGraphArgument,
    exchange: Annotated[
        Exchange | None,
        typer.Option(
            help="How gradients become updates: whole all-reduces, sharded (reduce-scatter, update, "
            "all-gather), parameter servers, or the collectives of a graph.",
            show_default="graph for a graph; servers if the profile or an option names them; sharded if "
            "updates wait for a global norm; else allreduce",
        ),
    ] = None,
    framework: Annotated[
        Framework | None,
        typer.Option(
            "--for",
            help="Choose buckets for DDP or groups for Horovod, which wait for all gradients before the next "
            "forward pass.",
            show_default="PACE's own runtime",
        ),
    ] = None,
    fusion: Annotated[
        Fusion,
        typer.Option(
            help="How gradients are fused into groups: the best groups found, Algorithm 1 of the PACE paper, "
            "or none (one group per gradient)."
        ),
    ] = "optimal",
    search_r: Annotated[
        SearchR,
        typer.Option(
            help="With --fusion paper: which numbers of groups are tried: all, or those that a search by "
            "momentum visits."
        ),
    ] = "all",
    oracle: Annotated[
        Oracle,
        typer.Option(
            help="Algorithm that finds the best order of given groups: jackson (longest tail first) or lp (a "
            "linear program, which needs --slot-s)."
        ),
    ] = "jackson",
    lp_solver: Annotated[
        str,
        typer.Option(
            help="With --oracle lp: solver of the linear programs: scipy (HiGHS), pulp (CBC through PuLP) or "
            "pulp:NAME (the solver that PuLP knows by this name)."
        ),
    ] = "scipy",
    slot_s: Annotated[
        float | None,
        typer.Option(
            help="Length of a time slot in seconds: groups are ordered in whole slots, but a transfer that "
            "ends within its slot lets the next one start then.",
            show_default="continuous time",
        ),
    ] = None,
    max_group_bytes: Annotated[
        int | None,
        typer.Option(
            help="Largest size in bytes of a group of several gradients; a single gradient may be larger.",
            show_default="no limit",
        ),
    ] = None,
    max_segment_bytes: Annotated[
        int | None,
        typer.Option(
            help="Largest size in bytes of a segment, the part of a group that is sent in one call.",
            show_default="no limit",
        ),
    ] = None,
    risk: Annotated[
        Risk,
        typer.Option(
            help="What to minimize under load, with late ranks and slower calls: the mean iteration time or "
            "its 95th percentile (p95).",
        ),
    ] = "mean",
    servers: ServersOption = None,
    colocated: ColocatedOption = False,
    cluster: ClusterOption = None,
    partition_bytes: Annotated[
        int | None,
        typer.Option(
            help="Size in bytes of the segments that are sent to parameter servers.",
            show_default="the best size found",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    memory_gb: MemoryOption = None,
    fsdp2: Annotated[
        bool,
        typer.Option(
            "--fsdp2",
            help="For a graph: choose settings of FSDP2 instead of a schedule, and print code to paste; "
            "--output writes the settings.",
        ),
    ] = False,
    other_pass: Annotated[
        Path | None,
        file_option(
            "With --fsdp2: graph of the same model's other pass (forward or backward), to choose "
            "settings for both.",
            show_default="one pass",
        ),
    ] = None,
    output: ScheduleOutput = None,
    as_json: JsonOption = False,
    timeline: Annotated[
        Path | None,
        output_option(
            "Write the predicted iteration to this file as a Chrome trace, for ui.perfetto.dev.",
            show_default="no trace",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: PlotOption = None,
    write_lp: Annotated[
        Path | None,
        output_option(
            "Write the linear program to this .lp or .mps file; needs --slot-s.",
            show_default="not written",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Compute a near-optimal schedule for a profile, and print how far from a proven bound it is."""
    from pace.planning.optimize import optimize as solve

    with reported():
        refuse_unknown_ending(plot)
        memory_bytes = budget_bytes(memory_gb)
        make_options = partial(
            Options,
            oracle=oracle,
            lp_solver=lp_solver,
            fusion=fusion,
            search_r=search_r,
            exchange=exchange,
            slot_s=slot_s,
            max_group_bytes=max_group_bytes,
            max_segment_bytes=max_segment_bytes,
            risk=risk,
            partition_bytes=partition_bytes,
        )
        if is_graph(profile):
            given = {
                "--timeline": timeline,
                "--write-lp": write_lp,
                "--for": framework,
                "--servers": servers,
                "--cluster": cluster,
                "--colocated": colocated or None,
            }
            refused = [name for name, value in given.items() if value is not None]
            if refused:
                raise InvalidOptions(f"{', '.join(refused)}: for profiles only, and {profile} is a graph")
            graph = load_graph(profile)
            if fsdp2:
                make_options().refuse_for_graph()
                report_fsdp2(graph, other_pass, memory_bytes, output, as_json=as_json)
                return
            if other_pass is not None:
                raise InvalidOptions("--other-pass needs --fsdp2: add it, or leave --other-pass out")
            planned = solve(graph, make_options(memory_bytes=memory_bytes))
            if output is not None:
                output.write_bytes(planned.to_json())
            if plot is not None:
                draw_graph(graph, planned, plot)
            if as_json:
                sys.stdout.buffer.write(planned.to_json())
            else:
                describe(graph, planned, make_console())
            return
        for name, value in (
            ("--memory-gb", memory_gb),
            ("--fsdp2", fsdp2 or None),
            ("--other-pass", other_pass),
        ):
            if value is not None:
                raise InvalidOptions(f"{name} is for graphs, and {profile} is a profile")
        loaded = load_profile(profile)
        warn_if_misleading(loaded)
        tell_slowdown(loaded)
        named = servers is not None or cluster is not None or colocated
        if named and exchange not in (None, "servers"):
            raise InvalidOptions(
                f"--servers, --colocated and --cluster need --exchange servers, not --exchange {exchange}"
            )
        if write_lp is not None and slot_s is None:
            raise InvalidOptions("--write-lp needs --slot-s: the linear program works in time slots")
        options = make_options(
            framework=framework,
            cluster=described_cluster(loaded, cluster, servers, colocated=colocated)
            if named or exchange == "servers"
            else None,
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
    """Print what to pass to the framework, and what its barrier costs compared with PACE's runtime."""
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
    profile: ProfileOrGraphArgument,
    schedule: Annotated[Path, file_argument("Schedule to check (JSON), from `pace optimize`.")],
    as_json: JsonOption = False,
) -> None:
    """Check a schedule against its profile, independently of the solver.

    Prints every violation, and exits with 1 if there is one.
    """
    from pace.checker import check as judge

    with reported():
        loaded = load_graph(profile) if is_graph(profile) else load_profile(profile)
        judged(schedule, lambda: judge(loaded, load_schedule(schedule)), as_json=as_json)
