"""When each node of a plan runs, by the rules of ``pace.solver.graph.program``."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pace.solver.arrays import FloatArray
from pace.solver.graph.program import COLLECTIVE, OP, WAIT, Bucket, Program, ProgramPlan, beside_traffic_s
from pace.solver.graph.wires import FifoWire, SharedWire


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
    kind, seconds, transfer = program.kind.tolist(), program.duration.tolist(), program.alone_s.tolist()
    awaited = [-1] * len(program)
    steps: list[int] = []
    first: dict[tuple[int, Bucket], int] = {}  # of each bucket, the node that issues it and its first wait
    for node in plan.order.tolist():
        steps.append(node)
        if kind[node] == OP:
            continue
        collective = node if kind[node] == COLLECTIVE else int(program.deps[node][0])
        bucket = bucket_of.get(collective)
        if bucket is None:
            awaited[node] = collective
        elif kind[node] == WAIT:
            awaited[node] = first[COLLECTIVE, bucket]
            if first.setdefault((WAIT, bucket), node) == node:
                seconds[node] = program.copy_out_s(bucket)
        elif first.setdefault((COLLECTIVE, bucket), node) == node:
            seconds[node] = program.copy_in_s(bucket)
            transfer[node] = program.transfer_s(bucket)
        else:
            steps.pop()
    walked = walk(
        steps,
        kind=kind,
        seconds=seconds,
        transfer=transfer,
        wire=program.wire.tolist(),
        awaited=awaited,
        num_wires=program.num_wires,
        apart=plan.apart,
        slowdown=program.compute_slowdown,
    )
    for (kind, bucket), node in first.items():
        if kind == COLLECTIVE:
            for member in bucket:
                walked.start[member], walked.end[member] = walked.start[node], walked.end[node]
    return Timeline(
        start=np.array(walked.start), end=np.array(walked.end), end_s=walked.end_s, compute_s=walked.compute_s
    )


class Walk(NamedTuple):
    """Times in seconds of nodes that ran one after another, and of the whole."""

    start: list[float]
    end: list[float]
    end_s: float
    compute_s: float


def walk(
    order: Iterable[int],
    *,
    kind: Sequence[int],
    seconds: Sequence[float],
    transfer: Sequence[float],
    wire: Sequence[int],
    awaited: Sequence[int],
    num_wires: int,
    apart: Collection[int],
    slowdown: float,
) -> Walk:
    """Run nodes in an order.

    Parameters
    ----------
    kind, seconds, transfer, wire : sequences of length num_nodes
        As in ``FusedProgram``. `seconds` of a bucket's COLLECTIVE and WAIT are the copies into and out of it.
    awaited
        The collective of each WAIT.
    apart
        As in ``ProgramPlan``.
    slowdown
        As ``Program.compute_slowdown``.
    """
    start, end = [0.0] * len(kind), [0.0] * len(kind)
    shared = {wire[node] for node in apart}
    wires: list[FifoWire | SharedWire] = [
        SharedWire(apart) if number in shared else FifoWire() for number in range(num_wires)
    ]
    now = compute = 0.0
    for node in order:
        if kind[node] == WAIT:
            now = max(now, wires[wire[awaited[node]]].end_of(awaited[node]))
        start[node] = now
        if slowdown > 1:
            busy_s = max(each.free_at() for each in wires) - now
            now += beside_traffic_s(seconds[node], busy_s, slowdown)
        else:
            now += seconds[node]
        end[node] = now
        if kind[node] == COLLECTIVE:
            wires[wire[node]].issue(node, now, transfer[node])
        compute += seconds[node]
    for each in wires:
        each.finish()
        now = max(now, each.free_at())
        for node, begins in each.start.items():
            start[node], end[node] = begins, each.end[node]
    return Walk(start, end, now, compute)
