"""The ranks of one job together: which calls met, how far clocks are apart, and who waited for whom.

A collective ends at the same moment on every rank, for none is done before all have sent. So the ends of a
call on two ranks tell how far their clocks are apart, and its starts who came last. The rank that waits
least for others is the slowest: the step is as long as that rank makes it.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pace.errors import FormatError
from pace.formats.busy_time import BusyTime
from pace.formats.kineto_rank import RankTrace
from pace.formats.kineto_records import KinetoStep
from pace.formats.kineto_trace import KinetoTrace
from pace.formats.recorded_collectives import ALL_REDUCE, RecordedCall

Met = tuple[RecordedCall, ...]

# In a broadcast who sends may be done before the others begin.
_ONE_SENDS = ("broadcast", "reduce", "gather", "scatter", "send", "recv", "sendrecv", "unnamed")

# Two ranks' calls may be so far apart because their clocks are not quite equal; and in this share of calls.
_CLOCKS_S, _MOST_APART = 1e-3, 0.1


@dataclass(slots=True, kw_only=True)
class Job:
    """The ranks, and what follows from looking at all of them.

    Attributes
    ----------
    all_reduces
        For each all-reduce that every rank recorded, how each of them saw it.
    waited_s
        For each rank, how long its device waited in a step for the last rank to come; empty if the ranks'
        calls cannot be told to be the same.
    workers
        How many ranks an all-reduce has, if they meet in a process group of fewer ranks than the job.
    doubt
        Why the traces may be of several jobs, or their calls be of several process groups.
    """

    ranks: Sequence[RankTrace]
    slowest: RankTrace
    doubt: str | None = None
    all_reduces: list[Met] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    workers: int | None = None

    @property
    def late_ranks_s(self) -> float | None:
        """The mean over the ranks: what a step could be shorter if all were equally fast."""
        return statistics.fmean(self.waited_s) if self.waited_s else None

    @property
    def slowest_waited_s(self) -> float | None:
        """Seconds that the slowest rank waited for others."""
        places = {id(rank): place for place, rank in enumerate(self.ranks)}
        return self.waited_s[places[id(self.slowest)]] if self.waited_s else None


def look_at_job(ranks: Sequence[RankTrace]) -> Job:
    """Match the ranks' calls, align their clocks and find the slowest rank.

    Raises
    ------
    FormatError
        If they are not ranks of one job.
    """
    require_one_job(ranks)
    doubt = doubt_of_one_job(ranks)
    slowest = max(ranks, key=lambda rank: rank.compute_s)
    division = _divided(ranks)
    met = [call for each in division.meetings for call in each.met]
    if met and (apart := division.apart) > _MOST_APART:
        told = f"in {apart:.0%} of the all-reduces, a rank ended before another rank began"
        remedy = "Pass traces that were recorded in one run, of ranks of one process group"
        doubt = doubt or f"the traces do not match: {told}, which is impossible. {remedy}"
        return Job(ranks=ranks, slowest=slowest, doubt=doubt)
    job = Job(
        ranks=ranks,
        slowest=slowest,
        doubt=doubt,
        all_reduces=[call for call in met if call[0].name == ALL_REDUCE],
        workers=division.workers if met else None,
    )
    if met and all(len(each.places) > 1 for each in division.meetings):
        waits = dict(chain.from_iterable(each.waits() for each in division.meetings))
        order = sorted(range(len(ranks)), key=lambda place: (waits[place], -ranks[place].compute_s))
        job.slowest, job.waited_s = ranks[order[0]], [waits[place] for place in range(len(ranks))]
    return job


class _Meeting:
    """Ranks of one process group, at these places among all, and their calls that are the same ones."""

    def __init__(self, ranks: Sequence[RankTrace], places: Sequence[int], *, only: str | None) -> None:
        self.places = places
        self._ranks = [ranks[place] for place in places]
        self._steps = _common_steps(self._ranks) if len(places) > 1 else []
        self._met_in = [
            [call for call in _met(self._ranks, each) if only in (None, call[0].name)] for each in self._steps
        ]
        self.met = [call for calls in self._met_in for call in calls]
        self._ahead_s = [
            statistics.median(call[place].end_s - call[0].end_s for call in self.met) if self.met else 0.0
            for place in range(len(places))
        ]

    def num_apart(self) -> int:
        """Return in how many calls a rank was done before another one had begun: no collective allows it."""
        return sum(
            max(call.start_s - ahead for call, ahead in zip(calls, self._ahead_s, strict=True))
            > min(call.end_s - ahead for call, ahead in zip(calls, self._ahead_s, strict=True)) + _CLOCKS_S
            for calls in self.met
        )

    def waits(self) -> list[tuple[int, float]]:
        """Return each rank's place, and how long it waited for others in a step."""
        busy = [_computing(rank) for rank in self._ranks]
        return [
            (
                self.places[place],
                statistics.median(
                    _waited_s(place, calls, self._ahead_s, busy[place], steps[place])
                    for steps, calls in zip(self._steps, self._met_in, strict=True)
                ),
            )
            for place in range(len(self.places))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """The process groups in which ranks meet, and how many ranks of the job each has, if not all."""

    meetings: Sequence[_Meeting]
    workers: int | None = None

    @property
    def apart(self) -> float:
        """The share of calls that cannot be the same ones; 1 without any call."""
        calls = sum(len(each.met) for each in self.meetings)
        return sum(each.num_apart() for each in self.meetings) / calls if calls else 1.0


def _divided(ranks: Sequence[RankTrace]) -> _Division:
    """Return the process groups in which the ranks' all-reduces met.

    NCCL's calls may say their ranks. Gloo's do not, but a trace lists its groups. Of calls that are taken to
    be one, none may end before another begins. All ranks are taken to be one group, unless calls contradict
    that and contradict the listed groups less. Shards of gradients are summed in groups of replicas, which
    are never all ranks.
    """
    told = [_told_group(rank) for rank in ranks]
    if None not in told and len(set(told)) > 1 and (by_calls := _parted(ranks, told)) is not None:
        return by_calls
    whole = _Division(meetings=[_Meeting(ranks, range(len(ranks)), only=None)])
    parts = []
    for name in ranks[0].trace.own_groups:
        by_name = _parted(ranks, [rank.trace.own_groups.get(name, frozenset()) for rank in ranks])
        if by_name is not None:
            parts.append(by_name)
    if parts and ranks[0].kind.name == "HSDP":
        return min(parts, key=lambda each: each.apart)
    if not parts or not whole.meetings[0].met or whole.apart <= _MOST_APART:
        return whole
    return min([whole, *parts], key=lambda each: each.apart)


def _told_group(rank: RankTrace) -> frozenset[int] | None:
    """Return the ranks that all of a rank's all-reduces name; None if they name none or several groups."""
    told = {call.ranks for call in rank.calls}
    members = told.pop() if len(told) == 1 else None
    return None if members is None else frozenset(members)


def _parted(ranks: Sequence[RankTrace], groups: Sequence[frozenset[int] | None]) -> _Division | None:
    """Return the meetings of ranks that are of one group each; None if groups are of different sizes."""
    by_members: dict[frozenset[int], list[int]] = {}
    for place, members in enumerate(groups):
        by_members.setdefault(members or frozenset(), []).append(place)
    if len(sizes := {len(members) for members in by_members}) > 1:
        return None
    meetings = [_Meeting(ranks, places, only=ALL_REDUCE) for places in by_members.values()]
    return _Division(meetings=meetings, workers=sizes.pop())


def _common_steps(ranks: Sequence[RankTrace]) -> list[tuple[KinetoStep, ...]]:
    """Return the steps that all ranks kept: by their numbers, else all of them if they are as many."""
    numbered = [{step.number: step for step in rank.steps} for rank in ranks]
    if not any(None in steps for steps in numbered):
        common = set.intersection(*(set(steps) for steps in numbered))
        return [tuple(steps[number] for steps in numbered) for number in sorted(common, key=lambda n: n or 0)]
    if len({len(rank.steps) for rank in ranks}) > 1:
        return []
    return list(zip(*(rank.steps for rank in ranks), strict=True))


def _met(ranks: Sequence[RankTrace], steps: Sequence[KinetoStep]) -> list[Met]:
    """Return a step's collectives as every rank saw them; none if the ranks issued different ones."""
    issued = [rank.collectives_of(step) for rank, step in zip(ranks, steps, strict=True)]
    forms = {tuple((call.name, call.size_bytes) for call in calls) for calls in issued}
    if len(forms) > 1:
        return []
    return [calls for calls in zip(*issued, strict=True) if calls[0].name not in _ONE_SENDS]


def _computing(rank: RankTrace) -> BusyTime:
    if rank.clock == "host":
        ops = (op for step in rank.steps for op in (*step.forward, *step.backward, *step.update))
        return BusyTime((op.op.start_s, op.host_end_s) for op in ops)
    return BusyTime((kernel.start_s, kernel.end_s) for kernel in rank.placed.kernels)


def _waited_s(
    place: int, met: Sequence[Met], ahead_s: Sequence[float], busy: BusyTime, step: KinetoStep
) -> float:
    """Return how long a rank waited for the last to come in a step, and computed nothing meanwhile."""
    waits = []
    for calls in met:
        last = max(call.start_s - ahead for call, ahead in zip(calls, ahead_s, strict=True))
        own = calls[place]
        waits.append((own.start_s, min(max(last + ahead_s[place], own.start_s), own.end_s)))
    union = BusyTime(waits)
    idle = sum(end - start - busy.within(start, end) for start, end in union.intervals)
    return min(idle, step.exposed_s + step.fixed_s) if step.exposed_s + step.fixed_s else idle


_APART_S = 60.0  # more than clocks of two hosts are apart


def require_one_job(ranks: Sequence[RankTrace]) -> None:
    """Refuse traces that are not of different ranks of one job; ``doubt_of_one_job`` doubts others.

    Compared is what all ranks of a job have in common: the backend, the number of workers, the kind of job,
    and the shapes of the gradients. Process groups, the operators that made the gradients, the bytes of
    all-reduces, steps and the time of day can differ in one job too, so they raise a doubt. The name in a
    trace (`traceName`) tells nothing: it is the file's name, another one on every rank.

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
    return Counter(f"{group.description} of {group.size} ranks" for group in trace.groups)


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
