"""``pace what-if``: a graph with other ranks, bandwidths and memory budgets."""

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.terminal.console import make_console, make_table, progress_bar
from pace.terminal.service_connection import connect
from pace.whatif.graphs import GraphCell, GraphGrid, GraphWhatIf, what_if_graph


def report_graph(
    graph: CollectiveGraph,
    grid: GraphGrid,
    service: str | None,
    api_key: str | None,
    timeout_s: float,
    *,
    as_json: bool,
    as_csv: bool,
    plot: Path | None,
) -> None:
    """Run a grid of a graph, here or on a service, and print it as a table, JSON or CSV."""
    with ExitStack() as stack:
        client = None if service is None else stack.enter_context(connect(service, api_key, timeout_s))
        bar = stack.enter_context(progress_bar())
        ask = what_if_graph if client is None else client.what_if
        result = ask(graph, grid, progress=partial(bar.advance, bar.add_task("cells", total=grid.num_cells)))
    if plot is not None:
        from pace.view.what_if_charts import plot_graph_what_if

        plot_graph_what_if(result, plot)
    if as_json:
        json.dump(result.to_document(), sys.stdout)
        sys.stdout.write("\n")
    elif as_csv:
        sys.stdout.write(result.to_csv())
    else:
        _show(result)


def _show(result: GraphWhatIf) -> None:
    console = make_console(width=160)
    console.print(f"{result.graph}: iteration ms (peak GB); * exceeds the memory budget", highlight=False)
    policies = result.grid.policies
    table = make_table(
        *(["ranks"] if result.grid.ranks else []), "bandwidth factor", "budget GB", *policies, "bound ms"
    )
    for at in range(0, len(result.cells), len(policies)):
        cells = result.cells[at : at + len(policies)]
        one = cells[0]
        table.add_row(
            *([] if one.ranks is None else [str(one.ranks)]),
            f"{one.bandwidth_factor:g}",
            "no limit" if one.memory_gb is None else f"{one.memory_gb:g}",
            *(_cell(cell) for cell in cells),
            f"{one.lower_bound_s * 1e3:.3f}",
        )
    console.print(table)


def _cell(cell: GraphCell) -> str:
    if cell.iteration_s is None or cell.peak_bytes is None:
        return "no plan fits"
    mark = "" if cell.fits else "*"
    return f"{cell.iteration_s * 1e3:.3f} ({cell.peak_bytes / 1e9:.2f}{mark})"
