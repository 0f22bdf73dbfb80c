"""Profiles from Kineto traces (torch.profiler's Chrome traces) of one or several ranks."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pace.documents.collective_costs import AllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError, InvalidOptions
from pace.formats.execution_trace import read_execution_trace
from pace.formats.kineto_clocks import TraceClock
from pace.formats.kineto_job import look_at_job
from pace.formats.kineto_rank import RankTrace
from pace.formats.kineto_report import described, replayed
from pace.formats.kineto_trace import read_kineto_trace
from pace.formats.parameters import read_parameters
from pace.formats.reading import warn, warn_of_workers
from pace.formats.recorded_collectives import equal_times, recorded_cost
from pace.formats.training_step import profile_of_step

_COST = "give the cost of an all-reduce (--cost, or --bandwidth-gbps and --latency-s)"
_ALONE = (
    f"To ask what training on several workers would gain, give --workers and {_COST.removeprefix('give ')}."
)


def read_kineto(
    paths: Sequence[str | Path],
    *,
    execution_trace: str | Path | None = None,
    workers: int | None = None,
    allreduce: AllReduce | None = None,
    clock: TraceClock = "auto",
    parameters: str | Path | None = None,
    name: str | None = None,
) -> Profile:
    """Make a profile from one or several ranks' traces of the same run.

    Parameters
    ----------
    paths
        One trace for each rank, at least one. Op durations are those of the slowest rank, for which the
        others wait (``pace.formats.kineto_job``); the all-reduce cost uses all of them.
    execution_trace
        An execution trace of the same workload, for the sizes of gradients: needed unless the
        Kineto trace was recorded with `record_shapes=True`. Joined by `Record function id` if both
        were recorded together, else by the order in which gradients were accumulated.
    workers, allreduce
        For traces that do not say how many workers took part, or how large the all-reduces were.
    clock
        "device": an op lasts as long as its kernels. "host": until the next op starts on the host.
        "hybrid": as long as its kernels and the device's idle time that is no waiting for all-reduces, so
        that a job bound by its host is predicted as such. "auto": hybrid if there are kernels and the calls
        that launched them, else what there is.
    parameters
        The parameters' shapes and types in the order of definition (``pace.formats.parameters``), for
        gradients whose sizes were not recorded.

    Raises
    ------
    FormatError
        If a trace cannot be read, or something needed is not in it.
    """
    if not paths:
        raise InvalidOptions("no Kineto trace given")
    shapes = None if execution_trace is None else read_execution_trace(execution_trace)
    listed = None if parameters is None else read_parameters(parameters)
    ranks = [RankTrace(read_kineto_trace(path), shapes, clock, listed) for path in paths]
    job = look_at_job(ranks)
    trace, step = job.slowest.trace, job.slowest.step
    recorded: AllReduce | None = recorded_cost([rank.calls for rank in ranks], job.all_reduces)
    slowest = job.slowest
    late = None if job.all_reduces else equal_times([slowest.calls_of(step) for step in slowest.steps])
    said = _workers(ranks)
    workers = workers or said
    _warn_of_several_groups(slowest)
    if slowest.others["sparse_all_reduce"]:
        warn(trace.path, "sparse gradients count with all their rows, although only some were sent")
    given = allreduce is not None
    allreduce = allreduce or late or recorded
    if slowest.kind.name == "one process" and not (given and workers and workers > 1):
        raise FormatError(trace.path, f"{slowest.kind}. {_ALONE}")
    if workers is None:
        reason = "the trace does not say how many workers took part: give their number (--workers)"
        raise FormatError(trace.path, reason)
    if allreduce is None:
        raise FormatError(trace.path, f"no all-reduce of known size was recorded: {_COST}")
    profile = profile_of_step(
        trace.path,
        step,
        name=name,
        workers=workers,
        allreduce=allreduce,
        metadata=described(job, joined=execution_trace is not None, measured=recorded is not None),
    )
    as_recorded = said in (None, workers)
    if said is not None and not given and not as_recorded:
        warn_of_workers(trace.path, said, workers)
    return replayed(
        profile,
        job,
        scale_cost=not given,
        on_its_network=as_recorded and not given,
        late=late is not None,
    )


def _warn_of_several_groups(rank: RankTrace) -> None:
    """Warn where all-reduces of gradients have groups of different sizes: one cost stands for all."""
    total = sum(call.size_bytes or 0 for call in rank.calls)
    large = {call.workers for call in rank.calls if call.workers and 100 * (call.size_bytes or 0) > total}
    if len(large) > 1:
        told = " and ".join(map(str, sorted(large)))
        warn(
            rank.trace.path,
            f"all-reduces ran in process groups of {told} ranks, as for experts. One cost is assumed for "
            "all, so times of some are wrong",
        )


def _workers(ranks: list[RankTrace]) -> int | None:
    known = [workers for rank in ranks for workers in rank.workers]
    return Counter(known).most_common(1)[0][0] if known else None
