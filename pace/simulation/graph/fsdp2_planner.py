"""The planner of FSDP2's settings: it tries each of a few values in the simulation and keeps the best.

A heuristic over what FSDP2 can be told; ``pace.planning.graph`` bounds what any plan can do.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.fsdp2_settings import Fsdp2Settings
from pace.errors import InvalidOptions
from pace.planning.graph.arrays import program_of
from pace.simulation.graph.policies import Fsdp2
from pace.simulation.graph.run import GraphSimulation, run_graph_policy
from pace.simulation.graph.units import sharded_units

BLOCKS_PER_UNIT = (1, 2, 4)
AHEAD = (1, 2, 3)
INPUT_BUFFERS = (1, 2, 3)
WORTH = 1e-3
"""What share of the time more memory must save."""


def plan_fsdp2(
    graphs: Sequence[CollectiveGraph], memory_bytes: int | None = None, *, unit_collectives: int = 0
) -> Fsdp2Settings:
    """Return the fastest settings found for the passes of a model.

    Parameters
    ----------
    graphs
        The forward pass, the backward pass, or both. The backward pass is the one that reduces gradients.
    memory_bytes
        Most memory in use at once; None for no limit.
    unit_collectives
        Number of parameters in a block; 0 for the blocks found in the graph.

    Raises
    ------
    InvalidOptions
        If two passes are of one direction, if a graph gathers no parameters, or if no settings stay within
        the memory.
    """
    forward: CollectiveGraph | None = None
    backward: CollectiveGraph | None = None
    for graph in graphs:
        units = sharded_units(program_of(graph), unit_collectives)
        if not units.gathers:
            raise InvalidOptions(f'graph "{graph.name}" gathers no parameters: FSDP2 has nothing to set')
        other = backward if units.reductions else forward
        if other is not None:
            direction = "reduce gradients" if units.reductions else "reduce no gradients"
            raise InvalidOptions(
                f'graphs "{other.name}" and "{graph.name}" both {direction}: give one forward and one '
                "backward pass"
            )
        forward, backward = (forward, graph) if units.reductions else (graph, backward)
    best: tuple[tuple[int, float], Fsdp2Settings] | None = None
    for blocks in BLOCKS_PER_UNIT:
        ahead, first = _best(forward, _forward(blocks, unit_collectives), memory_bytes)
        (behind, buffers), second = _best(backward, _backward(blocks, unit_collectives), memory_bytes)
        runs = [run for run in (first, second) if run is not None]
        peak = max(run.memory.peak_bytes for run in runs)
        found = Fsdp2Settings(
            blocks_per_unit=blocks,
            forward_ahead=ahead[0],
            backward_ahead=behind,
            max_input_buffers=buffers,
            forward_s=None if first is None else first.iteration_s,
            backward_s=None if second is None else second.iteration_s,
            peak_bytes=peak,
        )
        excess = 0 if memory_bytes is None else max(0, peak - memory_bytes)
        cost = excess, sum(run.iteration_s for run in runs)
        if best is None or (cost[0], cost[1] * (1 + WORTH)) < best[0]:
            best = cost, found
    assert best is not None
    (excess, _), settings = best
    if excess:
        raise InvalidOptions(
            f"a memory budget of {memory_bytes:,} bytes is too small for FSDP2: the least settings need "
            f"{settings.peak_bytes:,} bytes; allow at least that"
        )
    return settings


def _forward(blocks: int, unit_collectives: int) -> Iterator[tuple[tuple[int, ...], Fsdp2]]:
    for ahead in AHEAD:
        yield (
            (ahead,),
            Fsdp2(unit_collectives=unit_collectives, blocks_per_unit=blocks, ahead=ahead),
        )


def _backward(blocks: int, unit_collectives: int) -> Iterator[tuple[tuple[int, ...], Fsdp2]]:
    for ahead, buffers in product(AHEAD, INPUT_BUFFERS):
        policy = Fsdp2(
            unit_collectives=unit_collectives,
            blocks_per_unit=blocks,
            ahead=ahead,
            max_input_buffers=buffers,
        )
        yield (ahead, buffers), policy


def _best(
    graph: CollectiveGraph | None,
    policies: Iterator[tuple[tuple[int, ...], Fsdp2]],
    memory_bytes: int | None,
) -> tuple[tuple[int, ...], GraphSimulation | None]:
    """Return the values of the best policy and its run; the first values without a graph."""
    if graph is None:
        return next(policies)[0], None
    best: tuple[tuple[int, float], tuple[int, ...], GraphSimulation] | None = None
    for values, policy in policies:
        run = run_graph_policy(graph, policy)
        excess = 0 if memory_bytes is None else max(0, run.memory.peak_bytes - memory_bytes)
        # Values come in order of their memory: more of it must be worth something.
        if best is None or (excess, run.iteration_s * (1 + WORTH)) < best[0]:
            best = (excess, run.iteration_s), values, run
    assert best is not None
    return best[1], best[2]
