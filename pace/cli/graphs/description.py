"""A schedule of a graph for people: times, memory, what the bound is, what was fused, and a chart."""

from collections import Counter
from functools import partial
from pathlib import Path

from rich.console import Console

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.schedule import Schedule


def describe_graph(graph: CollectiveGraph, schedule: Schedule, console: Console) -> None:
    """Print a schedule of a graph."""
    predicted, plan = schedule.predicted, schedule.graph_plan
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    collectives = sum(len(group.tensors) for group in schedule.groups)
    print_line(
        f"[bold]{graph.name}[/bold]: {len(graph.nodes)} nodes, {collectives} collectives, "
        f"{len(graph.wires)} wire{'s' if len(graph.wires) != 1 else ''}"
    )
    print_line(
        f"iteration   {predicted.iteration_s * 1e3:.3f} ms predicted; "
        f"ops alone {predicted.compute_s * 1e3:.3f} ms"
    )
    if plan.enumerated is None:
        print_line(
            f"optimality  within {predicted.gap * 100:.1f} % of what any plan can do, with any amount of "
            f"memory ({predicted.lower_bound_s * 1e3:.3f} ms)"
        )
    else:
        within = "" if plan.budget_bytes is None else " within the budget"
        print_line(f"optimality  no plan{within} is faster: all orders and all buckets were compared")
    budget = "no budget given" if plan.budget_bytes is None else f"budget {plan.budget_bytes / 1e9:.2f} GB"
    print_line(f"memory      {(predicted.peak_bytes or 0) / 1e9:.2f} GB at the peak; {budget}")
    print_line(f"method      {schedule.solver.method}")
    sent = Counter((transfer.op, schedule.links[transfer.link]) for transfer in schedule.transfers)
    fused = Counter[tuple[str, str]]()
    for transfer in schedule.transfers:
        fused[transfer.op, schedule.links[transfer.link]] += len(schedule.groups[transfer.group].tensors)
    for (op, wire), count in sorted(sent.items()):
        print_line(f"  {op} on wire {wire}: {fused[op, wire]} collectives in {count} calls")


def draw_graph(graph: CollectiveGraph, schedule: Schedule, path: Path) -> None:
    """Draw what a schedule of a graph predicts."""
    from pace.simulation.graph.run import run_schedule
    from pace.view.chart import plot_windows
    from pace.view.graph_window import lay_out_graph

    predicted = schedule.predicted
    title = (
        f"{graph.name}: {predicted.iteration_s * 1e3:.1f} ms predicted, {predicted.gap:.1%} over the bound"
    )
    window = lay_out_graph(graph, run_schedule(graph, schedule), "schedule", schedule.graph_plan.budget_bytes)
    plot_windows([(title, window)], path)
