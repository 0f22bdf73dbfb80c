"""The kind of graphs: ops and collectives of a compiled or sharded model, under a budget of memory."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pace.counted import counted
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options, SimulationOptions
from pace.documents.schedule import Schedule
from pace.errors import InvalidGraph
from pace.kinds.kind import Details, Kind, PolicyRun, Row, SimulatedPolicy, WhatIfTable
from pace.kinds.over_profiles import milliseconds

if TYPE_CHECKING:
    from pace.whatif.graphs import GraphCell, GraphGrid, GraphWhatIf


class Graphs(Kind):
    """Graphs of ops and collectives."""

    name = "graph"
    noun = "graph"
    problem = CollectiveGraph
    refused_as = InvalidGraph
    examples: ClassVar[Mapping[str, str]] = {
        "optimize": "pace optimize graph.json --memory-gb 40 -o schedule.json",
        "simulate": "pace simulate graph.json --policy fsdp2 --policy pace",
        "what-if": "pace what-if graph.json --ranks 8,16 --memory-gb 38,40",
    }
    details: ClassVar[Details] = {
        "peak GB": (
            "peak_bytes",
            lambda run: run.memory.peak_bytes,
            lambda peak_bytes: f"{peak_bytes / 1e9:.4g}",
        ),
        "collectives": ("collectives", lambda run: run.num_calls, str),
    }

    def fits(self, graph: CollectiveGraph, options: Options) -> bool:
        """Return True: a graph is of no other kind."""
        return True

    def _solve(self, graph: CollectiveGraph, options: Options) -> Schedule:
        from pace.planning.graph.optimize import optimize_graph

        return optimize_graph(graph, options)

    def _violations(self, graph: CollectiveGraph, schedule: Schedule) -> list[str]:
        from pace.checker.graph.check import check_graph

        return check_graph(graph, schedule)

    def simulate(
        self, graph: CollectiveGraph, policy: str, knobs: Mapping[str, Any], options: SimulationOptions
    ) -> PolicyRun:
        """Plan the graph as the policy does, and simulate one window."""
        from pace.simulation import make_policy
        from pace.simulation.graph.run import run_graph_policy

        return run_graph_policy(graph, make_policy(policy, "graph", **knobs))

    def grid(self) -> "type[GraphGrid]":
        """Return axes of ranks, bandwidths and memory budgets."""
        from pace.whatif.graphs import GraphGrid

        return GraphGrid

    def what_if(
        self,
        graph: CollectiveGraph,
        grid: "GraphGrid",
        *,
        processes: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> "GraphWhatIf":
        """Simulate every point under every policy, in this process."""
        from pace.whatif.graphs import what_if_graph

        return what_if_graph(graph, grid, progress=progress)

    def what_if_table(self, result: "GraphWhatIf") -> WhatIfTable:
        """Return time and peak memory of each policy, and the bound."""
        policies = result.grid.policies
        points = [result.cells[at : at + len(policies)] for at in range(0, len(result.cells), len(policies))]
        return WhatIfTable(
            title=f"{result.graph}: iteration ms (peak GB); * exceeds the memory budget",
            headings=(
                *["ranks"] * bool(result.grid.ranks),
                "bandwidth factor",
                "budget GB",
                *policies,
                "bound ms",
            ),
            rows=tuple(
                (
                    *([] if cells[0].ranks is None else [str(cells[0].ranks)]),
                    f"{cells[0].bandwidth_factor:g}",
                    "no limit" if cells[0].memory_gb is None else f"{cells[0].memory_gb:g}",
                    *(_what_if_cell(cell) for cell in cells),
                    f"{cells[0].lower_bound_s * 1e3:.3f}",
                )
                for cells in points
            ),
        )

    def draw_what_if(self, result: "GraphWhatIf", path: Path) -> None:
        """Draw the time over the axis that varies."""
        from pace.view.what_if_charts import plot_graph_what_if

        plot_graph_what_if(result, path)

    def title(self, graph: CollectiveGraph, schedule: Schedule) -> str:
        """Return the graph's name, and how many nodes, collectives and wires it has."""
        collectives = sum(len(group.tensors) for group in schedule.groups)
        return (
            f"{graph.name}: {counted(len(graph.nodes), 'node')}, {counted(collectives, 'collective')}, "
            f"{counted(len(graph.wires), 'wire')}"
        )

    def rows(self, graph: CollectiveGraph, schedule: Schedule) -> Iterator[Row]:
        """Yield times, the bound, memory and what was fused."""
        predicted, plan = schedule.predicted, schedule.graph_plan
        yield (
            "iteration",
            f"{milliseconds(predicted.iteration_s)} predicted; ops alone {milliseconds(predicted.compute_s)}",
        )
        if plan.enumerated is None:
            late = plan.late
            late_s = 0.0 if late is None else late.bound_s + plan.stretch_s
            priced = late is not None and late.held_s_per_byte and late_s == predicted.lower_bound_s
            memory = "within the budget" if priced else "with any amount of memory"
            yield (
                "optimality",
                f"at most {predicted.gap * 100:z.1f} % above the bound for any plan {memory} "
                f"({milliseconds(predicted.lower_bound_s)})",
            )
        else:
            within = "" if plan.budget_bytes is None else " within the budget"
            yield "optimality", f"no plan{within} is faster: all orders and all buckets were compared"
        budget = (
            "no budget given" if plan.budget_bytes is None else f"budget {plan.budget_bytes / 1e9:.4g} GB"
        )
        yield "memory", f"{(predicted.peak_bytes or 0) / 1e9:.4g} GB at the peak; {budget}"
        yield "method", schedule.solver.method
        sent = Counter((transfer.op, schedule.links[transfer.link]) for transfer in schedule.transfers)
        fused = Counter[tuple[str, str]]()
        for transfer in schedule.transfers:
            fused[transfer.op, schedule.links[transfer.link]] += len(schedule.groups[transfer.group].tensors)
        for (op, wire), count in sorted(sent.items()):
            yield (
                "",
                f"{op} on wire {wire}: {counted(fused[op, wire], 'collective')} in {counted(count, 'call')}",
            )

    def draw(self, graph: CollectiveGraph, schedule: Schedule, path: Path) -> None:
        """Draw ops, wires and memory of the predicted window."""
        from pace.simulation.graph.run import run_schedule
        from pace.view.chart import plot_windows
        from pace.view.graph_window import lay_out_graph

        predicted = schedule.predicted
        title = f"{graph.name}: {milliseconds(predicted.iteration_s)} predicted"
        title += f", {predicted.gap:z.1%} over the bound"
        budget = schedule.graph_plan.budget_bytes
        plot_windows([(title, lay_out_graph(graph, run_schedule(graph, schedule), "schedule", budget))], path)

    def draw_policies(self, graph: CollectiveGraph, found: Mapping[str, SimulatedPolicy], path: Path) -> None:
        """Draw ops, wires and memory of each policy's window."""
        from pace.view.chart import plot_windows
        from pace.view.graph_window import lay_out_graph

        plot_windows(
            [
                (
                    f"{name}: {each.iteration_s * 1e3:.1f} ms",
                    lay_out_graph(graph, each.run, name, each.knobs.get("memory_bytes")),
                )
                for name, each in found.items()
            ],
            path,
        )


def _what_if_cell(cell: "GraphCell") -> str:
    if cell.iteration_s is None or cell.peak_bytes is None:
        return "no plan fits"
    mark = "" if cell.fits else "*"
    return f"{cell.iteration_s * 1e3:.3f} ({cell.peak_bytes / 1e9:.4g}{mark})"
