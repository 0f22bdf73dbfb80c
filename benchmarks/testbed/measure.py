"""One setting: all contenders alive side by side, timed in turns, so that drift hits all alike."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from benchmarks.testbed import real, trainer
from benchmarks.testbed.contenders import Backend, Contender
from benchmarks.testbed.errors import RankFailed
from benchmarks.testbed.hosts import Host
from benchmarks.testbed.prediction import predict, schedule_for
from benchmarks.testbed.processes import Ranks, ranks
from benchmarks.testbed.reference import TOLERANCE, FloatArray, expected_weights, norm_to_clip_to
from benchmarks.testbed.replay import renamed
from benchmarks.testbed.replicas import by_units
from benchmarks.testbed.results import ContenderResult, SettingResult
from benchmarks.testbed.scaling import Fitted, slower
from pace.documents.collective_costs import AllReduce
from pace.documents.half_costs import SampledHalf
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.planning import lower_bound_s
from pace.runtime.profiler import Contention

_FIRST_PORT = 20000
ROUND_TIMEOUT_S = 300.0

# Of every bucket size that is tried, and of training without communication.
_SWEEP_WINDOWS = 2
_PLAIN_WINDOWS = 4

Tell = Callable[[str], None]

Halves = tuple[SampledHalf, SampledHalf]
"""What a reduce-scatter and an all-gather cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes
    ----------
    rounds, windows
        Each contender has its turn `rounds` times and is timed over so many windows each time.
    warmup
        Iterations before anything counts: DDP arranges its buckets, Horovod its cache, PACE its gates.
    bucket_sizes_mib
        What DDP's sweep tries.
    """

    rounds: int = 4
    windows: int = 3
    warmup: int = 2
    bucket_sizes_mib: tuple[float, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A contender on its way through a setting."""

    contender: Contender
    profile: Profile
    schedule: Schedule | None
    running: Ranks | None = None
    rounds_s: list[list[float]] = field(default_factory=list)
    failed: str | None = None
    largest_error: float | None = None
    bucket_mib: float | None = None
    sweep_s: dict[str, float] | None = None
    trace: Any = None


def windows_of(starts: Sequence[Sequence[float]]) -> list[float]:
    """Turn every rank's starts of windows into the windows' lengths: from the last rank to the last rank."""
    latest = [max(at) for at in zip(*starts, strict=True)]
    return [later - earlier for earlier, later in pairwise(latest)]


def measure(
    on: Sequence[Host],
    model: str,
    ratio: float,
    fitted: Fitted,
    costs: dict[Backend, AllReduce],
    contenders: Sequence[Contender],
    effort: Effort,
    tell: Tell,
    traces: dict[str, Any] | None = None,
    *,
    clip: bool = False,
    halves: Mapping[Backend, Halves] | None = None,
) -> SettingResult:
    """Measure all contenders on one workload.

    Parameters
    ----------
    costs
        Of each backend on these hosts; schedules, predictions and bounds are made from them.
    traces
        Filled with a (profile, schedule, trace) for each contender that follows a schedule of all-reduces.
    clip
        Whether gradients are clipped by their global norm.
    halves
        What a reduce-scatter and an all-gather cost over each backend, where that was measured.
    """
    if clip:
        assert fitted.real is None, "what clipping makes of real compute has no reference"
        fitted = replace(fitted, profile=fitted.profile.replace(update="global-norm"))
    max_norm = norm_to_clip_to(fitted.profile) if clip else None
    workload = trainer.Workload(
        profile=fitted.whole, size_factor=fitted.size_factor, real=fitted.real, max_norm=max_norm
    )

    def priced(profile: Profile, backend: Backend, *, bound: bool = False) -> Profile:
        contention = fitted.contention.get(backend, Contention())
        if bound:  # all-reduces that compute does not slow down: none is faster
            profile = profile.replace(allreduce=costs[backend], compute_slowdown=contention.compute_slowdown)
        else:
            profile = profile.replace(
                allreduce=slower(costs[backend], contention.allreduce_slowdown),
                compute_slowdown=contention.slowdown_while_carried,
            )
        first, second = (halves or {}).get(backend, (None, None))
        return profile.replace(reduce_scatter=first, all_gather=second) if first and second else profile

    entries = []
    for contender in contenders:
        profile = priced(fitted.profile, contender.backend)
        if fitted.real is None:
            profile = renamed(profile)
        if fitted.shards > 1:
            profile = by_units(profile)
        schedule = schedule_for(contender, profile, fitted.size_factor)
        entries.append(_Entry(contender=contender, profile=profile, schedule=schedule))
    load = os.getloadavg()[0]
    plain_s = plain_window_s(on, workload)
    iterations = effort.rounds * (effort.windows + 1)
    expected = _expected(fitted, len(on), iterations, max_norm)
    with ExitStack() as stack:
        for number, entry in enumerate(entries):
            _attempt(entry, lambda e=entry, n=number: _start(stack, e, n, on, workload, effort))  # type: ignore[misc]
        for turn in range(effort.rounds):
            # Nobody is always first, nobody always follows the same other.
            for entry in entries[turn % len(entries) :] + entries[: turn % len(entries)]:
                _attempt(entry, lambda e=entry: _take_turn(e, effort))  # type: ignore[misc]
        for entry in entries:
            _attempt(entry, lambda e=entry: _check(e, expected))  # type: ignore[misc]
            if traces is not None and isinstance(entry.schedule, Schedule):
                _attempt(entry, lambda e=entry: _trace(e))  # type: ignore[misc]
                traces[entry.contender.name] = (entry.profile, entry.schedule, entry.trace)
    for entry in entries:
        if entry.failed:
            tell(f"{entry.contender.name}: {entry.failed}")
    bounded = by_units(fitted.profile) if fitted.shards > 1 else fitted.profile
    bounds = {backend: lower_bound_s(priced(bounded, backend, bound=True)) for backend in costs}
    return SettingResult(
        model=model,
        workers=len(on),
        ratio=ratio,
        compute_s=fitted.profile.timing.compute_s,
        plain_s=plain_s,
        gradients=len(fitted.profile.gradients),
        total_bytes=sum(gradient.size_bytes for gradient in fitted.profile.gradients),
        time_factor=fitted.time_factor,
        size_factor=fitted.size_factor,
        load=load,
        contention={backend: asdict(each) for backend, each in fitted.contention.items()},
        contenders=[_result(entry, fitted, bounds, costs) for entry in entries],
        max_norm=max_norm,
    )


