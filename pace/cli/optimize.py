"""``pace optimize`` and ``pace check``: compute the schedule of a profile or a graph, and check one."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pace.cli.description import describe
from pace.cli.graphs import MemoryOption, budget_bytes, report_fsdp2
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import OF_PROFILES, For, Options
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule, load_schedule
from pace.errors import InvalidOptions
from pace.kinds import check as judge
from pace.kinds import load_problem
from pace.kinds import optimize as solve
from pace.kinds.registry import kinds
from pace.terminal.command_line import file_argument, file_option, output_option
from pace.terminal.console import (
    OUTPUT,
    JsonOption,
    PlotOption,
    ProfileOrGraphArgument,
    ScheduleOutput,
    make_console,
    refuse_unknown_ending,
)
from pace.terminal.kind_options import fields_of_flags, kind_for, refuse_others, with_options_of
from pace.terminal.reporting import judged, reported, tell_slowdown, warn_if_misleading, warn_of_unused

_OF_GRAPHS = For(("graph",))


@with_options_of(
    Options,
    flags={"framework": "--for"},
    apart=("cluster", "memory_bytes"),
    own={
        "memory_gb": _OF_GRAPHS,
        "fsdp2": _OF_GRAPHS,
        "other_pass": _OF_GRAPHS,
        "timeline": For(OF_PROFILES),
        "write_lp": For(("allreduce",), needs=("slot_s", None)),
    },
)
def optimize(
    ctx: typer.Context,
    profile: ProfileOrGraphArgument,
    memory_gb: MemoryOption = None,
    fsdp2: Annotated[
        bool,
        typer.Option(
            "--fsdp2",
            help="Choose settings of FSDP2 instead of a schedule, and print code to paste; --output writes "
            "the settings.",
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
    **asked: Any,
) -> None:
    """Compute a near-optimal schedule for a profile, and print how far from a proven bound it is."""
    with reported():
        refuse_unknown_ending(plot)
        problem = load_problem(profile)
        kind = kinds()[kind_for(ctx.command, problem, ctx.params)]
        refuse_others(ctx, kind.name)
        asked |= fields_of_flags(ctx.command, kind, problem, asked)
        warn_of_unused(problem, kind)
        tell_slowdown(problem, kind)
        if isinstance(problem, CollectiveGraph):
            memory_bytes = budget_bytes(memory_gb)
            if fsdp2:
                report_fsdp2(problem, other_pass, memory_bytes, output, as_json=as_json)
                return
            if other_pass is not None:
                raise InvalidOptions("--other-pass needs --fsdp2: add it, or leave --other-pass out")
            asked["memory_bytes"] = memory_bytes
        else:
            warn_if_misleading(problem)
            if write_lp is not None and asked["slot_s"] is None:
                raise InvalidOptions("--write-lp needs --slot-s: the linear program works in time slots")
        options = Options(**asked)
        schedule = solve(problem, options)
        if output is not None:
            output.write_bytes(schedule.to_json())
        if timeline is not None and isinstance(problem, Profile):
            from pace.view.perfetto import chrome_trace

            timeline.write_text(json.dumps(chrome_trace(problem, schedule)))
        if plot is not None:
            kind.draw(problem, schedule, plot)
        if write_lp is not None:
            from pace.planning.allreduce.optimize import write_lp as write_program

            write_program(schedule, write_lp)
        if as_json:
            sys.stdout.buffer.write(schedule.to_json())
            return
        describe(problem, schedule, make_console())
        if options.framework is not None and isinstance(problem, Profile):
            preemptive = solve(problem, Options(exchange="allreduce"))
            _describe_framework(problem, schedule, preemptive, make_console())


def _describe_framework(profile: Profile, schedule: Schedule, preemptive: Schedule, console: Console) -> None:
    """Print what to pass to the framework, and what its barrier costs compared with PACE's runtime."""
    from pace.planning.frameworks.grouping_rules import bucket_cap_mb_list, horovod_groups
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
    with reported():
        problem = load_problem(profile)
        judged(schedule, lambda: judge(problem, load_schedule(schedule)), as_json=as_json)
