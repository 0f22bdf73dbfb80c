"""A graph's run laid out in time: compute and copies, each wire, and the memory in use."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.simulation.graph.run import GraphSimulation
from pace.solver.graph.program import COLLECTIVE, OP, WAIT
from pace.view.window import Cargo, MemoryOverTime, OpTimes, Phase, Window, WindowTransfer

LABELS = {"all-gather": "ag", "reduce-scatter": "rs", "all-reduce": "ar", "all-to-all": "a2a"}


def lay_out_graph(
    graph: CollectiveGraph,
    run: GraphSimulation,
    name: str,
    budget_bytes: int | None = None,
    *,
    by_bucket: bool = False,
) -> Window:
    """Lay out what a plan of a graph does.

    Collectives of one kind are one cargo, so that they have one color, or each bucket is, with what is in it.
    """
    kinds = list(dict.fromkeys(node.collective.op for node in graph.nodes if node.collective is not None))
    starts, ends, phases = _compute(run)
    transfers, buckets = _transfers(graph, run, kinds)
    cargo = [
        Cargo(name=kind, gradients=(), size_bytes=0, label=LABELS[kind], delivers=False) for kind in kinds
    ]
    if by_bucket:
        transfers = [replace(transfer, cargo=number) for number, transfer in enumerate(transfers)]
        cargo = [
            _bucket_cargo(graph, bucket, transfer.size_bytes)
            for bucket, transfer in zip(buckets, transfers, strict=True)
        ]
    return Window(
        name=name,
        iteration_s=run.iteration_s,
        barrier=False,
        links=tuple(f"wire {wire}" for wire in graph.wires),
        cargo=tuple(cargo),
        transfers=tuple(transfers),
        times=OpTimes(starts_s=np.array(starts), ends_s=np.array(ends)),
        lanes=("compute",),
        op_lanes=(0,) * len(starts),
        op_phases=tuple(phases),
        begins_with="the start of the graph",
        memory=_memory(run, budget_bytes),
    )


def _bucket_cargo(graph: CollectiveGraph, bucket: Sequence[int], size_bytes: int) -> Cargo:
    first = graph.nodes[bucket[0]].collective
    assert first is not None
    names = tuple(graph.nodes[member].name for member in bucket)
    return Cargo(
        name=first.op, gradients=names, size_bytes=size_bytes, label=LABELS[first.op], delivers=False
    )


def _compute(run: GraphSimulation) -> tuple[list[float], list[float], list[Phase]]:
    """Return what the compute stream does; neighbors of one phase are one op."""
    starts: list[float] = []
    ends: list[float] = []
    phases: list[Phase] = []

    def add(start_s: float, end_s: float, phase: Phase) -> None:
        if end_s <= start_s:
            return
        if phases and phases[-1] == phase and ends[-1] == start_s:
            ends[-1] = end_s
            return
        starts.append(start_s)
        ends.append(end_s)
        phases.append(phase)

    program, timeline = run.program, run.timeline
    bucket_of = {member: bucket for bucket in run.plan.buckets for member in bucket}
    issued: set[int] = set()
    now = 0.0
    for node in run.plan.order.tolist():
        kind = program.kind[node]
        if kind == COLLECTIVE:
            bucket = bucket_of.get(node)
            if bucket is None or node in issued:
                continue
            issued.update(bucket)
            copied = now + program.copy_in_s(bucket)
            add(now, copied, "copy")
            now = copied
        elif kind in (OP, WAIT):
            now = float(timeline.end[node])
            add(float(timeline.start[node]), now, "compute" if kind == OP else "copy")
    return starts, ends, phases


def _transfers(
    graph: CollectiveGraph, run: GraphSimulation, kinds: Sequence[str]
) -> tuple[list[WindowTransfer], list[tuple[int, ...]]]:
    """Return each bucket or single collective as a transfer, and what is in it."""
    bucket_of = {member: bucket for bucket in run.plan.buckets for member in bucket}
    issued: set[int] = set()
    transfers: list[WindowTransfer] = []
    buckets: list[tuple[int, ...]] = []
    for node in run.plan.order.tolist():
        call = graph.nodes[node].collective
        if call is None or node in issued:
            continue
        bucket = bucket_of.get(node, (node,))
        issued.update(bucket)
        buckets.append(bucket)
        transfers.append(
            WindowTransfer(
                link=int(run.program.wire[node]),
                cargo=kinds.index(call.op),
                size_bytes=int(run.program.input_bytes[list(bucket)].sum()),
                start_s=float(run.timeline.start[node]),
                end_s=float(run.timeline.end[node]),
            )
        )
    return transfers, buckets


def _memory(run: GraphSimulation, budget_bytes: int | None) -> MemoryOverTime:
    """Return the memory in use over the time of the compute stream, at each moment the most."""
    moments: list[float] = []
    in_use: list[int] = []
    free_s = 0.0
    for node, used in zip(run.memory.nodes.tolist(), run.memory.in_use_bytes.tolist(), strict=True):
        now = free_s
        if run.program.kind[node] != COLLECTIVE:
            now = max(now, float(run.timeline.start[node]))
            free_s = max(now, float(run.timeline.end[node]))
        if moments and moments[-1] == now:
            in_use[-1] = max(in_use[-1], used)
        else:
            moments.append(now)
            in_use.append(used)
    if not moments:
        moments, in_use = [0.0], [run.memory.resident_bytes]
    return MemoryOverTime(
        starts_s=np.array(moments), in_use_bytes=np.array(in_use, dtype=np.int64), budget_bytes=budget_bytes
    )
