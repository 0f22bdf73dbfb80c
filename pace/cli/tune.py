"""``pace simulate --tune``: the best knobs of policies, and the cost of each search for them."""

import json
from typing import Any

import typer

from pace.documents.options import SimulationOptions
from pace.errors import InvalidOptions
from pace.kinds.comparison import refuse_unknown_knobs
from pace.kinds.kind import AnyProblem
from pace.kinds.tuning import Tuned, tunable, tune
from pace.simulation.registry import policies_for
from pace.solver.knob_search import SEARCHES, Search
from pace.terminal.console import make_console, make_table


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
