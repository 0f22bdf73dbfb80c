"""Orders that follow from places, and their prices, on random programs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.planning.graph.arrays import program_of
from pace.solver.graph.fused_program import fuse
from pace.solver.graph.memory import memory_in_use
from pace.solver.graph.program import COLLECTIVE, WAIT, Bucket, Program, ProgramPlan
from pace.solver.graph.reorder import BucketedProgram, fused_order, with_late_waits
from pace.solver.graph.timeline import run
from tests.sharded_graphs import graphs


def sinks_of_one_key(program: Program) -> tuple[Bucket, ...]:
    """Return a bucket of the collectives of one key that nothing else reads, or none."""
    unread = [
        node for node in program.collectives().tolist() if not len(program.users[int(program.wait_of[node])])
    ]
    alike = tuple(node for node in unread if program.key[node] == program.key[unread[0]])
    return (alike,) if len(alike) > 1 else ()


@settings(max_examples=100)
@given(graphs(), st.data())
def test_the_earliest_place_that_may_run_is_next(graph: CollectiveGraph, data: st.DataObject) -> None:
    """At every step, of those whose deps have run; ties go to the first node."""
    program = program_of(graph)
    count = len(program)
    place = np.array(data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)), dtype=np.float64)
    fused = fuse(program, sinks_of_one_key(program))
    due = [float(place[fused.members[node]].max()) for node in range(len(fused.kind))]
    left, expected = set(range(len(due))), []
    while left:
        ready = [node for node in left if not left.intersection(fused.deps[node].tolist())]
        expected.append(min(ready, key=lambda node: (due[node], node)))
        left.discard(expected[-1])
    assert fused_order(fused, place).tolist() == expected


@settings(max_examples=100)
@given(graphs(), st.data())
def test_prices_are_those_of_the_plan(graph: CollectiveGraph, data: st.DataObject) -> None:
    """To the bit, with buckets, and with collectives on a second communicator."""
    program = program_of(graph)
    count = len(program)
    place = np.array(data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)), dtype=np.float64)
    buckets = sinks_of_one_key(program)
    apart = frozenset(node for node in program.collectives().tolist() if data.draw(st.booleans()))
    apart -= {node for bucket in buckets for node in bucket}
    bucketed = BucketedProgram(program, buckets)
    order = bucketed.order(place)
    plan = ProgramPlan(order=fuse(program, buckets).spread(order), buckets=buckets, apart=apart)
    assert bucketed.end_s(order, apart) == run(program, plan).end_s
    assert bucketed.peak_bytes(order) == memory_in_use(program, plan).peak_bytes


@settings(max_examples=100)
@given(graphs())
def test_late_waits_come_behind_the_next_collective_or_before_their_readers(graph: CollectiveGraph) -> None:
    """All nodes still run behind what they need, and a plan without copies takes no longer."""
    program = program_of(graph)
    order = np.arange(len(program))
    buckets = sinks_of_one_key(program)
    fused = fuse(program, buckets)
    plan = ProgramPlan(order=fused.spread(fused_order(fused, order.astype(float))), buckets=buckets)
    late = with_late_waits(program, plan)
    assert sorted(late.order.tolist()) == order.tolist()
    place = np.argsort(late.order)
    assert all(place[dep] < place[node] for node in order.tolist() for dep in program.deps[node].tolist())
    whole = with_late_waits(program, ProgramPlan(order=order, buckets=()))
    assert run(program, whole).end_s <= run(program, ProgramPlan(order=order, buckets=())).end_s
    for at, node in enumerate(whole.order[:-1].tolist()):
        if program.kind[node] == WAIT and program.kind[whole.order[at + 1]] != WAIT:
            others = whole.order[: at + 1][::-1].tolist()
            before = next(other for other in others if program.kind[other] != WAIT)
            after = int(whole.order[at + 1])
            assert program.kind[before] == COLLECTIVE or node in program.deps[after].tolist()
