"""The all-reduces that a trace recorded: what they moved, and how long they took once all had come."""

import bisect
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from pace.documents.collective_costs import SampledAllReduce
from pace.formats.kineto_trace import Collective, HostOp, KinetoTrace, Thread

_GLOO = "gloo:"
_NCCL = "nccl:"
ALL_REDUCE = "all_reduce"
HOST_LANE = ("host", "gloo")
_ISSUE = "c10d::"
_SILENT = ("gloo:barrier", "gloo:monitored_barrier")  # they carry nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One collective as one rank saw it; waiting for slower peers is part of the duration.

    Attributes
    ----------
    issued_s
        When the host issued it: calls belong to the step that issued them.
    lane
        The device's stream, or one for all of Gloo's threads.
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

    @property
    def end_s(self) -> float:
        """When it had ended."""
        return self.start_s + self.duration_s


def recorded_calls(trace: KinetoTrace) -> list[RecordedCall]:
    """Return the collectives of a trace in the order in which they started.

    NCCL's kernels where there are any, else the annotations that Gloo's threads write. A kernel that does
    not say what it is or what it moves is told by the annotations around its launch. Kernels launched
    before recording began are left out: nothing tells what they were.
    """
    around = _HostCalls(trace)
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
                name=ALL_REDUCE if name.replace("_", "").startswith("allreduce") else name,
                issued_s=work.start_s if launch is None else launch[1],
                start_s=work.start_s,
                duration_s=work.duration_s,
                size_bytes=said.size_bytes or (host.size_bytes if host else None),
                workers=said.workers or (host.workers if host else None),
                lane=work.stream,
            )
        )
    notes = [note for note in trace.annotations if note.name.startswith(_GLOO) and note.name not in _SILENT]
    issued = _issues(trace, notes)
    annotations = [
        RecordedCall(
            name=note.name.removeprefix(_GLOO),
            issued_s=issued.get(id(note), note.start_s),
            start_s=note.start_s,
            duration_s=note.end_s - note.start_s,
            size_bytes=note.size_bytes,
            workers=trace.workers,
            record=note.record,
        )
        for note in notes
    ]
    return sorted(kernels or annotations, key=attrgetter("start_s"))


def _issues(trace: KinetoTrace, notes: list[HostOp]) -> dict[int, float]:
    """Return when the notes of Gloo's threads were issued, by their identity, as far as that is certain.

    The threads take calls in the order of their issue.
    """
    by_name: defaultdict[str, list[HostOp]] = defaultdict(list)
    for note in sorted(notes, key=attrgetter("start_s")):
        by_name[_plain(note.name.removeprefix(_GLOO))].append(note)
    issued: dict[int, float] = {}
    for name, found in by_name.items():
        ops = [op for op in trace.ops if op.name.startswith(_ISSUE) and _plain(op.name) == name]
        starts = sorted(op.start_s for op in ops)
        if len(starts) == len(found) and all(a <= b.start_s for a, b in zip(starts, found, strict=True)):
            issued |= {id(note): start for note, start in zip(found, starts, strict=True)}
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
            said = note.collective or Collective(note.name.removeprefix(_NCCL), note.size_bytes, None)
            if found is None:
                found = said
            else:
                found = Collective(
                    found.name, found.size_bytes or said.size_bytes, found.workers or said.workers
                )
        return found


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
        size's calls.
    """
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    for parts in together:
        if parts[0].size_bytes:
            by_size[parts[0].size_bytes].append(min(part.duration_s for part in parts))
    middle = statistics.median if by_size else min
    if not by_size:
        for calls in ranks:
            for call in calls:
                if call.size_bytes:
                    by_size[call.size_bytes].append(call.duration_s)
    if not by_size:
        return None
    sizes = sorted(by_size)
    return SampledAllReduce(
        samples=tuple((float(size), float(middle(by_size[size]))) for size in sizes),
        counts=tuple(len(by_size[size]) for size in sizes),
        deviations_s=tuple(statistics.pstdev(by_size[size]) for size in sizes),
        ranks=len(ranks) if together else 1,
    )
