"""``pace simulate``: a profile or a graph under many policies, on its network or with parameter servers."""

import json
from typing import Annotated, Any

import typer

from pace.cli.graphs.policies import report_policies
from pace.cli.servers.clusters import described_cluster
from pace.documents.cluster import Cluster
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import OF_PROFILES, For, SimulationOptions
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.kinds import load_problem
from pace.terminal.console import (
    SERVERS,
    SERVERS_HAVE,
    ClusterOption,
    ColocatedOption,
    JsonOption,
    PlotOption,
    ProfileOrGraphArgument,
    ServersOption,
    make_console,
    make_table,
    refuse_unknown_ending,
)
from pace.terminal.kind_options import kind_for, refuse_others, with_options_of
from pace.terminal.reporting import counted, reported
from pace.whatif.scenario import batch_unit, measured_batch
from pace.whatif.servers import read_staleness


@with_options_of(
    SimulationOptions,
    apart=("cluster", "consistency", "staleness", "knobs"),
    own=SERVERS_HAVE
    | {
        "staleness": For(("servers",)),
        "tune": For(OF_PROFILES),
        "trials": For(OF_PROFILES, needs=("tune", None)),
        "plot": For(("graph",)),
    },
    servers_by=(*SERVERS_HAVE, "staleness"),
)
def simulate(
    ctx: typer.Context,
    profile: ProfileOrGraphArgument,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to simulate, for example fifo, ddp, horovod, bytescheduler or pace; for a graph "
            "fsdp2, inductor or zero-3; repeat the option for several.",
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
    servers: ServersOption = None,
    colocated: ColocatedOption = False,
    cluster: ClusterOption = None,
    staleness: Annotated[
        str,
        typer.Option(
            help="Number of iterations that a worker may be ahead of the slowest one; sync is 0, async has "
            "no limit.",
            rich_help_panel=SERVERS,
        ),
    ] = "sync",
    as_json: JsonOption = False,
    plot: PlotOption = None,
    **asked: Any,
) -> None:
    """Compare scheduling policies: simulate a profile or a graph under each and print the iteration times."""
    from pace.simulation import simulate as run

    with reported():
        refuse_unknown_ending(plot)
        loaded = load_problem(profile)
        kind = kind_for(ctx.command, loaded, ctx.params)
        refuse_others(ctx, kind)
        on_servers = kind == "servers"
        if on_servers:
            asked["exchange"] = kind
        knobs = _knobs(knob or [])
        if isinstance(loaded, CollectiveGraph):
            options = SimulationOptions(**asked, knobs=knobs)
            report_policies(loaded, policy, options, as_json=as_json, plot=plot)
            return
        mode, ahead = read_staleness(staleness)
        placed = described_cluster(loaded, cluster, servers, colocated=colocated) if on_servers else None
        if tune is not None:
            from pace.cli.tune import report

            seed = asked["seed"]
            report(loaded, placed, policy, knobs, search=tune, num_trials=trials, seed=seed, as_json=as_json)
            return
        options = SimulationOptions(**asked, cluster=placed, consistency=mode, staleness=ahead, knobs=knobs)
        found = run(loaded, policy, options)
        bound = None if options.is_stale else _bound(loaded, placed)
        batch = measured_batch(loaded)
        samples = None if batch is None else batch * loaded.workers
        results = [
            {
                "policy": name,
                "knobs": each.knobs,
                "iteration_s": each.iteration_s,
                "throughput": samples / each.iteration_s if samples and each.iteration_s else None,
                "over_bound": each.iteration_s / bound - 1 if bound else None if placed else 0.0,
                **_details(each.run),
            }
            for name, each in found.items()
        ]
    if as_json:
        document: dict[str, Any] = {"profile": loaded.name, "throughput_unit": f"{batch_unit(loaded)}/s"}
        if placed is not None:
            document["cluster"] = json.loads(placed.model_dump_json())
        typer.echo(json.dumps(document | {"lower_bound_s": bound, "policies": results}))
        return
    _show(loaded, placed, bound, results)


def _bound(profile: Profile, cluster: Cluster | None) -> float:
    from pace.documents.options import Options
    from pace.kinds import optimize
    from pace.planning.lower_bound import lower_bound_s

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
    servers = f", {profile.workers} workers, {counted(cluster.exchange.servers, 'server')}" if cluster else ""
    known = "" if bound is None else f": no schedule is faster than {bound * 1e3:.3f} ms"
    console.print(f"{profile.name}{servers}{known}", highlight=False)
    columns = ("spread ms",) if cluster is None else ("waits for stragglers", "lead")
    speed = [f"{batch_unit(profile)}/s"] if measured_batch(profile) is not None else []
    table = make_table("policy", "iteration ms", *speed, "over the bound", *columns, left=("policy",))
    for row in results:
        over = "" if row["over_bound"] is None else f"{row['over_bound'] * 100:.2f} %"
        if cluster is None:
            details = [f"{row['iteration_std_s'] * 1e3:.3f}"]
        else:
            details = [f"{row['straggler_share'] * 100:.2f} %", str(row["lead"])]
        shown = ["" if row["throughput"] is None else f"{row['throughput']:,.5g}" for _ in speed]
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
