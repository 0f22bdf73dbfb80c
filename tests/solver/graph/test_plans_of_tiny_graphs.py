"""The planner against every plan of tiny graphs."""

import numpy as np
import pytest

from pace.documents.graph.nodes import GraphNode
from pace.planning.graph.arrays import program_of
from pace.solver.graph.list_schedule import UNLIMITED, ListRules, ListScheduler
from pace.solver.graph.program import ProgramPlan
from pace.solver.graph.search import search
from pace.solver.graph.timeline import run
from tests.sharded_graphs import backward, collective, forward, graph_of, wait
from tests.solver.graph.exhaustive import fastest, peak_bytes

LAYERS = {"forward": forward(3, compute_s=1.0), "backward": backward(2)[:-2]}
"""The last scatter is left out: every plan sends it last."""


@pytest.mark.parametrize("room_bytes", [UNLIMITED, 0, 64])
@pytest.mark.parametrize(("latency_s", "copy_bytes_per_s"), [(0.5, 1e6), (4.0, 1e6), (0.25, 64.0)])
@pytest.mark.parametrize("nodes", LAYERS.values(), ids=LAYERS)
def test_no_plan_of_a_few_layers_is_faster(
    nodes: list[GraphNode], latency_s: float, copy_bytes_per_s: float, room_bytes: int
) -> None:
    """With and without a memory limit, where latency rules and where copies are dear."""
    program = program_of(graph_of(nodes, latency_s=latency_s, copy_bytes_per_s=copy_bytes_per_s))
    as_it_is = ListScheduler(program, UNLIMITED).as_it_is()
    assert peak_bytes(program, tuple(range(len(program))), ()) == as_it_is.peak_bytes
    budget_bytes = min(UNLIMITED, as_it_is.peak_bytes + room_bytes)
    found = search(program, budget_bytes, 48)
    assert peak_bytes(program, tuple(found.plan.order.tolist()), found.plan.buckets) == found.peak_bytes
    assert found.peak_bytes <= budget_bytes
    assert found.end_s == pytest.approx(fastest(program, budget_bytes))


def test_compute_is_slower_while_a_wire_is_busy() -> None:
    """A gather of 2 s beside an op of 3 s, which does 1 s of its work meanwhile, and the rest in 2 s."""
    nodes = [
        collective("gather", "all-gather"),
        GraphNode(name="op", duration_s=3.0),
        wait("gather"),
        GraphNode(name="last", duration_s=1.0, deps=("wait gather",)),
    ]
    graph = graph_of(nodes, latency_s=2.0, seconds_per_byte=0.0, compute_slowdown=2.0)
    program = program_of(graph)
    times = run(program, ProgramPlan(order=np.arange(4), buckets=()))
    assert times.end.tolist() == [2.0, 4.0, 4.0, 5.0]
    assert (times.end_s, times.compute_s) == (5.0, 4.0)
    for rules in (ListRules(), ListRules(by_tail=True, window=2)):
        assert ListScheduler(program, UNLIMITED).plan((), rules).end_s == 5.0
