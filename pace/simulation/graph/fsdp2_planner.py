"""The planner of FSDP2's settings: it tries a few values in the simulation and keeps the best.

Which units stay gathered is tried in full where that takes few simulations, so that the settings are the best
of those tried. Otherwise it is a heuristic. ``Fsdp2Settings.lower_bound_s`` says what no choice beats.

A kept unit is gathered in the forward pass and not freed (``reshard_after_forward=False``). Its memory is in
use until its backward pass has run, and nothing is gathered for it there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.fsdp2_settings import Fsdp2Settings
from pace.errors import InvalidOptions
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import lower_bound_s
from pace.simulation.graph.policies import Fsdp2
from pace.simulation.graph.units import reduce_scatters, sharded_units
from pace.solver.arrays import IntArray
from pace.solver.graph.kept_gathers import wire_bound_s, with_kept
from pace.solver.graph.program import Program
from pace.solver.graph.reorder import BucketedProgram

AHEAD = (1, 2, 3)
INPUT_BUFFERS = (1, 2, 3)
BACKWARD_VALUES = tuple(
    (ahead, buffers, apart) for apart, ahead, buffers in product((False, True), AHEAD, INPUT_BUFFERS)
)
"""``ahead``, ``max_input_buffers`` and ``separate_reduce_scatter_group``. What needs less comes first."""
WORTH = 1e-3
"""What share of the time more memory must save."""

Kept = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRun:
    """A pass under some settings: its end in seconds, its peak in bytes, and what was set.

    Attributes
    ----------
    values
        ``ahead``, and in the backward pass the others of `BACKWARD_VALUES`.
    """

    values: tuple[int, ...]
    end_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChoice:
    """Kept units and the best values of both passes with them; `cost` compares choices.

    Attributes
    ----------
    cost
        Bytes beyond the memory, then seconds of both passes.
    """

    kept: Kept
    forward: PassRun | None
    backward: PassRun | None
    cost: tuple[int, float]

    @property
    def peak_bytes(self) -> int:
        """The most memory of both passes."""
        return max(each.peak_bytes for each in (self.forward, self.backward) if each is not None)

    def is_worth(self, than: "KeptChoice") -> bool:
        """Return whether this choice, which may take more memory, is enough faster than another."""
        return (self.cost[0], self.cost[1] * (1 + WORTH)) < than.cost


class Fsdp2Passes:
    """Simulates passes whose units have so many blocks, each only once under the same settings."""

    def __init__(
        self,
        forward: Program | None,
        backward: Program | None,
        memory_bytes: int | None,
        *,
        unit_collectives: int = 0,
        blocks_per_unit: int = 1,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._forward, self._backward = (
            None if program is None else (program, sharded_units(program, unit_collectives, blocks_per_unit))
            for program in (forward, backward)
        )
        self._runs: dict[tuple[Kept, tuple[int, ...]], PassRun] = {}
        self._bucketed: dict[Kept | None, BucketedProgram] = {}  # None for the forward pass
        self._forward_orders: dict[int, tuple[IntArray, float]] = {}
        self._backward_orders: dict[tuple[Kept, int, int], tuple[BucketedProgram, IntArray, int]] = {}

    @property
    def num_units(self) -> int:
        """Number of units of blocks that can be kept: those that the backward pass gathers again."""
        if self._backward is None:
            return 0
        count = len(self._backward[1].blocks)
        return count if self._forward is None or len(self._forward[1].blocks) == count else 0

    def choose(
        self,
        kept: Kept = frozenset(),
        *,
        forward: Iterable[int] = AHEAD,
        backward: Iterable[tuple[int, int, bool]] = BACKWARD_VALUES,
    ) -> KeptChoice:
        """Return the best values for given units; those of less memory come first."""
        best = self._best(self._forward_runs(kept, forward))
        second = self._best(self._backward_runs(kept, backward))
        runs = [each for each in (best, second) if each is not None]
        excess = max(self._excess(each) for each in runs)
        return KeptChoice(
            kept=kept, forward=best, backward=second, cost=(excess, sum(each.end_s for each in runs))
        )

    def bound_s(self, *, keeps: bool) -> float:
        """Return the time in seconds that no plan of the passes beats; `keeps` allows it to keep any blocks.

        The theorem is in ``pace.solver.graph.kept_gathers``.
        """
        bound = 0.0 if self._forward is None else lower_bound_s(self._forward[0])
        if self._backward is None:
            return bound
        program, units = self._backward
        if not keeps:
            return bound + lower_bound_s(program)
        blocks = [node for number in units.blocks for node in units.gathers[number]]
        room = None if self._memory_bytes is None else max(0, self._memory_bytes - program.resident_bytes)
        without = with_kept(program, blocks, units.feeders)
        return bound + max(lower_bound_s(without), wire_bound_s(program, without, blocks, room))

    def _best(self, runs: Iterable[PassRun]) -> PassRun | None:
        best: PassRun | None = None
        for each in runs:
            worth = self._excess(each), each.end_s * (1 + WORTH)
            if best is None or worth < (self._excess(best), best.end_s):
                best = each
        return best

    def _excess(self, each: PassRun) -> int:
        return 0 if self._memory_bytes is None else max(0, each.peak_bytes - self._memory_bytes)

    def _forward_runs(self, kept: Kept, every: Iterable[int]) -> Iterator[PassRun]:
        if self._forward is None:
            return
        units = self._forward[1]
        held = [node for unit in kept for node in units.gathers[units.blocks[unit]]]
        for ahead in every:
            values = (ahead,)
            if (kept, values) not in self._runs:
                # Kept units change no order, but their memory is in use to the end.
                order, end_s = self._forward_order(ahead)
                peak_bytes = self._bucketed[None].peak_bytes(order, held)
                self._runs[kept, values] = PassRun(values=values, end_s=end_s, peak_bytes=peak_bytes)
            yield self._runs[kept, values]

    def _forward_order(self, ahead: int) -> tuple[IntArray, float]:
        """Return the order of the forward pass, and its end in seconds."""
        if ahead not in self._forward_orders:
            assert self._forward is not None
            buckets, place = Fsdp2(ahead=ahead).place_units(*self._forward)
            if None not in self._bucketed:
                self._bucketed[None] = BucketedProgram(self._forward[0], buckets)
            order = self._bucketed[None].order(place)
            self._forward_orders[ahead] = order, self._bucketed[None].end_s(order)
        return self._forward_orders[ahead]

    def _backward_runs(self, kept: Kept, every: Iterable[tuple[int, int, bool]]) -> Iterator[PassRun]:
        if self._backward is None:
            return
        apart = reduce_scatters(*self._backward)
        for values in every:
            if (kept, values) not in self._runs:
                bucketed, order, peak_bytes = self._backward_order(kept, *values[:2])
                end_s = bucketed.end_s(order, apart if values[2] else ())
                self._runs[kept, values] = PassRun(values=values, end_s=end_s, peak_bytes=peak_bytes)
            yield self._runs[kept, values]

    def _backward_order(
        self, kept: Kept, ahead: int, max_input_buffers: int
    ) -> tuple[BucketedProgram, IntArray, int]:
        """Return the order of the backward pass, and its peak memory in bytes."""
        found = self._backward_orders.get((kept, ahead, max_input_buffers))
        if found is None:
            assert self._backward is not None
            program, units = self._backward
            places = frozenset(units.blocks[len(units.blocks) - 1 - unit] for unit in kept)
            policy = Fsdp2(ahead=ahead, max_input_buffers=max_input_buffers)
            buckets, place = policy.place_units(program, units, places)
            if kept not in self._bucketed:
                held = [node for each in places for node in units.gathers[each]]
                changed = with_kept(program, held, units.feeders) if held else program
                self._bucketed[kept] = BucketedProgram(changed, buckets)
            bucketed = self._bucketed[kept]
            order = bucketed.order(place)
            found = bucketed, order, bucketed.peak_bytes(order)
            self._backward_orders[kept, ahead, max_input_buffers] = found
        return found


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
