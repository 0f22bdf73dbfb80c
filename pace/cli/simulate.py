"""``pace simulate``: a profile under the policies of the field, on one network or on parameter servers."""

import json
from typing import Annotated, Any

import typer

from pace.cli.servers.clusters import described_cluster
from pace.documents.cluster import Cluster
from pace.documents.profile import Profile, load_profile
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.terminal.console import (
    ClusterOption,
    ColocatedOption,
    JsonOption,
    ProfileArgument,
    ServersOption,
    make_console,
    make_table,
)
from pace.terminal.reporting import reported


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
    exchange: Annotated[
        Exchange | None, typer.Option(help="Only policies of this exchange; by default all of one network.")
    ] = None,
    servers: ServersOption = None,
    colocated: ColocatedOption = False,
    cluster: ClusterOption = None,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Servers answer every push at once; with --exchange servers.")
    ] = False,
    staleness: Annotated[
        int | None, typer.Option(help="Windows that a worker may be ahead; with --exchange servers.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a profile under the policies of the field."""
    from pace.simulation import SimulationOptions
    from pace.simulation import simulate as run

    with reported():
        loaded = load_profile(profile)
        named = servers is not None or cluster is not None or colocated
        if (named or asynchronous or staleness is not None) and exchange != "servers":
            raise InvalidOptions(
                "--servers, --colocated, --cluster, --async and --staleness belong to --exchange servers"
            )
        placed = None
        if exchange == "servers":
            placed = described_cluster(loaded, cluster, servers, colocated=colocated)
        knobs = _knobs(knob or [])
        if tune is not None:
            from pace.cli.tune import report

            report(loaded, placed, policy, knobs, search=tune, num_trials=trials, seed=seed, as_json=as_json)
            return
        options = SimulationOptions(
            exchange=exchange,
            cluster=placed,
            iterations=iterations,
            jitter=jitter,
            seed=seed,
            consistency="async" if asynchronous else "sync",
            staleness=staleness,
            knobs=knobs,
        )
        found = run(loaded, policy, options)
        bound = None if options.is_stale else _bound(loaded, placed)
        results = [
            {
                "policy": name,
                "knobs": each.knobs,
                "iteration_s": each.iteration_s,
                "over_bound": each.iteration_s / bound - 1 if bound else None if placed else 0.0,
                **_details(each.run),
            }
            for name, each in found.items()
        ]
    if as_json:
        document: dict[str, Any] = {"profile": loaded.name}
        if placed is not None:
            document["cluster"] = json.loads(placed.model_dump_json())
        typer.echo(json.dumps(document | {"lower_bound_s": bound, "policies": results}))
        return
    _show(loaded, placed, bound, results)


def _bound(profile: Profile, cluster: Cluster | None) -> float:
    from pace.documents.options import Options
    from pace.planning.optimize import lower_bound_s, optimize

    if cluster is None:
        return lower_bound_s(profile)
    return optimize(profile, Options(cluster=cluster)).predicted.lower_bound_s


def _details(run: Any) -> dict[str, Any]:
    from pace.simulation import Simulation

    if isinstance(run, Simulation):
        return {"iteration_std_s": float(run.iterations_s.std())}
    return {"straggler_share": run.straggler_share, "lead": run.lead}


def _show(
    profile: Profile, cluster: Cluster | None, bound: float | None, results: list[dict[str, Any]]
) -> None:
    console = make_console()
    servers = f", {profile.workers} workers, {cluster.exchange.servers} servers" if cluster else ""
    known = "" if bound is None else f": no schedule is faster than {bound * 1e3:.3f} ms"
    console.print(f"{profile.name}{servers}{known}", highlight=False)
    columns = ("spread ms",) if cluster is None else ("waits for stragglers", "lead")
    table = make_table("policy", "iteration ms", "over the bound", *columns, left=("policy",))
    for row in results:
        over = "" if row["over_bound"] is None else f"{row['over_bound'] * 100:.2f} %"
        if cluster is None:
            details = [f"{row['iteration_std_s'] * 1e3:.3f}"]
        else:
            details = [f"{row['straggler_share'] * 100:.2f} %", str(row["lead"])]
        table.add_row(row["policy"], f"{row['iteration_s'] * 1e3:.3f}", over, *details)
    console.print(table)


def _knobs(given: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value is JSON where it can be, else a word."""
    knobs: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOptions(f'"{pair}" sets no knob: NAME=VALUE is needed')
        try:
            knobs[name] = json.loads(value)
        except ValueError:
            knobs[name] = value
    return knobs
