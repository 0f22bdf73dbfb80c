"""Charts of graphs: compute, copies, wires and memory at their times."""

import re
from pathlib import Path

import matplotlib

from pace.documents.options import Options
from pace.planning.graph.optimize import optimize_graph
from pace.simulation.graph.policies import AsTraced, Fsdp2
from pace.simulation.graph.run import run_graph_policy, run_schedule
from pace.view.chart import plot_windows
from pace.view.graph_window import lay_out_graph
from tests.sharded_graphs import FULL, backward, forward, graph_of


def test_compute_wires_and_memory_are_laid_out() -> None:
    """Two layers as traced: gathers of 0.625 s and layers of 2 s take turns."""
    graph = graph_of(forward(2))
    window = lay_out_graph(graph, run_graph_policy(graph, AsTraced()), "as traced", 500)
    assert window.links == ("wire wire",)
    assert window.times.starts_s.tolist() == [0.625, 3.25]
    assert window.times.ends_s.tolist() == [2.625, 5.25]
    assert [(each.start_s, each.end_s) for each in window.transfers] == [(0.0, 0.625), (2.625, 3.25)]
    assert window.memory is not None
    assert window.memory.starts_s.tolist() == [0.0, 0.625, 2.625, 3.25]
    assert window.memory.in_use_bytes.tolist() == [FULL, FULL + 16, FULL + 16, FULL + 32]
    assert window.memory.budget_bytes == 500


def test_copies_are_apart_from_compute() -> None:
    """A bucket of two gathers is copied in at once and out before the first layer."""
    graph = graph_of(forward(2), copy_bytes_per_s=2 * FULL)
    window = lay_out_graph(graph, run_graph_policy(graph, Fsdp2(unit_collectives=2)), "fsdp2")
    assert window.op_phases == ("copy", "copy", "compute")
    assert window.times.ends_s[0] == 0.5
    assert window.times.ends_s[1] - window.times.starts_s[1] == 2.0


def test_plans_are_drawn_below_one_another(tmp_path: Path) -> None:
    """The legend names kinds of collectives once; each plan has its own memory."""
    graph = graph_of(backward(3))
    runs = {
        "as traced": run_graph_policy(graph, AsTraced()),
        "planned": run_schedule(graph, optimize_graph(graph, Options())),
    }
    path = tmp_path / "plans.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_windows([(name, lay_out_graph(graph, run, name, 2000)) for name, run in runs.items()], path)
    found = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
    assert found.index("as traced") < found.index("planned")
    assert found.count("reduce-scatter") == 1
    assert found.count("GB in use") == 2
    assert found.count("a group is ready") == 0
    assert "ms from the start of the graph" in found
