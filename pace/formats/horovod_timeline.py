"""Horovod's timeline (HOROVOD_TIMELINE): what each tensor's all-reduce took, and when it was handed over.

A timeline has no compute in it. The cost of an all-reduce is read from it; a profile can be inferred,
and ``read_horovod_profile`` says how.
"""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pace.documents.collective_costs import AllReduce, SampledAllReduce
from pace.documents.profile import ELEMENT_BYTES, MOST_WORKERS, DType, Gradient, Op, Profile
from pace.errors import FormatError
from pace.formats.cost_log import CostLog, cost_log
from pace.formats.reading import number, stream_json, validated, warn, whole_number
from pace.formats.replay import ReplayedCall, anchored, with_replay

TOOL = "Horovod timeline"
_NEGOTIATE = "NEGOTIATE_ALLREDUCE"
_ALLREDUCE = "ALLREDUCE"
_CLEARLY_LATER = 0.01  # of an iteration
_SHAPE = re.compile(r"^\[\s*(\d+(?:\s*,\s*\d+)*)?\s*\]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One tensor's part in one all-reduce, in seconds on the timeline's clock.

    Attributes
    ----------
    handed_over_s
        When the rank whose profile is made handed the tensor to Horovod: rank 0, which wrote the timeline,
        unless another one is slower. Where no ranks are noted it is when the first rank did.
    reported_s
        When each rank's tensor was known to rank 0, by rank.
    """

    tensor: str
    handed_over_s: float
    reported_s: dict[int, float]
    start_s: float
    end_s: float
    wire_start_s: float
    wire_end_s: float
    size_bytes: int
    dtype: DType


@dataclass(slots=True)
class _Tensor:
    """What is open on one tensor's lane while the events are read."""

    name: str
    stack: list[tuple[str, float]] = field(default_factory=list)
    handed_over_s: float | None = None
    reported_s: dict[int, float] = field(default_factory=dict)
    wire: tuple[float, float] | None = None


def read_horovod_cost(path: str | Path) -> CostLog:
    """Return the time on the wire and the bytes of every fused all-reduce.

    Tensors whose calls overlap were one fused all-reduce. Raises FormatError; warns if cut off.
    """
    calls, workers = _read_calls(path)
    samples = []
    for fused in _fused(calls):
        duration = max(call.wire_end_s for call in fused) - min(call.wire_start_s for call in fused)
        samples.append((float(sum(call.size_bytes for call in fused)), duration))
    return cost_log(path, TOOL, samples, workers)


def read_horovod_profile(
    path: str | Path,
    *,
    workers: int | None = None,
    allreduce: AllReduce | None = None,
    name: str | None = None,
) -> Profile:
    """Infer a profile from a timeline of at least three iterations, the first of which is dropped.

    Durations are those of the slowest rank, where all ranks are noted; else rank 0's. A gradient's backward
    op lasts from the moment the one before was handed over to Horovod until
    it was itself (medians over iterations). What lies between an iteration's last all-reduce and
    the next one's first gradient is the forward pass and the backward op of that gradient; it is
    split so that backward takes twice as long as forward. The forward pass is divided among the
    gradients as the backward pass was. The iterations are replayed (``pace.formats.replay``): what the
    profile does not explain of their length is waiting for late ranks.

    Parameters
    ----------
    allreduce
        The cost of an all-reduce; what the timeline recorded by default.

    Raises
    ------
    FormatError
        If the timeline cannot be read, has too few iterations, or does not say how many workers.
    """
    calls, said = _read_calls(path)
    workers = workers or said
    if workers is None:
        raise FormatError(path, "the timeline does not say how many workers took part: give their number")
    iterations = _iterations(path, calls)
    waits = _waits(iterations, said or 0)
    waited_s = [statistics.median(each) for each in zip(*waits, strict=True)]
    slowest = _slowest(waited_s, _periods(iterations))
    iterations = [
        {
            name: replace(call, handed_over_s=call.reported_s.get(slowest, call.handed_over_s))
            for name, call in each.items()
        }
        for each in iterations
    ]
    order, steps, gap = _medians(iterations)
    known = sum(steps[1:])
    first = min(max((2 * gap - known) / 3, 0.0), gap)
    backward = [first, *steps[1:]]
    shares = _shares(backward)
    sizes = {call.tensor: (call.size_bytes, call.dtype) for call in calls}
    names = {tensor: _gradient_name(tensor) for tensor in order}
    with validated(path):
        recorded = SampledAllReduce(samples=_samples(calls), ranks=1)
        profile = Profile(
            name=name or Path(path).name.partition(".")[0],
            workers=workers,
            ops=(
                *(
                    Op(name=f"bwd/{names[tensor]}", duration_s=duration, stream="compute")
                    for tensor, duration in zip(order, backward, strict=True)
                ),
                *(
                    Op(
                        name=f"fwd/{names[tensor]}",
                        duration_s=share * (gap - first),
                        stream="compute",
                        waits_for=(names[tensor],),
                    )
                    for tensor, share in zip(reversed(order), reversed(shares), strict=True)
                ),
            ),
            gradients=tuple(
                Gradient(
                    name=names[tensor],
                    size_bytes=sizes[tensor][0],
                    dtype=sizes[tensor][1],
                    producer=f"bwd/{names[tensor]}",
                )
                for tensor in order
            ),
            allreduce=allreduce or recorded,
            metadata={
                "job": {"kind": "Horovod", "sure": "certain", "why": "a timeline that Horovod wrote"},
                "origin": "imported",
                "tool": TOOL,
                "iterations": len(iterations),
                "rank": slowest if waits else None,
                "late_ranks_s": statistics.median(map(statistics.fmean, waits)) if waits else None,
                "ranks_waited_s": waited_s,
                "inferred": (
                    "Backward ops are the times between gradients; the forward pass is what no gradient or "
                    "all-reduce accounts for, divided as the backward pass was."
                ),
            },
        )
    replayed = [_replayed_calls(calls, order) for calls in iterations]
    profile, replay = anchored(profile, replayed, _periods(iterations), scale_cost=allreduce is None)
    replay["not_explained"] = None if abs(replay["error"]) <= 0.1 else "iterations differ, or steps overlap"
    return with_replay(profile, replay, on_its_network=allreduce is None and said in (None, workers))


def _waits(iterations: Sequence[dict[str, _Call]], workers: int) -> list[list[float]]:
    """Return how long each rank waited for the others in an iteration, if all ranks are noted.

    That is by how much the last all-reduce would have ended earlier, had all ranks been as early as this one.
    """
    ranks = set(range(workers))
    waits = []
    for calls in iterations:
        if ranks and all(call.reported_s.keys() == ranks for call in calls.values()):
            groups = _fused(calls.values())
            end = _end_s(groups, ranks)
            waits.append([max(end - _end_s(groups, {rank}), 0.0) for rank in ranks])
    return waits


def _end_s(groups: Iterable[Sequence[_Call]], ranks: set[int]) -> float:
    """Return when the last all-reduce ends if it waits only for these ranks and for those before it."""
    end = -math.inf
    for fused in groups:
        ready = max(seconds for call in fused for rank, seconds in call.reported_s.items() if rank in ranks)
        lasting = max(call.wire_end_s for call in fused) - min(call.wire_start_s for call in fused)
        end = max(end, ready) + lasting
    return end


def _slowest(waited_s: Sequence[float], periods_s: Sequence[float]) -> int:
    """Return the rank that waits least: rank 0 unless another is clearly slower.

    When rank 0 handed over is exact; the others' messages come up to a cycle after they did.
    """
    least = min(range(len(waited_s)), key=waited_s.__getitem__, default=0)
    is_clear = waited_s and waited_s[0] - waited_s[least] > _CLEARLY_LATER * statistics.median(periods_s)
    return least if is_clear else 0


def _periods(iterations: Sequence[dict[str, _Call]]) -> list[float]:
    """Return how long each iteration took: from its first gradient to that of the next."""
    starts = [min(call.handed_over_s for call in calls.values()) for calls in iterations]
    return [after - before for before, after in pairwise(starts)]


def _replayed_calls(calls: dict[str, _Call], order: Sequence[str]) -> list[ReplayedCall]:
    """Return an iteration's fused all-reduces as they ran; delays are negotiation, and late ranks."""
    places = {tensor: place for place, tensor in enumerate(order)}
    free = -math.inf
    result = []
    for fused in _fused(calls.values()):
        start = min(call.wire_start_s for call in fused)
        end = max(call.end_s for call in fused)
        since = max(free, *(call.handed_over_s for call in fused))
        result.append(
            ReplayedCall(
                ready=max(places[call.tensor] for call in fused) + 1,
                size_bytes=sum(call.size_bytes for call in fused),
                lane="network",
                duration_s=max(end - max(start, free), 0.0),
                delay_s=max(start - since, 0.0),
            )
        )
        free = max(free, end)
    return result


def _read_calls(path: str | Path) -> tuple[list[_Call], int | None]:
    tensors: dict[Any, _Tensor] = {}
    calls: list[_Call] = []
    ranks: set[int] = set()
    for place, event in enumerate(stream_json(path, "item", cut_off_ok=True)):
        position = f"event {place}"
        if not isinstance(event, dict):
            raise FormatError(path, "expected an object", position)
        phase, lane = event.get("ph"), event.get("pid")
        if not isinstance(lane, int | str):
            continue
        if phase == "M":
            arguments = event.get("args")
            if isinstance(arguments, dict) and isinstance(arguments.get("name"), str):
                tensors[lane] = _Tensor(arguments["name"])
        elif lane in tensors and phase in ("B", "E", "X"):
            call = _advance(path, tensors[lane], event, ranks, position)
            if call is not None:
                calls.append(call)
    if not calls:
        raise FormatError(path, "no finished all-reduce: expected a Horovod timeline with ALLREDUCE events")
    return calls, max(ranks) + 1 if ranks else None


def _advance(
    path: str | Path, tensor: _Tensor, event: dict[str, Any], ranks: set[int], position: str
) -> _Call | None:
    """Take one event of a tensor's lane; return the call that it ends, if it does."""
    seconds = number(event.get("ts"), path, "ts", position) * 1e-6
    label = event.get("name")
    if event["ph"] == "X":
        # A tick below NEGOTIATE_... says which rank has reported.
        if tensor.stack and tensor.stack[-1][0] == _NEGOTIATE and str(label).isdigit():
            rank = whole_number(label, path, "rank", position, below=MOST_WORKERS)
            ranks.add(rank)
            tensor.reported_s.setdefault(rank, seconds)
        return None
    if event["ph"] == "B":
        tensor.stack.append((str(label), seconds))
        if label == _NEGOTIATE:
            tensor.handed_over_s, tensor.reported_s, tensor.wire = seconds, {}, None
        return None
    if not tensor.stack:
        return None  # the timeline was switched on in the middle of an operation
    opened, start = tensor.stack.pop()
    if seconds < start:
        raise FormatError(path, f"{opened} of {tensor.name} ends before it starts", position)
    if opened != _ALLREDUCE and opened != _NEGOTIATE and opened.endswith(_ALLREDUCE):
        tensor.wire = (start, seconds) if tensor.wire is None else (tensor.wire[0], seconds)
    if opened != _ALLREDUCE or tensor.stack or tensor.handed_over_s is None:
        return None
    size, dtype = _tensor_size(path, event.get("args"), position)
    wire = tensor.wire or (start, seconds)
    return _Call(
        tensor=tensor.name,
        handed_over_s=tensor.reported_s.get(0, tensor.handed_over_s),
        reported_s=tensor.reported_s,
        start_s=start,
        end_s=seconds,
        wire_start_s=wire[0],
        wire_end_s=wire[1],
        size_bytes=size,
        dtype=dtype,
    )


def _tensor_size(path: str | Path, arguments: Any, position: str) -> tuple[int, DType]:
    if not isinstance(arguments, dict):
        raise FormatError(path, "the end of an all-reduce has no dtype and shape", position)
    dtype, shape = str(arguments.get("dtype")), str(arguments.get("shape"))
    match = _SHAPE.match(shape)
    if dtype not in ELEMENT_BYTES or match is None:
        raise FormatError(path, f"unknown dtype {dtype!r} or shape {shape[:80]!r}", position)
    elements = math.prod(int(part) for part in (match.group(1) or "1").split(","))
    return elements * ELEMENT_BYTES[dtype], dtype


def _fused(calls: Iterable[_Call]) -> list[list[_Call]]:
    """Join the calls whose times on the wire overlap: Horovod runs one all-reduce at a time."""
    groups: list[list[_Call]] = []
    end = -math.inf
    for call in sorted(calls, key=lambda call: call.wire_start_s):
        if call.wire_start_s < end:
            groups[-1].append(call)
        else:
            groups.append([call])
            end = -math.inf
        end = max(end, call.wire_end_s)
    return groups


def _samples(calls: Sequence[_Call]) -> tuple[tuple[float, float], ...]:
    return tuple(
        (
            float(sum(call.size_bytes for call in fused)),
            max(call.wire_end_s for call in fused) - min(call.wire_start_s for call in fused),
        )
        for fused in _fused(calls)
        if any(call.size_bytes for call in fused)
    )


def _iterations(path: str | Path, calls: Sequence[_Call]) -> list[dict[str, _Call]]:
    """Return complete iterations but the first: the n-th call of every tensor that is called most often."""
    by_tensor: defaultdict[str, list[_Call]] = defaultdict(list)
    for call in calls:
        by_tensor[call.tensor].append(call)
    count = statistics.mode(sorted((len(made) for made in by_tensor.values()), reverse=True))
    odd = {tensor for tensor, made in by_tensor.items() if abs(len(made) - count) > 1}
    if odd:
        shown = sorted(odd)[:3]
        warn(path, f"{len(odd)} tensors are not reduced once in every iteration and were left out: {shown}")
    kept = [made for tensor, made in by_tensor.items() if tensor not in odd]
    complete = min(len(made) for made in kept)
    if complete < 3:
        raise FormatError(path, f"{complete} complete iterations: at least 3 are needed, one of them warm-up")
    return [{made[k].tensor: made[k] for made in kept} for k in range(1, complete)]


def _medians(iterations: Sequence[dict[str, _Call]]) -> tuple[list[str], list[float], float]:
    """Return tensors by median time of hand-over, the steps between them, and the gap that is compute."""
    starts = [min(call.handed_over_s for call in calls.values()) for calls in iterations]
    offset = {
        tensor: statistics.median(
            calls[tensor].handed_over_s - start for calls, start in zip(iterations, starts, strict=True)
        )
        for tensor in iterations[0]
    }
    order = sorted(offset, key=lambda tensor: (offset[tensor], tensor))
    steps = [0.0] + [offset[b] - offset[a] for a, b in pairwise(order)]
    ends = [max(call.end_s for call in calls.values()) for calls in iterations]
    gaps = [max(start - end, 0.0) for end, start in zip(ends, starts[1:], strict=False)]
    return order, steps, statistics.median(gaps)


def _shares(durations: Sequence[float]) -> list[float]:
    total = sum(durations)
    return [duration / total if total else 1 / len(durations) for duration in durations]


def _gradient_name(tensor: str) -> str:
    return tensor.removeprefix("allreduce.") or tensor
