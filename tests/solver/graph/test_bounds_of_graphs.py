"""Bounds of graphs against every order and every bucket of tiny programs."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.planning.graph.arrays import program_of
from pace.solver.graph.bounds import longest_path_s, machine_bounds
from pace.solver.graph.last_collective import last_collective
from pace.solver.graph.list_schedule import UNLIMITED, ListRules, ListScheduler
from pace.solver.graph.program import COLLECTIVE, WAIT, Bucket, Program, ProgramPlan
from pace.solver.graph.search import search
from pace.solver.graph.timeline import run
from tests.sharded_graphs import graphs


def orders(program: Program) -> Iterator[tuple[int, ...]]:
    """Yield every order in which nodes come after what they read."""

    def extend(order: tuple[int, ...], left: frozenset[int]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield order
        for node in sorted(left):
            if not left.intersection(program.deps[node].tolist()):
                yield from extend((*order, node), left - {node})

    return extend((), frozenset(range(len(program))))


def pairs(program: Program) -> Iterator[tuple[Bucket, ...]]:
    """Yield no bucket, and each pair of collectives of one key."""
    yield ()
    collectives = program.collectives().tolist()
    for first in collectives:
        for second in collectives:
            if first < second and program.key[first] == program.key[second]:
                yield ((first, second),)


def in_one_piece(program: Program, order: tuple[int, ...], buckets: tuple[Bucket, ...]) -> bool:
    """Return whether members follow one another, and so do their waits."""
    place = {node: at for at, node in enumerate(order)}
    for bucket in buckets:
        for nodes in (bucket, program.wait_of[list(bucket)].tolist()):
            places = sorted(place[node] for node in nodes)
            if places[-1] - places[0] != len(places) - 1:
                return False
    return True


@settings(max_examples=60)
@given(graphs(most_nodes=5))
def test_no_order_and_no_bucket_beats_a_bound(graph: CollectiveGraph) -> None:
    """Every plan of a tiny program, and the planner's, ends no earlier than each bound says."""
    program = program_of(graph)
    if len(program) > 7:
        return
    best = np.inf
    for buckets in pairs(program):
        for order in orders(program):
            if in_one_piece(program, order, buckets):
                plan = ProgramPlan(order=np.array(order), buckets=buckets)
                best = min(best, run(program, plan).end_s)
    late = last_collective(program)
    bounds = [longest_path_s(program), *(bound.bound_s for bound in machine_bounds(program))]
    bounds += [] if late is None else [late.bound_s]
    assert max(bounds) <= best * (1 + 1e-9) + 1e-12
    assert search(program, UNLIMITED, 40).end_s >= max(bounds) * (1 - 1e-9) - 1e-12


@settings(max_examples=60)
@given(graphs())
def test_the_scheduler_prices_its_plans_as_they_run(graph: CollectiveGraph) -> None:
    """The compiled loop and the plain walk through its order agree, and every node is there once."""
    program = program_of(graph)
    scheduler = ListScheduler(program, UNLIMITED)
    for rules in (
        ListRules(),
        ListRules(window=4),
        ListRules(window=100, by_tail=True),
    ):
        found = scheduler.plan((), rules)
        assert sorted(found.plan.order.tolist()) == list(range(len(program)))
        assert abs(run(program, found.plan).end_s - found.end_s) <= 1e-9
        place = {node: at for at, node in enumerate(found.plan.order.tolist())}
        assert all(place[dep] < place[node] for node in place for dep in program.deps[node].tolist())
        assert np.all(np.isin(program.kind, (0, COLLECTIVE, WAIT)))
