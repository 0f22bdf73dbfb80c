"""The units of a sharded model, such as transformer blocks, read from a graph's collectives.

A graph names no modules. Blocks are the longest run of collectives of parameters whose sizes repeat, cut at
the shortest period; what stands before and behind the run are units too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler
from pace.solver.graph.program import Bucket, Program

Unit = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedUnits:
    """What is gathered and reduced together.

    Attributes
    ----------
    gathers
        Gathers of parameters, in order of their first use.
    reductions
        Collectives whose output no other collective needs, such as reduce-scatters of gradients, in program
        order.
    blocks
        Places in `gathers` of the units that are blocks; others belong to the root module.
    first_use
        Place of the first node that uses each gather's output.
    feeders
        The ops that serve only one gather, such as casts, by that gather.
    """

    gathers: tuple[Unit, ...]
    reductions: tuple[Unit, ...]
    blocks: range
    first_use: dict[int, int]
    feeders: dict[int, list[int]]


def sharded_units(program: Program, unit_collectives: int = 0, blocks_per_unit: int = 1) -> ShardedUnits:
    """Return the units of a program.

    Parameters
    ----------
    unit_collectives
        Collectives in each unit; 0 for blocks.
    blocks_per_unit
        Neighboring blocks in each unit.
    """
    scheduler = ListScheduler(program, UNLIMITED)
    gathers = sorted(scheduler.gathers, key=lambda node: (int(scheduler.first_use[node]), node))
    known = set(gathers)
    reductions = [node for node in scheduler.sinks if node not in known]
    backward = bool(reductions)
    cut = partial(cut_into_units, program, unit_collectives=unit_collectives, blocks_per_unit=blocks_per_unit)
    gathered, blocks = cut(gathers, from_end=backward)
    feeders: dict[int, list[int]] = {}
    for node, gather in enumerate(scheduler.served.tolist()):
        if gather >= 0:
            feeders.setdefault(gather, []).append(node)
    return ShardedUnits(
        gathers=gathered,
        reductions=cut(reductions, from_end=backward)[0],
        blocks=blocks,
        first_use={node: int(scheduler.first_use[node]) for node in gathers},
        feeders=feeders,
    )


def reduce_scatters(program: Program, units: ShardedUnits) -> frozenset[int]:
    """Return the reductions of units that return less than they read."""
    return frozenset(
        node
        for unit in units.reductions
        for node in unit
        if program.output_bytes[node] < program.input_bytes[node]
    )


def cut_into_units(
    program: Program,
    members: Sequence[int],
    unit_collectives: int,
    blocks_per_unit: int = 1,
    *,
    from_end: bool,
) -> tuple[tuple[Unit, ...], range]:
    """Return units of neighbors, and which of them are blocks.

    `from_end` aligns blocks with the end of the run, as backward passes do.
    """
    begin, length, period = 0, len(members), unit_collectives
    if not unit_collectives:
        begin, length, period = _longest_run(
            [(int(program.key[node]), int(program.input_bytes[node])) for node in members]
        )
    whole = length // period * period if period else 0
    if from_end:
        begin += length - whole
    step = period * blocks_per_unit
    # Where blocks do not fill the last unit of the forward pass, that unit comes first in the backward pass.
    first = whole % step if from_end and step else 0
    blocks = [(begin, begin + first)] if first else []
    for at in range(begin + first, begin + whole, step or 1):
        blocks.append((at, min(at + step, begin + whole)))
    before = [(0, begin)] if begin else []
    after = [(begin + whole, len(members))] if begin + whole < len(members) else []
    units = tuple(tuple(members[start:end]) for start, end in (*before, *blocks, *after))
    return units, range(len(before), len(before) + len(blocks))


def _longest_run(signatures: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Return where the longest repeating run begins, its length and its period; (0, 0, 0) if none repeats."""
    known = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
    values = np.array([known[signature] for signature in signatures], dtype=np.int64)
    best = (0, 0, 0)
    for period in range(1, len(values) // 2 + 1):
        same = np.concatenate(([False], values[period:] == values[:-period], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if end - begin >= period and end - begin + period > best[1]:
                best = (begin, end - begin + period, period)
    return best


def buckets_of(program: Program, unit: Unit) -> Iterator[Bucket]:
    """Yield a unit's collectives by key: those of different keys cannot share a bucket."""
    keys = program.key[list(unit)]
    for key in dict.fromkeys(keys.tolist()):
        yield tuple(node for node in unit if program.key[node] == key)
