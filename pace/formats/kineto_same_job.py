"""Whether traces are of different ranks of one job: refused where they cannot be, doubted where they may not.

Compared is what all ranks of a job have in common: the backend, the number of workers, the kind of job, and
the shapes of the gradients. Process groups, the operators that made the gradients, the bytes of all-reduces,
steps and the time of day can differ in one job too, so they raise a doubt. The name in a trace (`traceName`)
tells nothing: it is the file's name, another one on every rank.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pace.errors import FormatError
from pace.formats.kineto_rank import RankTrace
from pace.formats.kineto_records import KinetoStep
from pace.formats.kineto_trace import KinetoTrace

_APART_S = 60.0  # more than clocks of two hosts are apart


def require_one_job(ranks: Sequence[RankTrace]) -> None:
    """Refuse traces that are not of different ranks of one job.

    Raises
    ------
    FormatError
        Where two are of one rank, or say different backends, numbers of workers, kinds or gradients.
    """
    first = ranks[0]
    seen: dict[int, RankTrace] = {}
    for place, rank in enumerate(ranks):
        path = rank.trace.path
        if rank.trace.rank is not None:
            other = seen.setdefault(rank.trace.rank, rank)
            if other is not rank:
                reason = (
                    f"is of rank {rank.trace.rank}, as {other.trace.path} is: pass one trace for each rank"
                )
                raise FormatError(path, reason)
        for before in ranks[:place]:
            if _is_same_recording(rank.trace, before.trace):
                raise FormatError(path, f"is the same recording as {before.trace.path}: pass it once")
        found = _contradiction(rank, first)
        if found is not None:
            raise FormatError(path, f"another job than {first.trace.path}: {found}")


def doubt_of_one_job(ranks: Sequence[RankTrace]) -> str | None:
    """Return in one line why the traces may be of several jobs; None if nothing says so."""
    first = ranks[0]
    for rank in ranks[1:]:
        found = list(_doubts(rank, first))
        if found:
            return f"{_named(rank)} may be of another job than {_named(first)}: {'; '.join(found)}"
    return None


def _named(rank: RankTrace) -> str:
    return Path(rank.trace.path).name if rank.trace.rank is None else f"rank {rank.trace.rank}"


def _is_same_recording(one: KinetoTrace, other: KinetoTrace) -> bool:
    """Return whether two traces, one of which does not say its rank, have the same operators and times."""
    if None not in (one.rank, other.rank) or one.origin_us != other.origin_us:
        return False
    return [(op.name, op.start_s) for op in one.ops] == [(op.name, op.start_s) for op in other.ops]


def _contradiction(rank: RankTrace, first: RankTrace) -> str | None:
    said: tuple[tuple[str, Any, Any], ...] = (
        ("backend", rank.trace.backend, first.trace.backend),
        ("workers", rank.trace.workers, first.trace.workers),
        ("kind of job", rank.kind.name, first.kind.name),
        ("bytes of gradients", _gradient_bytes(rank), _gradient_bytes(first)),
    )
    for what, own, others in said:
        if own != others and None not in (own, others):
            return f"{what} {own} and {others}"
    tensors, other_tensors = _shapes(rank), _shapes(first)
    if tensors is None or other_tensors is None:
        tensors, other_tensors = _sizes(rank), _sizes(first)
    mine, theirs = tensors - other_tensors, other_tensors - tensors
    if not mine and not theirs:
        return None
    return (
        f"{mine.total()} of {tensors.total()} gradients differ, such as {min(mine, default='none')} and "
        f"{min(theirs, default='none')}"
    )


def _gradient_bytes(rank: RankTrace) -> int:
    return sum(tensor.size_bytes for tensor in rank.gradients)


def _sizes(rank: RankTrace) -> Counter[str]:
    return Counter(f"{tensor.size_bytes:,} bytes of {tensor.dtype}" for tensor in rank.gradients)


def _shapes(rank: RankTrace) -> Counter[str] | None:
    """Return the shapes of the gradients; None if they were not recorded, or are of shards."""
    gradients = rank.steps[-1].gradients
    if rank.kind.name == "HSDP" or any(gradient.shape is None for gradient in gradients):
        return None
    return Counter(f"{list(gradient.shape or ())} of {gradient.dtype}" for gradient in gradients)


def _doubts(rank: RankTrace, first: RankTrace) -> Iterator[str]:
    own_groups, other_groups = _groups(rank.trace), _groups(first.trace)
    if own_groups != other_groups and own_groups and other_groups:
        mine, theirs = own_groups - other_groups, other_groups - own_groups
        yield f"process groups {_listed(mine)} and {_listed(theirs)}"
    makers = _makers(rank.steps[-1]), _makers(first.steps[-1])
    if makers[0] != makers[1]:
        yield f"gradients of {_listed(makers[0] - makers[1])} and {_listed(makers[1] - makers[0])}"
    reduces = _reduced(rank), _reduced(first)
    if None not in reduces and reduces[0] != reduces[1]:
        yield f"{reduces[0]} and {reduces[1]}"
    steps = _numbers(rank), _numbers(first)
    if all(steps) and not steps[0] & steps[1]:
        yield f"steps {_span(steps[0])} and {_span(steps[1])}"
    times = rank.trace.recorded_at_s, first.trace.recorded_at_s
    if times[0] is not None and times[1] is not None:
        apart = max(times[0][0], times[1][0]) - min(times[0][1], times[1][1])
        if apart > _APART_S:
            yield f"recorded {_duration(apart)} apart"


def _groups(trace: KinetoTrace) -> Counter[str]:
    """Return the process groups by description and size: a dimension's groups have a name for each rank."""
    return Counter(f"{name.partition(' ')[2]} of {size} ranks" for name, size in trace.groups.items())


def _makers(step: KinetoStep) -> Counter[str]:
    return Counter(step.backward[gradient.producer].name for gradient in step.gradients)


def _reduced(rank: RankTrace) -> str | None:
    """Return what a step's all-reduces carried; None if that was not recorded."""
    calls = rank.calls_of(rank.steps[-1])
    if not calls or not all(call.size_is_recorded for call in calls):
        return None
    sizes = sorted(call.size_bytes or 0 for call in calls)
    return f"{len(sizes)} all-reduces a step of {sizes[0]:,} to {sizes[-1]:,} bytes"


def _numbers(rank: RankTrace) -> set[int]:
    return {step.number for step in rank.steps if step.number is not None}


def _span(numbers: set[int]) -> str:
    return f"{min(numbers)} to {max(numbers)}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 3600 else f"{seconds / 60:.0f} minutes"


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(counted.items())[:3]) or "none"
