"""``pace simulate``: a profile or a graph under many policies, on its network or with parameter servers.

With ``--tune``: the best knobs of policies, and the cost of each search for them.
"""

import json
from typing import Annotated, Any

import typer

from pace.documents.options import OF_PROFILES, For, SimulationOptions
from pace.errors import InvalidOptions
from pace.kinds import load_problem
from pace.kinds.comparison import refuse_unknown_knobs
from pace.kinds.kind import AnyProblem, Kind
from pace.kinds.registry import kinds
from pace.kinds.tuning import Tuned, tunable, tune
from pace.simulation.registry import policies_for
from pace.solver.knob_search import SEARCHES, Search
from pace.terminal.console import (
    JsonOption,
    PlotOption,
    ProfileOrGraphArgument,
    make_console,
    make_table,
    refuse_unknown_ending,
)
from pace.terminal.kind_options import fields_of_flags, kind_for, refuse_others, with_options_of
from pace.terminal.reporting import reported, warn_of_unused


@with_options_of(
    SimulationOptions,
    apart=("cluster", "consistency", "staleness", "knobs"),
    own={
        "tune": For(OF_PROFILES),
        "trials": For(OF_PROFILES, needs=("tune", None)),
        "plot": For(("graph",)),
    },
)
def simulate(
    ctx: typer.Context,
    profile: ProfileOrGraphArgument,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to simulate, one of those named below; repeat the option for several.",
            show_default="all policies of the exchange",
        ),
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE: set a knob of all policies that have it, for example bucket_bytes=26214400; "
            "repeat the option for several.",
            show_default="each policy's own defaults",
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            help="Search for the best knobs of each policy: bayes, grid, random or momentum.",
            show_default="no search",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="With --tune: number of settings of the knobs that each search tries.")
    ] = 40,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    **asked: Any,
) -> None:
    """Compare scheduling policies: simulate a profile or a graph under each and print the iteration times."""
    from pace.kinds.comparison import simulate as run

    with reported():
        refuse_unknown_ending(plot)
        loaded = load_problem(profile)
        kind = kinds()[kind_for(ctx.command, loaded, ctx.params)]
        refuse_others(ctx, kind.name)
        warn_of_unused(loaded, kind)
        asked |= fields_of_flags(ctx.command, kind, loaded, asked)
        if not kind.shares_network:
            asked["exchange"] = kind.name
        knobs = _knobs(knob or [])
        options = SimulationOptions(**asked, knobs=knobs)
        if tune is not None:
            report(loaded, options, policy, search=tune, num_trials=trials, as_json=as_json)
            return
        found = run(loaded, policy, options)
        if plot is not None:
            kind.draw_policies(loaded, found, plot)
        bound, speed = kind.lower_bound_s(loaded, options), kind.speed(loaded)
        results = [
            {
                "policy": name,
                "knobs": each.knobs,
                "iteration_s": each.iteration_s,
                "throughput": speed[0] / each.iteration_s if speed and each.iteration_s else None,
                "over_bound": None if bound is None else each.iteration_s / bound - 1 if bound else 0.0,
                **{field: value_of(each.run) for field, value_of, _ in kind.details.values()},
            }
            for name, each in found.items()
        ]
    unit = speed and f"{speed[1]}/s"
    if as_json:
        document: dict[str, Any] = {kind.noun: loaded.name, "throughput_unit": unit}
        if options.cluster is not None:
            document["cluster"] = json.loads(options.cluster.model_dump_json())
        typer.echo(json.dumps(document | {"lower_bound_s": bound, "policies": results}))
        return
    _show(kind.simulated_title(loaded, options), kind, unit, bound, results)


def _show(
    title: str, kind: Kind, unit: str | None, bound: float | None, results: list[dict[str, Any]]
) -> None:
    console = make_console()
    known = "" if bound is None else f": no schedule is faster than {bound * 1e3:.3f} ms"
    console.print(f"{title}{known}", highlight=False)
    units = [] if unit is None else [unit]
    table = make_table("policy", "iteration ms", *units, "over the bound", *kind.details, left=("policy",))
    for row in results:
        over = "" if row["over_bound"] is None else f"{row['over_bound'] * 100:z.2f} %"
        details = [text_of(row[field]) for field, _, text_of in kind.details.values()]
        shown = ["" if row["throughput"] is None else f"{row['throughput']:,.5g}" for _ in units]
        table.add_row(row["policy"], f"{row['iteration_s'] * 1e3:.3f}", *shown, over, *details)
    console.print(table)


def _knobs(given: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value is JSON if it can be, else a word."""
    knobs: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOptions(f'--knob "{pair}": expected NAME=VALUE, for example bucket_bytes=26214400')
        try:
            knobs[name] = json.loads(value)
        except ValueError:
            knobs[name] = value
    return knobs


def report(
    problem: AnyProblem,
    options: SimulationOptions,
    policies: list[str] | None,
    *,
    search: str,
    num_trials: int,
    as_json: bool,
) -> None:
    """Tune `policies` (default: all that have knobs) and print the result beside those of other searches."""
    exchange = options.policies_of
    chosen = policies or [name for name in policies_for(exchange) if tunable(name, exchange)]
    if search not in SEARCHES:
        raise InvalidOptions(f'--tune "{search}": expected one of {", ".join(SEARCHES)}')
    refuse_unknown_knobs(options, chosen, exchange)
    results = []
    for name in chosen:
        found = {way: tune(problem, name, options, search=way, num_trials=num_trials) for way in SEARCHES}
        results.append(result_of(found, search))
    if as_json:
        typer.echo(json.dumps({"profile": problem.name, "search": search, "policies": results}))
    else:
        show_tuned(problem, results)


def result_of(found: dict[Search, Tuned], search: str) -> dict[str, Any]:
    """Return what tuning one policy gains, and the cost of every search."""
    tuned = next(each for way, each in found.items() if way == search)
    least = min(each.best.iteration_s for each in found.values())
    return {
        "policy": tuned.policy,
        "default": {"knobs": tuned.default.knobs, "iteration_s": tuned.default.iteration_s},
        "best": {"knobs": tuned.best.knobs, "iteration_s": tuned.best.iteration_s},
        "searches": {
            way: {
                "iteration_s": each.best.iteration_s,
                "trials": each.num_trials,
                "trials_to_1_percent": each.trials_to(least),
            }
            for way, each in found.items()
        },
    }


def show_tuned(problem: AnyProblem, results: list[dict[str, Any]]) -> None:
    """Print the results of several policies."""
    console = make_console(width=160)
    console.print(
        f"{problem.name}: iteration time in ms; for each search, the number of settings that it tried until "
        "it was within 1 % of the best",
        highlight=False,
    )
    table = make_table("policy", "default", "tuned", *SEARCHES, "knobs", left=("policy", "knobs"))
    for row in results:
        cost = [
            "never" if each["trials_to_1_percent"] is None else str(each["trials_to_1_percent"])
            for each in row["searches"].values()
        ]
        times = (f"{row[which]['iteration_s'] * 1e3:.3f}" for which in ("default", "best"))
        knobs = " ".join(f"{name}={value:.4g}" for name, value in row["best"]["knobs"].items())
        table.add_row(row["policy"], *times, *cost, knobs)
    console.print(table)
