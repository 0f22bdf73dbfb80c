"""What a job could gain without a changed line of the job: from better buckets, from PACE, at the very most.

A profile of a trace is anchored on the step that was recorded: its own all-reduces are replayed, and every
gain is a gain over that replay. What the replay waited for late ranks is part of every row, for no schedule
changes it. Other profiles, and traces for which another network is given, are compared with
DistributedDataParallel as it comes.

Under clipping by the global norm no parameter is updated before every gradient has been reduced, so the whole
forward pass waits for all of them, unless they are exchanged in two halves with the norm between. Computing
the norm is taken to be free, exchanging it between ranks that hold shards is not.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.documents.recorded_step import RecordedStep, recorded_job, recorded_step
from pace.documents.schedule import Schedule
from pace.formats.replay import after_the_barrier_s
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.planning.frameworks.grouping_rules import MIB, bucket_cap_mb_list
from pace.planning.lower_bound import lower_bound_s
from pace.planning.sharded.optimize import optimize_sharded
from pace.simulation import make_policy, run_policy
from pace.solver.arrays import FloatArray

LEAST_GAIN = 0.01
NO_ERROR = 0.0005
"""A replay that is less than this off is as good as exact: it is printed as 0.0 %."""
# Buckets of less than both win by a latency that nobody measured for their size.
_SMALLEST_BUCKET, _SMALLEST_SHARE = 2**16, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """Iterations in seconds, waiting for late ranks included.

    Attributes
    ----------
    ddp_s
        DDP as it comes: a first bucket of 1 MiB, then 25 MiB each. None for jobs that DDP cannot run.
    ddp_best_caps_s
        DDP with the best caps; None as above.
    pace_s
        With whole all-reduces.
    sharded_s
        In two halves, with the optimizer's state sharded; None where gradients have no such halves.
    bound_s
        See ``pace.planning.lower_bound.lower_bound_s``.
    gains
        For each of these times its share of the baseline that is saved; see ``Headroom.gain``.
    """

    ddp_s: float | None
    ddp_best_caps_s: float | None
    bucket_cap_mb_list: tuple[float, ...]
    pace_s: float
    sharded_s: float | None
    bound_s: float
    gains: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What gains are compared with: the recorded step, as a replay of its own all-reduces has it.

    Attributes
    ----------
    replayed_s, error
        The length of the replayed step, and how far it is from the recorded one, relative to that.
    late_s
        What no cost of sending explains: waiting for ranks that came later, and delays of the host.
    """

    recorded_s: float
    replayed_s: float
    error: float
    late_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereTimeGoes:
    """Shares of one iteration in seconds, which do not overlap; None where the profile does not tell.

    Where several ranks were recorded, they are those of the slowest one.

    Attributes
    ----------
    mean_late_ranks_s
        What a rank waited for the last of them on average, if all were recorded.
    """

    compute_s: float
    host_wait_s: float | None
    exposed_communication_s: float
    other_communication_s: float | None
    late_ranks_s: float | None
    mean_late_ranks_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The answer of ``headroom``.

    Attributes
    ----------
    job
        What kind of job it is and how sure that is, in one line.
    recorded
        The step that a trace recorded; None for other profiles.
    clipped
        The same under clipping by the global norm; None if it was not asked for.
    warnings
        What makes the answer uncertain: read it before the advice.
    advice
        A sentence for each thing to do next, the most useful first.
    replay_error
        How far the replay of the recorded step is from it, relative to it, also where another network was
        asked about; 0 for profiles that record no step.
    """

    job: str
    profile: str
    workers: int
    warnings: tuple[str, ...]
    recorded: Baseline | None
    plain: Reachable
    clipped: Reachable | None
    time: WhereTimeGoes
    advice: tuple[str, ...]
    replay_error: float = 0.0

    @property
    def baseline_s(self) -> float:
        """What gains are compared with."""
        if self.recorded is not None:
            return self.recorded.replayed_s
        return self.plain.pace_s if self.plain.ddp_s is None else self.plain.ddp_s

    @property
    def compared_with(self) -> str:
        """The name of the baseline."""
        if self.recorded is not None:
            return "the replay of the recorded step"
        return "PACE" if self.plain.ddp_s is None else "DDP as it comes"

    @property
    def promised(self) -> float:
        """What share of the baseline the better of DDP's best caps and PACE saves, certain or not."""
        ways = (self.plain.ddp_best_caps_s, self.plain.pace_s)
        best_s = min(seconds for seconds in ways if seconds is not None)
        return 1 - best_s / self.baseline_s if self.baseline_s > 0 else 0.0

    @property
    def is_withheld(self) -> bool:
        """Whether there is something to gain, but less than the replay's error: then no gain is told."""
        return LEAST_GAIN < self.promised < abs(self.replay_error)

    def gain(self, window_s: float | None) -> float | None:
        """Return what share of the baseline is saved; None if the replay is further off than that."""
        if window_s is None or self.baseline_s <= 0:
            return None
        gain = 1 - window_s / self.baseline_s
        if self.recorded is None and gain == 0:  # the baseline itself
            return gain
        return None if self.is_withheld or abs(self.replay_error) > max(abs(gain), NO_ERROR) else gain

    def with_gains(self) -> "Headroom":
        """Return the answer with the gains of every way to train."""

        def told(reachable: Reachable) -> Reachable:
            names = ("ddp_s", "ddp_best_caps_s", "pace_s", "sharded_s", "bound_s")
            return replace(reachable, gains={name: self.gain(getattr(reachable, name)) for name in names})

        return replace(
            self, plain=told(self.plain), clipped=None if self.clipped is None else told(self.clipped)
        )

    def to_document(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return asdict(self)


def headroom(profile: Profile, *, clip: bool = False, warnings: tuple[str, ...] = ()) -> Headroom:
    """Return what a job could gain, with clipping by the global norm as well if `clip`.

    A profile whose updates wait for a norm already is asked about both ways.
    """
    from pace.whatif.headroom_advice import advice_for

    kind, job = _told(profile)
    replay = recorded_step(profile)
    recorded = _baseline(replay)
    late = 0.0 if recorded is None else recorded.late_s
    under_ddp = kind not in ("HSDP", "Horovod", "DDP of several models")
    plain = _reachable(profile.replace(update="per-gradient"), late, under_ddp=under_ddp)
    clipped = None
    if clip or profile.update == "global-norm":
        clipped = _reachable(profile.replace(update="global-norm"), late, under_ddp=under_ddp)
    made = Headroom(
        job=job,
        profile=profile.name,
        workers=profile.workers,
        warnings=warnings,
        recorded=recorded,
        plain=plain,
        clipped=clipped,
        time=_where_time_goes(profile, plain, recorded),
        advice=(),
        replay_error=0.0 if replay is None else replay.error,
    )
    return advice_for(made, kind).with_gains()


def _told(profile: Profile) -> tuple[str, str]:
    """Return the kind of the job, empty if nothing says it, and the first line of the answer."""
    job = recorded_job(profile)
    if job is None:
        return "", "a profile (nothing in it says what kind of job it is of)"
    return job.kind, f"{job.kind} ({job.sure}: {job.why})"


def _seconds(value: object) -> float | None:
    """Return a number from metadata, which anybody may have written; None if it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]  # a number here


def _baseline(replay: RecordedStep | None) -> Baseline | None:
    """Return the recorded step; None without recorded all-reduces on this network, whose place plans take."""
    if replay is None or not replay.calls or not replay.on_its_network:
        return None
    return Baseline(
        recorded_s=statistics.median(replay.recorded_s),
        replayed_s=replay.predicted_s,
        error=replay.error,
        late_s=replay.late_s,
    )


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _reachable(profile: Profile, late_s: float, *, under_ddp: bool) -> Reachable:
    pace = optimize_allreduce(profile)
    # Parameter servers exchange no halves.
    halves = None if isinstance(profile.allreduce, PushPull) else optimize_sharded(profile)
    ddp_s = best_s = None
    caps: tuple[float, ...] = ()
    if under_ddp:
        best = optimize_allreduce(profile, Options(framework="ddp"))
        default = run_policy(profile, make_policy("ddp")).windows[0]
        default_s = _behind_barrier_s(profile, default.iteration_s, default.ends_s)
        ends_s = [transfer.end_s for transfer in best.transfers]
        caps_s = _behind_barrier_s(profile, best.predicted.iteration_s, ends_s)
        caps, more_s = _without_tiny(profile, best)
        caps_s += more_s
        # Caps that a search finds are never worse than the default ones: those are caps too.
        caps = caps if caps_s < default_s else ()
        ddp_s, best_s = default_s + late_s, min(caps_s, default_s) + late_s
    return Reachable(
        ddp_s=ddp_s,
        ddp_best_caps_s=best_s,
        bucket_cap_mb_list=caps,
        pace_s=pace.predicted.iteration_s + late_s,
        sharded_s=None if halves is None else halves.predicted.iteration_s + late_s,
        bound_s=lower_bound_s(profile) + late_s,
    )


def _without_tiny(profile: Profile, schedule: Schedule) -> tuple[tuple[float, ...], float]:
    """Join buckets too small to be advised to their neighbors; return how much later the last one ends."""
    groups = [(group.ready_s, group.size_bytes) for group in schedule.groups if group.size_bytes]
    least = min(_SMALLEST_BUCKET, _SMALLEST_SHARE * sum(size for _, size in groups))
    joined: list[tuple[float, int]] = []
    for ready_s, size in groups:
        if joined and min(size, joined[-1][1]) < least:
            ready_s, size = max(ready_s, joined[-1][0]), size + joined.pop()[1]
        joined.append((ready_s, size))
    if len(joined) == len(groups):
        return tuple(bucket_cap_mb_list(schedule)), 0.0
    return tuple(size / MIB for _, size in joined), _end_s(profile, joined) - _end_s(profile, groups)


def _end_s(profile: Profile, buckets: Iterable[tuple[float, int]]) -> float:
    """Return when all-reduces that are sent one after another end, in a window that backward ops may end."""
    end_s = 0.0
    for ready_s, size in buckets:
        end_s = max(end_s, ready_s) + float(profile.cost(size))
    return max(end_s, profile.timing.backward_s)


def _behind_barrier_s(profile: Profile, window_s: float, ends_s: Sequence[float] | FloatArray) -> float:
    """Return a window of DDP in which forward ops that use no parameter wait for the all-reduces as well."""
    if recorded_step(profile) is None:
        return window_s
    return max(window_s, max(ends_s, default=0.0) + after_the_barrier_s(profile))


def _where_time_goes(profile: Profile, plain: Reachable, recorded: Baseline | None) -> WhereTimeGoes:
    said = profile.metadata
    compute = profile.timing.compute_s
    host = _seconds(said.get("host_wait_s")) if said.get("clock") == "hybrid" else None
    other = _seconds(said.get("fixed_communication_s")) if said.get("clock") in ("hybrid", "host") else None
    if recorded is not None:
        # Where all ranks were recorded, what the slowest waited for others is known: the rest is delay.
        waited = [_seconds(value) for value in _listed(said.get("ranks_waited_s"))]
        known = [seconds for seconds in waited if seconds is not None]
        whole, late = recorded.replayed_s, min([recorded.late_s, *known])
    else:
        whole, late = plain.pace_s if plain.ddp_s is None else plain.ddp_s, 0.0
    other = None if other is None else min(other, compute)
    return WhereTimeGoes(
        compute_s=max(compute - (host or 0.0) - (other or 0.0), 0.0),
        host_wait_s=host,
        exposed_communication_s=max(whole - compute - late, 0.0),
        other_communication_s=other,
        late_ranks_s=None if recorded is None else late,
        mean_late_ranks_s=_seconds(said.get("late_ranks_s")),
    )
