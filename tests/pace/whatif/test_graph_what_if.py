"""What-ifs of graphs, on forward passes small enough to work out by hand."""

from pathlib import Path

import pytest

from pace.documents.collective_costs import SampledAllReduce
from pace.documents.graph.nodes import OpCost
from pace.errors import InvalidOptions
from pace.view.what_if_charts import plot_graph_what_if
from pace.whatif.graphs import GraphGrid, what_if_graph, with_bandwidth
from tests.sharded_graphs import FULL, forward, graph_of

GRAPH = graph_of(forward(3))
ONE_UNIT = FULL + 3 * 16


def test_bandwidth_shortens_what_bytes_take() -> None:
    """A gather takes 0.5 s and 64 bytes at 1/512 s: with half and twice the bandwidth 0.75 s and 0.5625 s."""
    grid = GraphGrid(bandwidth_factor=(0.5, 1, 2), policies=("as-traced", "pace"))
    cells = what_if_graph(GRAPH, grid).cells
    assert [cell.iteration_s for cell in cells if cell.policy == "as-traced"] == [8.25, 7.875, 7.6875]
    assert [cell.iteration_s for cell in cells if cell.policy == "pace"] == [6.75, 6.625, 6.5625]
    assert [cell.lower_bound_s for cell in cells if cell.policy == "pace"] == [6.75, 6.625, 6.5625]


def test_measured_costs_keep_the_latency_of_their_smallest_sample() -> None:
    """A cost of 1 s for a byte and 3 s for 64 bytes takes 2 s with twice the bandwidth."""
    cost = OpCost(op="all-gather", cost=SampledAllReduce(samples=((1.0, 1.0), (64.0, 3.0))))
    communicators = tuple(each.model_copy(update={"costs": (cost,)}) for each in GRAPH.communicators)
    measured = GRAPH.model_copy(update={"communicators": communicators})
    (scaled,) = with_bandwidth(measured, 2.0).communicators[0].costs
    assert scaled.curve(4)(64.0) == pytest.approx(2.0)
    assert scaled.curve(4)(1.0) == pytest.approx(1.0)


def test_memory_limits_planners_and_marks_the_others() -> None:
    """With room for one unit nothing runs ahead; FSDP2 gathers ahead all the same, and does not fit."""
    grid = GraphGrid(memory_gb=(1e-9, ONE_UNIT / 1e9, 1.0), policies=("fsdp2", "pace"))
    cells = {(cell.memory_gb, cell.policy): cell for cell in what_if_graph(GRAPH, grid).cells}
    assert cells[1e-9, "pace"].iteration_s is None
    assert cells[ONE_UNIT / 1e9, "pace"].iteration_s == 7.875
    assert cells[1.0, "pace"].iteration_s == 6.625
    assert not cells[ONE_UNIT / 1e9, "fsdp2"].fits
    assert cells[1.0, "fsdp2"].fits


def test_results_are_written_and_drawn(tmp_path: Path) -> None:
    """As CSV with a line for each cell, as a document, and as a chart over memory, bandwidth or ranks."""
    for grid in (
        GraphGrid(memory_gb=(1e-9, 0.5, 1.0), policies=("fsdp2", "pace")),
        GraphGrid(bandwidth_factor=(1.0, 2.0), policies=("pace",)),
        GraphGrid(ranks=(2, 4, 8), bandwidth_factor=(1.0, 2.0), policies=("pace",)),
    ):
        result = what_if_graph(GRAPH, grid)
        assert result.to_csv().count("\n") == 1 + len(result.cells)
        assert len(result.to_document()["cells"]) == len(result.cells)
        plot_graph_what_if(result, tmp_path / "chart.png")
        assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_grids_are_refused() -> None:
    """Numbers that cannot be, too many cells and unknown policies."""
    with pytest.raises(InvalidOptions, match=r"bandwidth_factor: .*got 0"):
        GraphGrid(bandwidth_factor=(0.0,))
    with pytest.raises(InvalidOptions, match=r"memory_gb: .*got -1"):
        GraphGrid(memory_gb=(-1.0,))
    with pytest.raises(InvalidOptions, match="at most 2,000 are allowed"):
        GraphGrid(memory_gb=tuple(range(1, 1000)))
    with pytest.raises(InvalidOptions, match='policy "ddp" needs a profile'):
        GraphGrid(policies=("ddp",))
    with pytest.raises(InvalidOptions, match="ranks: 8 is given twice"):
        GraphGrid(ranks=(2, 8, 8))


def test_noisy_samples_get_no_slower_on_a_faster_wire() -> None:
    """The smallest sample took longer than a larger one: none may become negative, or grow."""
    graph = graph_of(forward(1))
    noisy = OpCost(op="all-gather", cost=SampledAllReduce(samples=((8, 2.0), (64, 0.5), (512, 4.0))))
    communicators = tuple(each.model_copy(update={"costs": (noisy,)}) for each in graph.communicators)
    graph = graph.model_copy(update={"communicators": communicators})
    for factor, expected in ((0.5, [3.5, 0.5, 7.5]), (2.0, [1.25, 0.5, 2.25])):
        cost = with_bandwidth(graph, factor).communicators[0].costs[0].cost
        assert isinstance(cost, SampledAllReduce)
        assert [seconds for _, seconds in cost.samples] == expected
