"""When each node of a plan runs, by the rules of ``pace.solver.graph.program``."""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray
from pace.solver.graph.program import COLLECTIVE, WAIT, Program, ProgramPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times of a plan.

    Attributes
    ----------
    start, end : arrays of shape (num_nodes,)
        When each op, collective or wait starts and ends, in seconds.
    end_s
        When the last op or collective ends.
    compute_s
        Total time of ops and copies.
    """

    start: FloatArray
    end: FloatArray
    end_s: float
    compute_s: float


def run(program: Program, plan: ProgramPlan) -> Timeline:
    """Compute the times of a plan, node by node."""
    bucket_of = {member: bucket for bucket in plan.buckets for member in bucket}
    start, end = np.zeros(len(program)), np.zeros(len(program))
    free_at = [0.0] * program.num_wires
    now = compute = 0.0
    issued: set[int] = set()
    copied: set[int] = set()
    kinds, durations = program.kind.tolist(), program.duration.tolist()
    for node in plan.order.tolist():
        if kinds[node] == COLLECTIVE:
            if node in issued:
                continue
            bucket = bucket_of.get(node, (node,))
            issued.update(bucket)
            copy = program.copy_in_s(bucket)
            now += copy
            compute += copy
            wire = int(program.wire[node])
            begins = max(now, free_at[wire])
            free_at[wire] = begins + program.transfer_s(bucket)
            for member in bucket:
                start[member], end[member] = begins, free_at[wire]
        elif kinds[node] == WAIT:
            collective = int(program.deps[node][0])
            now = max(now, float(end[collective]))
            start[node] = now
            bucket = bucket_of.get(collective, ())
            if bucket and bucket[0] not in copied:
                copied.add(bucket[0])
                copy = program.copy_out_s(bucket)
                now += copy
                compute += copy
            end[node] = now
        else:
            start[node] = now
            now += durations[node]
            compute += durations[node]
            end[node] = now
    return Timeline(start=start, end=end, end_s=max(now, *free_at), compute_s=compute)
