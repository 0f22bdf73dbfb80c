"""Profiles from Kineto traces (torch.profiler's Chrome traces) of one or several ranks.

A profile's metadata says of which trace it is, and how well it predicts it: by a replay of what the trace ran
(``pace.formats.replay``).
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pace.documents.collective_costs import AllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError, InvalidOptions
from pace.formats.execution_trace import read_execution_trace
from pace.formats.kineto_clocks import TraceClock
from pace.formats.kineto_job import Job, look_at_job
from pace.formats.kineto_order import first_difference
from pace.formats.kineto_rank import RankTrace
from pace.formats.kineto_records import KinetoStep
from pace.formats.kineto_trace import read_kineto_trace
from pace.formats.parameters import read_parameters
from pace.formats.reading import warn, warn_of_workers
from pace.formats.recorded_collectives import equal_times, recorded_cost
from pace.formats.replay import anchored, with_replay
from pace.formats.training_step import gradient_names, profile_of_step

_COST = "give the cost of an all-reduce (--cost, or --bandwidth-gbps and --latency-s)"
_ALONE = (
    f"To ask what training on several workers would gain, give --workers and {_COST.removeprefix('give ')}."
)
_UNRECORDED = (
    "But these are traces of several ranks, and none has collectives. While PACE trains a job, they are not"
    " recorded: record the job under DDP, without PACE."
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
    said = job.workers or _workers(ranks)
    _warn_of_several_groups(slowest)
    if len(ranks) == 1 and workers is None:
        _warn_of_unknown_group(slowest, said)
    workers = workers or said
    if slowest.others["sparse_all_reduce"]:
        warn(trace.path, "sparse gradients count with all their rows, although only some were sent")
    given = allreduce is not None
    allreduce = allreduce or late or recorded
    if slowest.kind.name == "one process" and not (given and workers and workers > 1):
        raise FormatError(trace.path, f"{slowest.kind}. {_ALONE if len(paths) == 1 else _UNRECORDED}")
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


def _warn_of_unknown_group(rank: RankTrace, workers: int | None) -> None:
    sizes = sorted({len(ranks) for ranks in rank.trace.own_groups.values()})
    if sizes and rank.trace.backend == "gloo" and rank.kind.name != "HSDP":
        told = " and ".join(map(str, sizes))
        warn(
            rank.trace.path,
            f"the job also has process groups of {told} ranks, and Gloo's calls do not name their group. "
            f"{workers} workers are assumed: if that is wrong, pass --workers, or traces of several ranks",
        )


def _workers(ranks: list[RankTrace]) -> int | None:
    known = [workers for rank in ranks for workers in rank.workers]
    return Counter(known).most_common(1)[0][0] if known else None


def described(job: Job, *, joined: bool, measured: bool) -> dict[str, Any]:
    """Return the metadata of a profile that the slowest rank's trace makes, before it is replayed."""
    rank = job.slowest
    steps = rank.steps
    wall = statistics.median(rank.wall_s)
    device = statistics.median(
        sum(sum(op.device_s.values()) for op in (*step.forward, *step.backward, *step.update))
        + step.update_work_s
        for step in steps
    )
    busy = rank.compute_s + rank.step.update_s
    busy = min(busy, device) if device else busy
    groups, matches, why = _compared(rank)
    if matches is False:
        warn(rank.trace.path, why or "")
    return {
        "job": rank.kind.to_metadata(),
        "origin": "imported",
        "tool": "Kineto" + (" with execution trace" if joined else ""),
        "ranks": len(job.ranks),
        "rank": rank.trace.rank,
        "late_ranks_s": job.late_ranks_s,
        "ranks_waited_s": job.waited_s,
        "steps": len(steps),
        "clock": rank.clock,
        "step_wall_s": wall,
        "compute_s": rank.compute_s + rank.step.update_s,
        "update_s": rank.step.update_s,
        "busy_share": busy / wall if wall else 0.0,
        "host_wait_s": statistics.median(step.host_s for step in steps),
        "exposed_communication_s": statistics.median(step.exposed_s for step in steps),
        "fixed_communication_s": statistics.median(step.fixed_s for step in steps),
        "tied_parameters": _tied(steps[-1]),
        "bucket_copies": steps[-1].copies,
        "bucket_copies_s": statistics.median(step.copies_s for step in steps),
        "other_collectives": dict(sorted(rank.others.items())),
        "dropped": {
            "kernels_before_recording": rank.placed.early,
            "kernels_before_recording_s": rank.placed.early_s,
            "kernels_of_no_operator_s": rank.placed.lost_s,
            "steps": rank.dropped_steps,
            "undefined_gradients": steps[-1].undefined_gradients,
        },
        "allreduce_from_trace": measured,
        "recorded_allreduces": groups,
        "recorded_allreduces_match": matches,
        "recorded_allreduces_why": why,
        "ranks_doubt": job.doubt,
        "order_differs": first_difference([rank.trace for rank in job.ranks]),
    }


