"""The command line: ``pace``. Each command is a thin layer over one function of the package.

With ``--json`` stdout holds exactly one JSON document; people's text goes to stderr. Exit codes: 0 done,
1 the thing asked about is wrong, 2 wrong usage, 3 service or environment failed.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pace.api.keys_cli import app as keys_app
from pace.errors import InvalidOptions, InvalidSchedule
from pace.import_cli import app as import_app
from pace.import_cli import fit
from pace.options import Options, Risk
from pace.profile import Profile, load_profile
from pace.reporting import WRONG, reported
from pace.schedule import Fusion, Oracle, Schedule, Target, load_schedule
from pace.whatif_cli import what_if

app = typer.Typer(
    name="pace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Schedules gradient all-reduces so that communication hides behind compute.",
)

app.add_typer(import_app, name="import")
app.add_typer(keys_app, name="keys")
app.command()(fit)
app.command()(what_if)

ProfileArgument = Annotated[
    Path, typer.Argument(help="A profile document.", exists=True, dir_okay=False, readable=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]


def _write(path: Path | None, content: bytes) -> None:
    if path is not None:
        path.write_bytes(content)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)


@app.command()
def optimize(
    profile: ProfileArgument,
    oracle: Annotated[
        Oracle, typer.Option(help="Longest tail first, or the LP (needs --slot-s).")
    ] = "jackson",
    fusion: Annotated[Fusion, typer.Option(help="How gradients are fused.")] = "optimal",
    target: Annotated[Target, typer.Option(help="Whose semantics to optimise for.")] = "pace",
    slot_s: Annotated[
        float | None, typer.Option(help="Slot length in seconds; else continuous time.")
    ] = None,
    max_group_bytes: Annotated[int | None, typer.Option(help="Largest group of several gradients.")] = None,
    max_segment_bytes: Annotated[int | None, typer.Option(help="Largest segment.")] = None,
    scenarios: Annotated[int, typer.Option(help="Compare plans over this many jittered windows.")] = 0,
    jitter: Annotated[float, typer.Option(help="Relative spread of ops that have no measured one.")] = 0.0,
    risk: Annotated[Risk, typer.Option(help="What counts over the scenarios.")] = "mean",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the schedule here.")] = None,
    as_json: JsonOption = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the predicted window as a Chrome trace.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the predicted window: PNG, SVG or PDF.")] = None,
    write_lp: Annotated[Path | None, typer.Option(help="Write the linear program as .lp or .mps.")] = None,
) -> None:
    """Compute the schedule of a profile."""
    from pace.optimize import optimize as solve

    with reported():
        loaded = load_profile(profile)
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
        schedule = solve(loaded, options)
        _write(output, schedule.to_json())
        if timeline is not None:
            from pace.timeline import chrome_trace

            _write(timeline, json.dumps(chrome_trace(loaded, schedule)).encode())
        if plot is not None:
            from pace.plot import plot as draw

            draw(loaded, schedule, plot)
        if write_lp is not None:
            from pace.optimize import write_lp as write_program

            write_program(schedule, write_lp)
        if as_json:
            sys.stdout.buffer.write(schedule.to_json())
        else:
            describe(loaded, schedule, _console())
            if target != "pace":
                _describe_framework(schedule, solve(loaded), _console())


def _options(**given: Any) -> Options:
    from pydantic import ValidationError

    try:
        return Options(**given)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors(include_url=False))
        raise InvalidOptions("; ".join(faults)) from None


def _describe_framework(schedule: Schedule, preemptive: Schedule, console: Console) -> None:
    """Print what to pass to the framework, and what its semantics cost against ours."""
    from pace.frameworks import bucket_cap_mb_list, horovod_groups

    print_line = partial(console.print, highlight=False, soft_wrap=True)
    loss = schedule.predicted.iteration_s / preemptive.predicted.iteration_s - 1 if preemptive.groups else 0.0
    print_line("")
    print_line(
        f"{loss * 100:.1f} % slower than target pace is predicted to be "
        f"({preemptive.predicted.iteration_s * 1e3:.3f} ms)"
    )
    if schedule.target == "ddp":
        print_line(f"bucket_cap_mb_list={bucket_cap_mb_list(schedule)}")
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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("priority", "group", "bytes", "ready ms", "start ms", "end ms", "needed ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gradients", no_wrap=True)
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


def _semantics(schedule: Schedule) -> str:
    return "" if schedule.target == "pace" else " that stops at a barrier"


def _percent(gap: float) -> str:
    return f"{max(gap, 0.0) * 100:.2g} %" if gap >= 1e-5 else "0 %"


@app.command()
def check(
    profile: ProfileArgument,
    schedule: Annotated[Path, typer.Argument(help="A schedule document.", exists=True, dir_okay=False)],
    as_json: JsonOption = False,
) -> None:
    """Check a schedule against its profile, independently of the solver; exit 1 and name every violation."""
    from pace.check import check as judge

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


@app.command()
def simulate(
    profile: ProfileArgument,
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy; repeat it for several, all by default.")
    ] = None,
    knob: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, for every policy that has it.")] = None,
    iterations: Annotated[int, typer.Option(help="Number of windows.")] = 1,
    jitter: Annotated[float, typer.Option(help="Relative spread of op durations.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same windows.")] = 0,
    tune: Annotated[
        str | None, typer.Option(help="Search for the best knobs: bayesian, grid, random or momentum.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Settings that each search tries.")] = 40,
    as_json: JsonOption = False,
) -> None:
    """Simulate a profile under the policies of the field."""
    from pace.optimize import optimize as solve
    from pace.simulate import POLICIES, knobs_of, make_policy
    from pace.simulate import simulate as run

    with reported():
        loaded = load_profile(profile)
        knobs = _knobs(knob or [], policy or list(POLICIES))
        if tune is not None:
            from pace.tune_cli import report

            report(loaded, policy, knobs, search=tune, num_trials=trials, seed=seed, as_json=as_json)
            return
        bound = solve(loaded).predicted.lower_bound_s
        results: list[dict[str, Any]] = []
        for name in policy or POLICIES:
            mine = {key: value for key, value in knobs.items() if key in knobs_of(name)}
            made = run(loaded, make_policy(name, **mine), iterations=iterations, jitter=jitter, seed=seed)
            times = made.iterations_s
            results.append(
                {
                    "policy": name,
                    "knobs": mine,
                    "iteration_s": made.iteration_s,
                    "iteration_std_s": float(times.std()),
                    "over_bound": made.iteration_s / bound - 1 if bound else 0.0,
                }
            )
    if as_json:
        typer.echo(json.dumps({"profile": loaded.name, "lower_bound_s": bound, "policies": results}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("policy", "iteration ms", "spread ms", "over the bound"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for row in results:
        spread = f"{row['iteration_std_s'] * 1e3:.3f}"
        table.add_row(
            str(row["policy"]), f"{row['iteration_s'] * 1e3:.3f}", spread, f"{row['over_bound'] * 100:.2f} %"
        )
    console = _console()
    console.print(f"{loaded.name}: no schedule is faster than {bound * 1e3:.3f} ms", highlight=False)
    console.print(table)


def _knobs(given: list[str], policies: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value is JSON where it can be, else a word."""
    from pace.simulate import knobs_of

    knobs: dict[str, Any] = {}
    known = sorted({name for policy in policies for name in knobs_of(policy)})
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or name not in known:
            raise InvalidOptions(f'no knob "{name}" (NAME=VALUE): these policies have {", ".join(known)}')
        try:
            knobs[name] = json.loads(value)
        except ValueError:
            knobs[name] = value
    return knobs


