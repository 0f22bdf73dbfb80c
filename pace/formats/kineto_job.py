"""The ranks of one job together: which calls met, how far clocks are apart, and who waited for whom.

A collective ends at the same moment on every rank, for none is done before all have sent. So the ends of a
call on two ranks tell how far their clocks are apart, and its starts who came last. The rank that waits
least for others is the slowest: the step is as long as that rank makes it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from pace.formats.busy_time import BusyTime
from pace.formats.kineto_rank import RankTrace
from pace.formats.kineto_records import KinetoStep
from pace.formats.kineto_same_job import doubt_of_one_job, require_one_job
from pace.formats.recorded_collectives import ALL_REDUCE, RecordedCall

Met = tuple[RecordedCall, ...]

# In a broadcast who sends may be done before the others begin.
_ONE_SENDS = ("broadcast", "reduce", "gather", "scatter", "send", "recv", "sendrecv", "unnamed")


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
    doubt
        Why the traces may be of several jobs.
    """

    ranks: Sequence[RankTrace]
    slowest: RankTrace
    doubt: str | None = None
    all_reduces: list[Met] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)

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
    steps = _common_steps(ranks)
    met_in = [_met(ranks, each) for each in steps]
    met = [call for calls in met_in for call in calls]
    if len(ranks) == 1 or not met:
        return Job(ranks=ranks, slowest=slowest, doubt=doubt)
    ahead_s = [
        statistics.median(call[place].end_s - call[0].end_s for call in met) for place in range(len(ranks))
    ]
    busy = [_computing(rank) for rank in ranks]
    waited = [
        statistics.median(
            _waited_s(place, calls, ahead_s, busy[place], each[place])
            for each, calls in zip(steps, met_in, strict=True)
        )
        for place in range(len(ranks))
    ]
    order = sorted(range(len(ranks)), key=lambda place: (waited[place], -ranks[place].compute_s))
    return Job(
        ranks=ranks,
        slowest=ranks[order[0]],
        doubt=doubt,
        all_reduces=[call for call in met if call[0].name == ALL_REDUCE],
        waited_s=waited,
    )


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