def _tied(step: KinetoStep) -> int | None:
    """Return how many parameters several layers share; None if shapes were not recorded."""
    if any(gradient.size_bytes is None for gradient in step.gradients):
        return None
    return sum(gradient.tied for gradient in step.gradients)


def _compared(rank: RankTrace) -> tuple[list[dict[str, Any]], bool | None, str | None]:
    """Return what each recorded all-reduce must have carried: the gradients ready since the one before.

    True if their sizes are those that were recorded, None if no sizes were; and the reason where not True.
    """
    step = rank.steps[-1]
    names = gradient_names(rank.step)
    sizes = [call.size_bytes if call.size_is_recorded else None for call in rank.calls_of(step)]
    edges = list(pairwise([0, *step.reduced_after]))
    ready = [sum(tensor.size_bytes for tensor in rank.gradients[a:b]) for a, b in edges]
    groups = [
        {"gradients": names[a:b], "size_bytes": size} for (a, b), size in zip(edges, ready, strict=True)
    ]
    known = [size for size in sizes if size is not None]
    if not sizes:
        return groups, None, "no all-reduce was recorded"
    if len(known) < len(sizes):
        return groups, None, "the trace does not say what the all-reduces carried"
    total = sum(tensor.size_bytes for tensor in rank.gradients)
    if rank.kind.name == "all-reduces after the backward pass" and sum(known) == total:
        # All gradients are ready: which of them a call carries is not recorded.
        return [{"gradients": [], "size_bytes": size} for size in known], True, None
    if sorted(known) == sorted(ready):
        return groups, True, None
    if sum(known) == total:
        return (
            groups,
            False,
            (
                f"the all-reduces carried the {total:,} bytes of the gradients, but not each what had become "
                f"ready since the one before: {known} bytes against {ready} (several wrapped modules?)"
            ),
        )
    return (
        groups,
        False,
        (
            f"the all-reduces carried {sum(known):,} bytes, and the {len(names)} gradients found "
            f"have {total:,}: "
            f"{known} bytes against {ready}; gradients are missing here, or something else was reduced"
        ),
    )


def replayed(profile: Profile, job: Job, *, scale_cost: bool, on_its_network: bool, late: bool) -> Profile:
    """Return the profile with its cost calibrated and its recorded step replayed, as its metadata says.

    Parameters
    ----------
    scale_cost
        Whether the cost is from the same trace.
    on_its_network
        Whether the number of workers is as well.
    late
        Whether one rank's all-reduces show that they waited for late ranks.
    """
    rank = job.slowest
    same = [step for step in rank.steps if len(rank.calls_of(step)) == len(rank.calls_of(rank.steps[-1]))]
    steps = [rank.replayed_calls(step) for step in same]
    profile, replay = anchored(profile, steps, rank.wall_s, scale_cost=scale_cost)
    missing = statistics.median(rank.wall_s) - replay["predicted_s"]
    replay["not_explained"] = _unexplained(job, missing) if abs(replay["error"]) > 0.1 else None
    replay["ranks_are_late"] = late
    return with_replay(profile, replay, on_its_network=on_its_network)


def _unexplained(job: Job, missing_s: float) -> str:
    rank = job.slowest
    milliseconds = f"{abs(missing_s) * 1e3:.1f} ms of the recorded step"
    if missing_s < 0:
        return (
            f"the prediction is {-missing_s * 1e3:.1f} ms too long: all-reduces were faster than the cost "
            "says, or steps differ"
        )
    if rank.clock == "device":
        return (
            f"no kernel ran in {milliseconds}: the device waited for its host or for other communication, "
            "which the device's clock leaves out"
        )
    if rank.clock == "host":
        held_up = statistics.median(step.exposed_s for step in rank.steps)
        return (
            f"{milliseconds} passed outside the operators: loading data, waiting for the device or for peers"
            + (f"; {held_up * 1e3:.1f} ms in other collectives behind all-reduces" if held_up else "")
        )
    exposed = statistics.median(step.exposed_s for step in rank.steps)
    late = job.slowest_waited_s
    if late is not None:
        return (
            f"{milliseconds} are missing: the device waited {exposed * 1e3:.1f} ms for all-reduces, and "
            f"{late * 1e3:.1f} ms for ranks that came later to any collective"
        )
    return (
        f"{milliseconds} are missing, of which the device spent up to {exposed * 1e3:.1f} ms waiting for "
        "all-reduces: with one rank's trace, waiting for late ranks cannot be told from sending"
    )
