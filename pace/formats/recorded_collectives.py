"""The all-reduces that a trace recorded: what they moved, and how long they took once all had come."""

import bisect
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.profile import DType
from pace.formats.kineto_trace import Collective, HostOp, KinetoTrace, Thread

_GLOO = "gloo:"
_NCCL = "nccl:"
ALL_REDUCE = "all_reduce"
_OF_LAYER = "all_reduce_of_a_layer"
OF_OTHER_DATA = "all_reduce_of_other_data"
HOST_LANE = ("host", "gloo")
_ISSUE = "c10d::"
# Shorter calls of smaller sizes may take the same time because latency is most of it.
_LONG_S, _LARGE_BYTES = 5e-4, 1 << 16
_SILENT = ("gloo:barrier", "gloo:monitored_barrier")  # they carry nothing
# NCCL's records, torch's annotations and Gloo's name one collective in several ways, such as
# `_allgather_base`, `_all_gather_base` and `all_gather`.
_COMMON_NAMES = (
    ("allreducebarrier", "barrier"),
    ("allreduce", ALL_REDUCE),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One collective as one rank saw it; waiting for slower peers is part of the duration.

    Attributes
    ----------
    issued_s
        When the host issued it: calls belong to the step that issued them.
    lane
        The device's stream, or one for all of Gloo's threads.
    thread
        Which of Gloo's threads it was; None on a device.
    ranks, dtype
        The ranks of its process group, and the type of what it moves, if they are recorded.
    share
        What part of its time the network was its own: calls that ran at the same time share it.
    """

    name: str = ALL_REDUCE
    issued_s: float
    start_s: float
    duration_s: float
    size_bytes: int | None
    workers: int | None
    record: int | None = None
    size_is_recorded: bool = True
    lane: tuple[int | str, int | str] = HOST_LANE
    thread: Thread | None = None
    ranks: tuple[int, ...] | None = None
    dtype: DType | None = None
    share: float = 1.0

    @property
    def end_s(self) -> float:
        """When it had ended."""
        return self.start_s + self.duration_s


def issued_during(calls: Sequence[RecordedCall], start_s: float, end_s: float) -> Sequence[RecordedCall]:
    """Return the calls that were issued from one moment to another, of calls in the order of their issue."""
    key = attrgetter("issued_s")
    return calls[bisect.bisect_left(calls, start_s, key=key) : bisect.bisect_left(calls, end_s, key=key)]


def recorded_calls(trace: KinetoTrace) -> list[RecordedCall]:
    """Return the collectives of a trace in the order of their issue.

    NCCL's kernels where there are any, else the annotations that Gloo's threads write. A kernel that does
    not say what it is or what it moves is told by the annotations around its launch. Kernels launched
    before recording began are left out: nothing tells what they were.
    """
    around = _HostCalls(trace)
    of_layers: defaultdict[Thread, list[HostOp]] = defaultdict(list)
    for each in trace.ops:
        if each.of_layer:
            of_layers[each.thread].append(each)
    kernels = []
    for work in trace.work:
        if work.collective is None or trace.launched_before(work):
            continue
        launch = None if work.correlation is None else trace.launches.get(work.correlation)
        host = None if launch is None else around.find(*launch)
        said = work.collective
        # Kernels share code: one may carry another collective's name.
        name = host.name if host is not None and not said.described else said.name
        kernels.append(
            RecordedCall(
                name=_OF_LAYER
                if launch is not None and _is_within(launch, of_layers)
                else _common_name(name),
                issued_s=work.start_s if launch is None else launch[1],
                start_s=work.start_s,
                duration_s=work.duration_s,
                size_bytes=said.size_bytes or (host.size_bytes if host else None),
                workers=said.workers or (host.workers if host else None),
                lane=work.stream,
                ranks=said.ranks or (host.ranks if host else None),
                dtype=said.dtype or (host.dtype if host else None),
            )
        )
    notes = [note for note in trace.annotations if note.name.startswith(_GLOO) and note.name not in _SILENT]
    issued = _issues(trace, notes)
    annotations = []
    for note in notes:
        op = issued.get(id(note))
        name = _common_name(note.name.removeprefix(_GLOO))
        if op is not None and _plain(op.name).startswith("reducescatter"):
            name = "reduce_scatter"  # Gloo reduces all and takes its shard
        elif op is not None and op.of_layer:
            name = _OF_LAYER
        annotations.append(
            RecordedCall(
                name=name,
                issued_s=note.start_s if op is None else op.start_s,
                start_s=note.start_s,
                duration_s=note.end_s - note.start_s,
                size_bytes=note.size_bytes,
                workers=trace.workers,
                record=note.record,
                thread=note.thread,
                dtype=note.dtype,
            )
        )
    return sorted(kernels or annotations, key=attrgetter("issued_s", "start_s"))


def _is_within(launch: tuple[Thread, float], ops: Mapping[Thread, list[HostOp]]) -> bool:
    thread, moment_s = launch
    of_thread = ops.get(thread, [])
    place = bisect.bisect_right(of_thread, moment_s, key=attrgetter("start_s")) - 1
    return place >= 0 and moment_s <= of_thread[place].end_s


def _common_name(name: str) -> str:
    plain = name.replace("_", "")
    return next((common for start, common in _COMMON_NAMES if plain.startswith(start)), name)


def _issues(trace: KinetoTrace, notes: list[HostOp]) -> dict[int, HostOp]:
    """Return what issued the notes of Gloo's threads, by the notes' identity, as far as that is certain.

    The threads take calls in the order of their issue. A reduce-scatter is noted as an all-reduce. Where
    process groups have threads of their own, calls are told apart by what they move.
    """
    by_name: defaultdict[str, list[HostOp]] = defaultdict(list)
    for note in sorted(notes, key=attrgetter("start_s")):
        by_name[_plain(note.name.removeprefix(_GLOO))].append(note)
    issued: dict[int, HostOp] = {}
    for name, found in by_name.items():
        names = ("allreduce", "reducescatter") if name == "allreduce" else (name,)
        ops = [op for op in trace.ops if op.name.startswith(_ISSUE) and _plain(op.name).startswith(names)]
        ops.sort(key=attrgetter("start_s"))
        in_order = all(op.start_s <= note.start_s for op, note in zip(ops, found, strict=False))
        if len(ops) != len(found) or not in_order:
            continue
        waiting: defaultdict[int, deque[HostOp]] = defaultdict(deque)
        for op in ops:
            waiting[op.elements].append(op)
        by_size = [waiting[note.elements] for note in found]
        sizes_fit = all(
            len(waiting[size]) == count for size, count in Counter(n.elements for n in found).items()
        )
        if sizes_fit:
            pairs = [(note, same.popleft()) for note, same in zip(found, by_size, strict=True)]
        else:
            pairs = list(zip(found, ops, strict=True))
        issued |= {id(note): op for note, op in pairs if op.start_s <= note.start_s}
    return issued


def _plain(name: str) -> str:
    return name.removeprefix(_ISSUE).replace("_", "").removesuffix("base")


class _HostCalls:
    """What the host noted around the launches of collectives."""

    def __init__(self, trace: KinetoTrace) -> None:
        notes = [note for note in trace.annotations if note.name.startswith(_NCCL)]
        notes += [op for op in trace.ops if op.name == "record_param_comms" and op.collective is not None]
        self._notes: defaultdict[Thread, list[HostOp]] = defaultdict(list)
        for note in sorted(notes, key=attrgetter("start_s")):
            self._notes[note.thread].append(note)

    def find(self, thread: Thread, moment: float) -> Collective | None:
        """Return what the notes around a moment say together; None without any."""
        notes = self._notes.get(thread, [])
        last = bisect.bisect_right(notes, moment, key=attrgetter("start_s"))
        found: Collective | None = None
        for note in reversed(notes[max(last - 3, 0) : last]):
            if note.end_s < moment:
                continue
            said = note.collective or Collective(
                note.name.removeprefix(_NCCL), note.size_bytes, None, dtype=note.dtype
            )
            if found is None:
                found = said
            else:
                found = Collective(
                    found.name,
                    found.size_bytes or said.size_bytes,
                    found.workers or said.workers,
                    dtype=found.dtype or said.dtype,
                    ranks=found.ranks or said.ranks,
                )
        return found


def equal_times(steps: Sequence[Sequence[RecordedCall]]) -> AffineAllReduce | None:
    """Return what all-reduces cost at most, if one rank's trace shows that they waited for late ranks.

    It does if, in most steps, all-reduces of which one is at least twice as large take the same time or end
    together: a network would take longer for the larger one. What it costs is at most what the larger ones
    took longer. None if the trace does not show it.
    """
    slopes = []
    told = late = 0
    for calls in steps:
        sized = [(call.size_bytes, call) for call in calls if call.size_bytes and call.duration_s > _LONG_S]
        pairs = [(a, b) for a in sized for b in sized if b[0] >= 2 * a[0] and a[0] >= _LARGE_BYTES]
        if not pairs:
            continue
        told += 1
        if all(_same_time(small, large) for (_, small), (_, large) in pairs):
            late += 1
            slopes += [
                max(abs(large.duration_s - small.duration_s), small.duration_s / 100) / (more - less)
                for (less, small), (more, large) in pairs
            ]
    if late <= told / 2:
        return None
    return AffineAllReduce(latency_s=0.0, seconds_per_byte=statistics.median(slopes))


def _same_time(one: RecordedCall, other: RecordedCall) -> bool:
    longest = max(one.duration_s, other.duration_s)
    apart = abs(one.duration_s - other.duration_s)
    side_by_side = min(one.end_s, other.end_s) > max(one.start_s, other.start_s)
    return apart <= 0.1 * longest or (side_by_side and abs(one.end_s - other.end_s) <= 0.05 * longest)


def recorded_cost(
    ranks: Sequence[Sequence[RecordedCall]], together: Sequence[Sequence[RecordedCall]] = ()
) -> SampledAllReduce | None:
    """Return the cost with one sample for each size; None if no size is known.

    Parameters
    ----------
    ranks
        Every rank's calls.
    together
        For calls that every rank recorded, how each of them saw it. Its duration is the shortest of any
        rank's, because the last to come waits for nobody, and the sample is the median over a size's
        calls. Without it waiting cannot be told from sending, and the sample is the shortest of a
        size's calls, or less where calls of another size show that this one waited.
    """
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    for parts in together:
        shortest_s = min(part.duration_s * part.share for part in parts)
        if parts[0].size_bytes and shortest_s > 0:
            by_size[parts[0].size_bytes].append(shortest_s)
    middle = statistics.median if by_size else min
    if not by_size:
        for calls in ranks:
            for call in calls:
                if call.size_bytes and call.duration_s > 0:
                    by_size[call.size_bytes].append(call.duration_s * call.share)
    if not by_size:
        return None
    sizes = sorted(by_size)
    seconds = [float(middle(by_size[size])) for size in sizes]
    if not together:
        seconds = without_waiting(sizes, seconds)
    return SampledAllReduce(
        samples=tuple(zip(map(float, sizes), seconds, strict=True)),
        counts=tuple(len(by_size[size]) for size in sizes),
        deviations_s=tuple(statistics.pstdev(by_size[size]) for size in sizes),
        ranks=len(ranks) if together else 1,
    )


def without_waiting(sizes: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Return at most what all-reduces took, by size: never more than a larger one, nor more for each byte.

    A latency and a time for each byte allow nothing else. Waiting for late ranks does: it lengthens the
    first calls of a step.
    """
    shorter = list(seconds)
    for place in range(len(sizes) - 2, -1, -1):
        shorter[place] = min(shorter[place], shorter[place + 1])
    for place in range(1, len(sizes)):
        shorter[place] = min(shorter[place], shorter[place - 1] * sizes[place] / sizes[place - 1])
    return shorter