def _expected(fitted: Fitted, workers: int, iterations: int, max_norm: float | None) -> FloatArray:
    if fitted.real is None:
        return expected_weights(fitted.whole, workers=workers, iterations=iterations, max_norm=max_norm)
    order = [gradient.name for gradient in fitted.profile.gradients]
    return real.expected_weights(fitted.real, order, workers=workers, iterations=iterations)


def _attempt(entry: _Entry, act: Callable[[], None]) -> None:
    """Do something with a contender that has not failed yet; a failure is its own, not the setting's."""
    if entry.failed is not None:
        return
    try:
        act()
    except RankFailed as error:
        entry.failed = str(error).strip().splitlines()[-1]
        if entry.running is not None:
            entry.running.kill()


def plain_window_s(on: Sequence[Host], workload: trainer.Workload) -> float:
    """Time all ranks side by side without communication: what emulated compute takes on this machine."""
    plain = Contender(name="plain", label="no communication", backend="torch", kind="ddp")
    with ranks(
        "plain", on, trainer.main, *(on, plain, workload, None, 0), undisturbed=workload.real is None
    ) as running:
        running.ask("train", 2)
        starts = running.ask("train", _PLAIN_WINDOWS + 1)
    return float(statistics.median(later - earlier for own in starts for earlier, later in pairwise(own)))


def _start(
    stack: ExitStack,
    entry: _Entry,
    number: int,
    on: Sequence[Host],
    workload: trainer.Workload,
    effort: Effort,
) -> None:
    contender = entry.contender
    entry.running = stack.enter_context(
        ranks(
            contender.name,
            on,
            trainer.main,
            *(on, contender, workload, entry.schedule, _FIRST_PORT + number),
            environment=contender.environment,
            undisturbed=workload.real is None,
        )
    )
    port = entry.running.ask("serve")[0]
    entry.running.ask("join", port)
    if contender.kind == "ddp-sweep":
        _sweep(entry, entry.running, effort)
    if contender.tuning_iterations:
        entry.running.ask("train", contender.tuning_iterations, timeout_s=ROUND_TIMEOUT_S)
    entry.running.ask("train", effort.warmup, timeout_s=ROUND_TIMEOUT_S)
    entry.running.ask("restart")


def _sweep(entry: _Entry, running: Ranks, effort: Effort) -> None:
    """Time DDP with every bucket size, and use the best."""
    took = {}
    for mib in effort.bucket_sizes_mib:
        running.ask("use_bucket_size", mib)
        running.ask("train", 2)
        took[mib] = statistics.median(windows_of(running.ask("train", _SWEEP_WINDOWS + 1)))
    entry.bucket_mib = min(took, key=took.__getitem__)
    entry.sweep_s = {f"{mib:g}": seconds for mib, seconds in took.items()}
    running.ask("use_bucket_size", entry.bucket_mib)


def _take_turn(entry: _Entry, effort: Effort) -> None:
    assert entry.running is not None
    starts = entry.running.ask("train", effort.windows + 1, timeout_s=ROUND_TIMEOUT_S)
    entry.rounds_s.append(windows_of(starts))


def _check(entry: _Entry, expected: FloatArray) -> None:
    assert entry.running is not None
    entry.largest_error = check_weights(entry.running.ask("check_weights", expected))


def check_weights(checks: Sequence[trainer.WeightCheck]) -> float:
    """Return how far the farthest weight of any rank is off.

    Raises
    ------
    RankFailed
        When it is too far, or weights differ between ranks.
    """
    largest = max(check.largest_error for check in checks)
    if len({check.sha256 for check in checks}) > 1:
        raise RankFailed("weights differ between ranks")
    if not largest <= TOLERANCE:
        raise RankFailed(f"weights are off by {largest:.2g}")
    return largest


def _trace(entry: _Entry) -> None:
    assert entry.running is not None
    entry.trace = entry.running.ask("trace", 4)[0]


def _result(
    entry: _Entry, fitted: Fitted, bounds: dict[Backend, float], costs: dict[Backend, AllReduce]
) -> ContenderResult:
    contender = entry.contender
    profile = entry.profile
    if contender.predicted_at is not None:
        contention = fitted.contention.get(contender.backend, Contention())
        cost = slower(costs[contender.predicted_at], contention.allreduce_slowdown)
        profile = profile.replace(allreduce=cost)
    return ContenderResult(
        name=contender.name,
        label=contender.label,
        peer=contender.peer,
        rounds_s=entry.rounds_s,
        predicted_s=predict(contender, profile, fitted.size_factor, entry.schedule, entry.bucket_mib),
        bound_s=bounds[contender.backend],
        largest_weight_error=entry.largest_error,
        disqualified=entry.failed,
        bucket_mib=entry.bucket_mib,
        sweep_s=entry.sweep_s,
    )
