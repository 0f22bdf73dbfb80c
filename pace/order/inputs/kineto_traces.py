"""Job programs from Kineto traces, one for each rank: the collectives of a run that went well.

A trace has the order in which a rank issued its collectives, and where its host waited for a value of the
device. It does not say who waits for a collective, so here the stream does at once, as by default. If ranks
issue collectives of two groups in different orders, that can be a false alarm.

Threads that issue collectives of one group are one thread here, as that of the backward pass and its caller:
they take turns, in the recorded order.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pace.documents.order.job_program import (
    CollectiveKind,
    EnqueuedCollective,
    EnqueuedOperation,
    HostThread,
    JobProgram,
    Synchronization,
)
from pace.errors import FormatError
from pace.formats.kineto_order import IssuedCollective, issued_collectives
from pace.formats.kineto_trace import KinetoTrace, Thread, read_kineto_trace
from pace.order.inputs.job_groups import EQUAL_SIZES, GivenGroups, RankFile, job_of, kind_of

_READS = "aten::_local_scalar_dense"
_BACKWARD = "autograd::engine::"


def read_kineto_order(paths: Sequence[str | Path], *, groups: GivenGroups | None = None) -> JobProgram:
    """Read the traces of all ranks.

    Raises
    ------
    FormatError
        If a file is no trace, does not say its rank, or records no collective.
    InvalidJobProgram
        If the traces do not say which ranks are in a group.
    """
    traces: dict[int, KinetoTrace] = {}
    for path in paths:
        trace = read_kineto_trace(path)
        if trace.rank is None:
            raise FormatError(
                path, "the trace does not say its rank: record it with torch.distributed set up"
            )
        if trace.rank in traces:
            raise FormatError(
                path,
                f"rank {trace.rank} is also the rank of {traces[trace.rank].path}: give one trace for each "
                "rank",
            )
        traces[trace.rank] = trace
    issued = issued_collectives(traces)
    if not any(issued.values()):
        raise FormatError(
            paths[0],
            "there are no record_param_comms events, which Gloo does not write: give dumps of PyTorch's "
            "flight recorder instead",
        )
    if len(traces) == 1:
        ((rank, trace),) = traces.items()
        if (trace.workers or 1) > 1:
            raise FormatError(paths[0], f"it is the trace of rank {rank} alone: give those of all ranks")
    return job_of(
        "the traced job",
        {rank: _rank_file(traces[rank], calls) for rank, calls in issued.items()},
        groups or {},
    )


def _rank_file(trace: KinetoTrace, calls: Sequence[IssuedCollective]) -> RankFile:
    thread_of = _threads(trace, calls)
    on_device = bool(trace.work)
    events: list[tuple[float, Thread, EnqueuedOperation]] = [
        (each.op.start_s, each.op.thread, _operation(each, _name(thread_of[each.op.thread])))
        for each in calls
    ]
    if calls and on_device:
        begin, end = calls[0].op.start_s, calls[-1].op.start_s
        events += [
            (
                op.start_s,
                op.thread,
                Synchronization(op="synchronize", stream=_name(thread_of[op.thread]), name=op.name),
            )
            for op in trace.ops
            if op.name == _READS and begin <= op.start_s <= end and op.thread in thread_of
        ]
    operations: defaultdict[Thread, list[EnqueuedOperation]] = defaultdict(list)
    for _, thread, operation in sorted(events, key=lambda event: event[0]):
        operations[thread_of[thread]].append(operation)
    return RankFile(
        threads=tuple(
            HostThread(name=_name(thread), operations=tuple(each)) for thread, each in operations.items()
        ),
        group_sizes={each.group: each.call.workers for each in calls},
        group_ranks={each.group: each.call.ranks for each in calls if each.call.ranks is not None},
        is_cut_off=True,
    )


def _name(thread: Thread) -> str:
    return f"thread {thread[1]}"


def _operation(issued: IssuedCollective, stream: str) -> EnqueuedCollective:
    call = issued.call
    kind: CollectiveKind = kind_of(call.name)
    return EnqueuedCollective(
        op=kind,
        group=issued.group,
        name=call.name,
        size_bytes=call.size_bytes if kind in EQUAL_SIZES else None,
        dtype=call.dtype if kind in EQUAL_SIZES else None,
        stream=stream,
        wait="stream",
    )


def _threads(trace: KinetoTrace, calls: Sequence[IssuedCollective]) -> dict[Thread, Thread]:
    """Return the first thread of those that take turns: by groups in common, or by a backward pass."""
    first: dict[object, Thread] = {}
    root: dict[Thread, Thread] = {}

    def find(thread: Thread) -> Thread:
        while root.setdefault(thread, thread) != thread:
            thread = root[thread]
        return thread

    backward = {op.thread for op in trace.ops if op.name.startswith(_BACKWARD)}
    busiest = _busiest(trace)
    for each in calls:
        thread = each.op.thread
        for key in (each.group, *(("backward",) if thread in backward or thread == busiest else ())):
            root[find(thread)] = find(first.setdefault(key, thread))
    return {thread: find(thread) for thread in list(root)}


def _busiest(trace: KinetoTrace) -> Thread | None:
    counts: defaultdict[Thread, int] = defaultdict(int)
    for op in trace.ops:
        if not op.name.startswith(_BACKWARD):
            counts[op.thread] += 1
    return max(counts, key=counts.__getitem__, default=None)
