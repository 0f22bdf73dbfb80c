"""``pace simulate``: a graph under policies, as a table, JSON or a chart."""

import json
from pathlib import Path
from typing import Any

import typer

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.terminal.console import make_console, make_table


def report_policies(
    graph: CollectiveGraph,
    policy: list[str] | None,
    options: Any,
    *,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Simulate a graph under policies, and print a table or JSON."""
    from pace.kinds.comparison import simulate as run
    from pace.planning.lower_bound import lower_bound_s
    from pace.simulation import GraphSimulation

    found = run(graph, policy, options)
    bound = lower_bound_s(graph)
    results: list[dict[str, Any]] = [
        {
            "policy": name,
            "knobs": each.knobs,
            "iteration_s": each.iteration_s,
            "over_bound": each.iteration_s / bound - 1 if bound else 0.0,
            "peak_bytes": each.run.memory.peak_bytes,
            "collectives": each.run.num_calls,
        }
        for name, each in found.items()
        if isinstance(each.run, GraphSimulation)
    ]
    if plot is not None:
        from pace.view.chart import plot_windows
        from pace.view.graph_window import lay_out_graph

        plot_windows(
            [
                (
                    f"{name}: {each.iteration_s * 1e3:.1f} ms",
                    lay_out_graph(graph, each.run, name, each.knobs.get("memory_bytes")),
                )
                for name, each in found.items()
                if isinstance(each.run, GraphSimulation)
            ],
            plot,
        )
    if as_json:
        typer.echo(json.dumps({"graph": graph.name, "lower_bound_s": bound, "policies": results}))
        return
    console = make_console()
    console.print(f"{graph.name}: no plan is faster than {bound * 1e3:.3f} ms", highlight=False)
    table = make_table("policy", "iteration ms", "over the bound", "peak GB", "collectives", left=("policy",))
    for row in results:
        table.add_row(
            row["policy"],
            f"{row['iteration_s'] * 1e3:.3f}",
            f"{row['over_bound'] * 100:.2f} %",
            f"{row['peak_bytes'] / 1e9:.3f}",
            str(row["collectives"]),
        )
    console.print(table)
