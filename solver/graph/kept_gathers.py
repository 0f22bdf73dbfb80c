"""Gathers whose outputs stay in memory from an earlier program, and the bound of every choice of them.

A kept gather sends nothing. Its output is in use from the start of the program to its last use.

Theorem. Let G be the gathers that may be kept, of which at most R bytes are kept. No plan of any choice ends
before the bounds of the program without all of G. Nor does it, for every wire and every theta, end before
latency + (time of all collectives of the wire with a tail of at least theta) - (the most time that gathers of
R bytes take) + theta, where tails are those of the program without G and times are by lines below the costs.

Proof. Leave the gathers that a choice sends out of its plan: what remains is a plan of the program without G,
and ends no later. The wire has to send what is not kept, one after the other, and at least theta follows the
last one. Gathers of R bytes save at most what the fractional knapsack of R bytes saves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.graph.program import COLLECTIVE, OP, Program


def with_kept(program: Program, gathers: Sequence[int], feeders: Mapping[int, Sequence[int]]) -> Program:
    """Return a program in which gathers and the ops that serve only them are done; nodes keep their numbers.

    The gathers become ops that take no time. Place them first: their memory was in use before.

    Parameters
    ----------
    feeders
        The ops that serve only one gather, by that gather.
    """
    nodes = np.asarray(gathers, dtype=np.int64)
    kind, duration, size = program.kind.copy(), program.duration.copy(), program.size_bytes.copy()
    wire, key, sent = program.wire.copy(), program.key.copy(), program.input_bytes.copy()
    served = [op for gather in gathers for op in feeders.get(gather, ())]
    duration[served] = 0.0
    size[served] = 0
    kind[nodes] = kind[program.wait_of[nodes]] = OP
    wire[nodes] = key[nodes] = -1
    sent[nodes] = 0
    returned = program.output_bytes.copy()
    returned[nodes] = 0
    return replace(
        program,
        kind=kind,
        duration=duration,
        size_bytes=size,
        wire=wire,
        key=key,
        input_bytes=sent,
        output_bytes=returned,
    )


def wire_bound_s(program: Program, without: Program, gathers: Sequence[int], most_bytes: int | None) -> float:
    """Return the seconds that no plan of any choice beats, by what its wires send.

    Parameters
    ----------
    without
        The program with all gathers kept.
    gathers
        Those that may be kept.
    most_bytes
        Of their outputs that are kept; None for any number.
    """
    if most_bytes is None:
        return 0.0
    tail = without.heads_and_tails[1]
    may = np.zeros(len(program), dtype=np.bool_)
    may[np.asarray(gathers, dtype=np.int64)] = True
    best = 0.0
    for wire in range(program.num_wires):
        jobs = np.flatnonzero(
            (program.kind == COLLECTIVE) & (program.wire == wire) & (program.input_bytes > 0)
        )
        seconds = np.zeros(len(program))
        latency = np.inf
        for key in np.unique(program.key[jobs]).tolist():
            members = jobs[program.key[jobs] == key]
            sizes = program.input_bytes[members].astype(np.float64)
            lines = program.costs[key].minorants(float(sizes.sum()))
            line = max(lines, key=lambda each: each.seconds_per_byte)
            seconds[members] = sizes * line.seconds_per_byte
            latency = min(latency, line.latency_s)
        # From the longest tail down, so that each set holds all jobs of no shorter tails.
        ordered = jobs[np.argsort(-tail[jobs], kind="stable")]
        for count in range(1, len(ordered) + 1):
            if count < len(ordered) and tail[ordered[count]] == tail[ordered[count - 1]]:
                continue
            some = ordered[:count]
            left = float(seconds[some].sum()) - _most_saved_s(program, some[may[some]], seconds, most_bytes)
            if left > 0:
                best = max(best, latency + left + float(tail[some[-1]]))
    return best


def _most_saved_s(program: Program, gathers: IntArray, seconds: FloatArray, most_bytes: int) -> float:
    """Return the fractional knapsack's value: the most seconds of gathers of so many bytes."""
    weight = program.output_bytes[gathers].astype(np.float64)
    value = seconds[gathers]
    order = np.argsort(-value / np.maximum(weight, 1e-300), kind="stable")
    before = np.cumsum(weight[order]) - weight[order]
    share = np.clip((most_bytes - before) / np.maximum(weight[order], 1e-300), 0.0, 1.0)
    return float((value[order] * share).sum())
