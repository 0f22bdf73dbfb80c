"""``pace simulate``: a profile or a graph under many policies, on its network or with parameter servers."""

import json
from typing import Annotated, Any

import typer

from pace.cli.graphs.policies import report_policies
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import OF_PROFILES, For, SimulationOptions
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.kinds import kinds, load_problem
from pace.kinds.kind import Kind
from pace.terminal.console import (
    JsonOption,
    PlotOption,
    ProfileOrGraphArgument,
    make_console,
    make_table,
    refuse_unknown_ending,
)
from pace.terminal.kind_options import fields_of_flags, kind_for, refuse_others, with_options_of
from pace.terminal.reporting import counted, reported
from pace.whatif.scenario import batch_unit, measured_batch


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
        asked |= fields_of_flags(ctx.command, kind, loaded, asked)
        if not kind.shares_network:
            asked["exchange"] = kind.name
        knobs = _knobs(knob or [])
        if isinstance(loaded, CollectiveGraph):
            options = SimulationOptions(**asked, knobs=knobs)
            report_policies(loaded, policy, options, as_json=as_json, plot=plot)
            return
        if tune is not None:
            from pace.cli.tune import report

            seed = asked["seed"]
            report(
                loaded,
                asked.get("cluster"),
                policy,
                knobs,
                search=tune,
                num_trials=trials,
                seed=seed,
                as_json=as_json,
            )
            return
        options = SimulationOptions(**asked, knobs=knobs)
        found = run(loaded, policy, options)
        bound = kind.lower_bound_s(loaded, options)
        batch = measured_batch(loaded)
        samples = None if batch is None else batch * loaded.workers
        results = [
            {
                "policy": name,
                "knobs": each.knobs,
                "iteration_s": each.iteration_s,
                "throughput": samples / each.iteration_s if samples and each.iteration_s else None,
                "over_bound": None if bound is None else each.iteration_s / bound - 1 if bound else 0.0,
                **{field: value_of(each.run) for field, value_of, _ in kind.details.values()},
            }
            for name, each in found.items()
        ]
    if as_json:
        document: dict[str, Any] = {"profile": loaded.name, "throughput_unit": f"{batch_unit(loaded)}/s"}
        if options.cluster is not None:
            document["cluster"] = json.loads(options.cluster.model_dump_json())
        typer.echo(json.dumps(document | {"lower_bound_s": bound, "policies": results}))
        return
    _show(loaded, kind, options, bound, results)


def _show(
    profile: Profile,
    kind: Kind,
    options: SimulationOptions,
    bound: float | None,
    results: list[dict[str, Any]],
) -> None:
    console = make_console()
    known = "" if bound is None else f": no schedule is faster than {bound * 1e3:.3f} ms"
    where = ""
    if options.cluster is not None:
        servers = counted(options.cluster.exchange.servers, "server")
        where = f", {profile.workers} workers, {servers}"
    console.print(f"{profile.name}{where}{known}", highlight=False)
    speed = [f"{batch_unit(profile)}/s"] if measured_batch(profile) is not None else []
    table = make_table("policy", "iteration ms", *speed, "over the bound", *kind.details, left=("policy",))
    for row in results:
        over = "" if row["over_bound"] is None else f"{row['over_bound'] * 100:.2f} %"
        details = [text_of(row[field]) for field, _, text_of in kind.details.values()]
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
