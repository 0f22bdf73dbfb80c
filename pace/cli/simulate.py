"""``pace simulate``: a profile under the policies of the field."""

import json
from typing import Annotated, Any

import typer

from pace.cli.console import (
    ClusterOption,
    ColocatedOption,
    JsonOption,
    ProfileArgument,
    ServersOption,
    SimulatedExchange,
    make_console,
    make_table,
)
from pace.cli.reporting import reported
from pace.cli.servers.clusters import described_cluster
from pace.documents.profile import load_profile
from pace.errors import InvalidOptions


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
        SimulatedExchange, typer.Option(help="All-reduce, or push to parameter servers and pull.")
    ] = "allreduce",
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
    from pace.planning import lower_bound_s
    from pace.simulation import POLICIES, knobs_of, make_policy
    from pace.simulation import simulate as run

    with reported():
        loaded = load_profile(profile)
        if exchange == "servers":
            from pace.cli.servers.simulate import report_exchange

            report_exchange(
                loaded,
                described_cluster(loaded, cluster, servers, colocated=colocated),
                policy,
                knob or [],
                iterations=iterations,
                jitter=jitter,
                seed=seed,
                asynchronous=asynchronous,
                staleness=staleness,
                tune=tune,
                trials=trials,
                as_json=as_json,
            )
            return
        if servers is not None or cluster is not None or colocated or asynchronous or staleness is not None:
            raise InvalidOptions(
                "--servers, --colocated, --cluster, --async and --staleness belong to --exchange servers"
            )
        knobs = _knobs(knob or [], policy or list(POLICIES))
        if tune is not None:
            from pace.cli.tune import report

            report(loaded, policy, knobs, search=tune, num_trials=trials, seed=seed, as_json=as_json)
            return
        bound = lower_bound_s(loaded)
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
    table = make_table("policy", "iteration ms", "spread ms", "over the bound", left=("policy",))
    for row in results:
        spread = f"{row['iteration_std_s'] * 1e3:.3f}"
        table.add_row(
            str(row["policy"]), f"{row['iteration_s'] * 1e3:.3f}", spread, f"{row['over_bound'] * 100:.2f} %"
        )
    console = make_console()
    console.print(f"{loaded.name}: no schedule is faster than {bound * 1e3:.3f} ms", highlight=False)
    console.print(table)


def _knobs(given: list[str], policies: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value is JSON where it can be, else a word."""
    from pace.simulation import knobs_of

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