@app.command()
def model(
    name: Annotated[
        str, typer.Argument(help="An architecture, such as resnet50; an unknown one lists them all.")
    ],
    device_tflops: Annotated[float, typer.Option(help="Rate of the device in TFLOP/s.")],
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")],
    workers: Annotated[int, typer.Option(help="Number of workers.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the profile here.")],
) -> None:
    """Compute a profile from a model's layer shapes; nothing is measured."""
    from pace.models import build

    with reported():
        profile = build(name, device_tflops=device_tflops, batch=batch, workers=workers)
        _write(output, profile.model_dump_json(indent=2).encode() + b"\n")
    typer.echo(
        f"{output}: {len(profile.ops)} ops, {len(profile.gradients)} gradients, computed, not measured",
        err=True,
    )


@app.command()
def submit(
    profile: ProfileArgument,
    url: Annotated[str, typer.Option(help="Address of the service.")],
    job: Annotated[str | None, typer.Option(help="Name of the job; the profile's name if left out.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PACE_API_KEY", help="If the service wants one.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="How long to wait for the answer.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Send a profile to a service and print the schedule that it answers."""
    with reported():
        from pace.api.client import Client

        loaded = load_profile(profile)
        with Client(url, api_key=api_key, timeout_s=timeout_s) as client:
            schedule = client.create_schedule(loaded, job=job or loaded.name)
        if as_json:
            sys.stdout.buffer.write(schedule.to_json())
        else:
            describe(loaded, schedule, _console())


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    database_url: Annotated[str | None, typer.Option(help="SQLAlchemy URL of SQLite or PostgreSQL.")] = None,
) -> None:
    """Run the scheduling service until it is stopped."""
    with reported():
        from pace.api.serve import serve as run

        run(host=host, port=port, database_url=database_url)
