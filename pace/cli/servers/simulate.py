"""``pace simulate --exchange servers``: a profile on parameter servers under the policies of the field."""

import json
from typing import Any

import typer

from pace.cli.console import make_console, make_table
from pace.documents.cluster import Cluster
from pace.documents.profile import Profile
from pace.errors import InvalidOptions


def report_exchange(
    profile: Profile,
    cluster: Cluster,
    policies: list[str] | None,
    knobs: list[str],
    *,
    iterations: int,
    jitter: float,
    seed: int,
    asynchronous: bool,
    staleness: int | None,
    tune: str | None,
    trials: int,
    as_json: bool,
) -> None:
    """Simulate `policies` (all by default) on a cluster and print what each takes, or tune them."""
    from pace.documents.options import Options
    from pace.parameter_server.optimize import optimize_servers
    from pace.simulation.parameter_server import (
        EXCHANGE_POLICIES,
        exchange_knobs,
        make_exchange_policy,
        simulate_exchange,
    )

    chosen = list(policies or EXCHANGE_POLICIES)
    given = _knobs(knobs, chosen)
    if tune is not None:
        _tune(profile, cluster, policies, given, search=tune, trials=trials, seed=seed, as_json=as_json)
        return
    stale = asynchronous or bool(staleness)
    bound = 0.0 if stale else optimize_servers(profile, Options(cluster=cluster)).predicted.lower_bound_s
    results: list[dict[str, Any]] = []
    for name in chosen:
        if stale and policies is None and name in ("ps-tio", "ps-tao"):
            continue  # their steps end at a barrier
        mine = {key: value for key, value in given.items() if key in exchange_knobs(name)}
        run = simulate_exchange(
            profile,
            cluster,
            make_exchange_policy(name, **mine),
            iterations=iterations,
            jitter=jitter,
            seed=seed,
            consistency="async" if asynchronous else "sync",
            staleness=staleness,
        )
        results.append(
            {
                "policy": name,
                "knobs": mine,
                "iteration_s": run.iteration_s,
                "straggler_share": run.straggler_share,
                "lead": run.lead,
                "over_bound": run.iteration_s / bound - 1 if bound else None,
            }
        )
    if as_json:
        document = {"profile": profile.name, "cluster": json.loads(cluster.model_dump_json())}
        typer.echo(json.dumps(document | {"lower_bound_s": bound or None, "policies": results}))
        return
    console = make_console()
    servers = f"{profile.workers} workers, {cluster.exchange.servers} servers"
    known = "" if stale else f": no order is faster than {bound * 1e3:.3f} ms"
    console.print(f"{profile.name}, {servers}{known}", highlight=False)
    table = make_table(
        "policy", "iteration ms", "over the bound", "waits for stragglers", "lead", left=("policy",)
    )
    for row in results:
        over = "" if row["over_bound"] is None else f"{row['over_bound'] * 100:.2f} %"
        waits = f"{row['straggler_share'] * 100:.2f} %"
        table.add_row(row["policy"], f"{row['iteration_s'] * 1e3:.3f}", over, waits, str(row["lead"]))
    console.print(table)


def _knobs(given: list[str], policies: list[str]) -> dict[str, Any]:
    from pace.simulation.parameter_server import exchange_knobs

    knobs: dict[str, Any] = {}
    known = sorted({name for policy in policies for name in exchange_knobs(policy)})
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or name not in known:
            raise InvalidOptions(f'no knob "{name}" (NAME=VALUE): these policies have {", ".join(known)}')
        try:
            knobs[name] = json.loads(value)
        except ValueError:
            knobs[name] = value
    return knobs


def _tune(
    profile: Profile,
    cluster: Cluster,
    policies: list[str] | None,
    knobs: dict[str, Any],
    *,
    search: str,
    trials: int,
    seed: int,
    as_json: bool,
) -> None:
    from pace.cli.tune import result_of, show_tuned
    from pace.simulation.parameter_server import EXCHANGE_POLICIES, exchange_knobs
    from pace.simulation.parameter_server.tune import tunable_exchange, tune_exchange
    from pace.simulation.tune import SEARCHES

    if search not in SEARCHES:
        raise InvalidOptions(f'no search "{search}": choose one of {", ".join(SEARCHES)}')
    results = []
    for name in policies or [name for name in EXCHANGE_POLICIES if tunable_exchange(name)]:
        fixed = {key: value for key, value in knobs.items() if key in exchange_knobs(name)}
        found = {
            way: tune_exchange(profile, cluster, name, search=way, num_trials=trials, seed=seed, fixed=fixed)
            for way in SEARCHES
        }
        results.append(result_of(found, search))
    if as_json:
        typer.echo(json.dumps({"profile": profile.name, "search": search, "policies": results}))
    else:
        show_tuned(profile, results)
