"""The planner of FSDP2's settings: it tries a few values in the simulation and keeps the best.

Which units stay gathered is tried in full where that takes few simulations, so that the settings are the best
of those tried. Otherwise it is a heuristic. ``Fsdp2Settings.lower_bound_s`` says what no choice beats.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.fsdp2_settings import Fsdp2Settings
from pace.errors import InvalidOptions
from pace.planning.graph.arrays import program_of
from pace.simulation.graph.fsdp2_passes import Fsdp2Passes, Kept, KeptChoice
from pace.simulation.graph.units import sharded_units
from pace.solver.graph.program import Program

BLOCKS_PER_UNIT = (1, 2, 4)
MOST_UNITS_IN_FULL = 6
"""Up to so many units, every choice of kept ones is simulated."""


def plan_fsdp2(
    graphs: Sequence[CollectiveGraph], memory_bytes: int | None = None, *, unit_collectives: int = 0
) -> Fsdp2Settings:
    """Return the fastest settings found for the passes of a model.

    Parameters
    ----------
    graphs
        The forward pass, the backward pass, or both. The backward pass is the one that reduces gradients.
    memory_bytes
        Most memory in use at once. With None there is no limit, and no units stay gathered.
    unit_collectives
        Number of parameters in a block; 0 for the blocks found in the graph.

    Raises
    ------
    InvalidOptions
        If two passes are of one direction, if a graph gathers no parameters, or if none of the
        settings that were tried stay within the memory.
    """
    forward, backward = _passes(graphs, unit_collectives)
    best: tuple[int, Fsdp2Passes, KeptChoice] | None = None
    for blocks in BLOCKS_PER_UNIT:
        passes = Fsdp2Passes(
            forward, backward, memory_bytes, unit_collectives=unit_collectives, blocks_per_unit=blocks
        )
        found = passes.choose()
        in_full = passes.num_units <= MOST_UNITS_IN_FULL  # they may fit where none fit that are freed
        if memory_bytes is not None and (in_full or not found.cost[0]):
            found = _with_kept_units(passes, found)
        if best is None or found.is_worth(best[2]):
            best = blocks, passes, found
    assert best is not None
    blocks, passes, choice = best
    if choice.cost[0]:
        raise InvalidOptions(
            f"no settings of FSDP2 were found within a memory budget of {memory_bytes:,} bytes: the most "
            f"economical ones that were tried need {choice.peak_bytes:,} bytes; allow that"
        )
    ahead = 1 if choice.forward is None else choice.forward.values[0]
    behind, buffers, apart = (1, 1, False) if choice.backward is None else choice.backward.values
    all_kept = 0 < len(choice.kept) == passes.num_units
    return Fsdp2Settings(
        blocks_per_unit=blocks,
        forward_ahead=ahead,
        backward_ahead=behind,
        max_input_buffers=buffers,
        separate_reduce_scatter_group=bool(apart),
        reshard_after_forward=not all_kept,
        kept_units=() if all_kept else tuple(sorted(choice.kept)),
        forward_s=None if choice.forward is None else choice.forward.end_s,
        backward_s=None if choice.backward is None else choice.backward.end_s,
        lower_bound_s=passes.bound_s(keeps=memory_bytes is not None),
        peak_bytes=choice.peak_bytes,
    )


def _passes(
    graphs: Sequence[CollectiveGraph], unit_collectives: int
) -> tuple[Program | None, Program | None]:
    """Return the forward and the backward pass as arrays."""
    named: dict[bool, str] = {}
    programs: dict[bool, Program] = {}
    for graph in graphs:
        program = program_of(graph)
        units = sharded_units(program, unit_collectives)
        if not units.gathers:
            raise InvalidOptions(f'graph "{graph.name}" gathers no parameters: FSDP2 has nothing to set')
        reduces = bool(units.reductions)
        if reduces in programs:
            direction = "reduce gradients" if reduces else "reduce no gradients"
            raise InvalidOptions(
                f'graphs "{named[reduces]}" and "{graph.name}" both {direction}: give one forward and one '
                "backward pass"
            )
        named[reduces], programs[reduces] = graph.name, program
    return programs.get(False), programs.get(True)


def _with_kept_units(passes: Fsdp2Passes, freed: KeptChoice) -> KeptChoice:
    """Return the best choice of units that stay gathered, or `freed`, the best without any."""
    count = passes.num_units
    best = freed
    if count <= MOST_UNITS_IN_FULL:
        for size in range(1, count + 1):
            for some in combinations(range(count), size):
                found = passes.choose(frozenset(some))
                best = found if found.is_worth(best) else best
        return best
    ahead = {1} if freed.forward is None else {1, freed.forward.values[0]}
    behind = {(1, 1, False)}
    if freed.backward is not None:
        behind_by, buffers, apart = freed.backward.values
        behind.add((behind_by, buffers, bool(apart)))
    for kept in _families(passes, ahead, behind):
        found = passes.choose(kept, forward=sorted(ahead), backward=sorted(behind))
        best = found if found.is_worth(best) else best
    return passes.choose(best.kept) if best.kept else best


def _families(
    passes: Fsdp2Passes, ahead: Iterable[int], behind: Iterable[tuple[int, int, bool]]
) -> Iterable[Kept]:
    """Return some choices: the last units or evenly spread ones, in halvings of the most that fit."""
    count = passes.num_units
    found: dict[Kept, None] = {}
    for family in (_last, _spread):
        fits, too_many = 0, count + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            choice = passes.choose(family(count, middle), forward=[min(ahead)], backward=[min(behind)])
            fits, too_many = (middle, too_many) if not choice.cost[0] else (fits, middle)
        while fits:
            found[family(count, fits)] = None
            fits //= 2
    return sorted(found, key=lambda kept: (len(kept), sorted(kept)))


def _last(count: int, size: int) -> Kept:
    """Return the last units of the forward pass, which the backward pass needs first."""
    return frozenset(range(count - size, count))


def _spread(count: int, size: int) -> Kept:
    return frozenset((2 * number + 1) * count // (2 * size) for number in range(size))
