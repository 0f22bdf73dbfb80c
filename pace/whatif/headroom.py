"""What a job could gain without a changed line of the job: from better buckets, from PACE, at the very most.

Under clipping by the global norm no parameter is updated before every gradient has been reduced, so the whole
forward pass waits for all of them, unless they are exchanged in two halves with the norm between. Computing
the norm is taken to be free, exchanging it between ranks that hold shards is not.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.planning.frameworks.bucket_lists import bucket_cap_mb_list
from pace.planning.optimize import lower_bound_s
from pace.planning.sharded.optimize import optimize_sharded
from pace.simulation import make_policy, run_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """Iterations in seconds: DDP as it comes, DDP with the best caps, PACE, and no schedule is faster.

    Attributes
    ----------
    pace_s
        With whole all-reduces.
    sharded_s
        In two halves, with the optimizer's state sharded; None where gradients have no such halves.
    bound_s
        See ``pace.planning.optimize.lower_bound_s``.
    """

    ddp_s: float
    ddp_best_caps_s: float
    bucket_cap_mb_list: tuple[float, ...]
    pace_s: float
    sharded_s: float | None
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereTimeGoes:
    """Shares of one iteration in seconds; None where the profile's origin does not tell."""

    compute_s: float
    host_wait_s: float | None
    exposed_communication_s: float
    other_communication_s: float | None
    late_ranks_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The answer of ``headroom``.

    Attributes
    ----------
    recorded_s
        The step that a trace recorded; None for other profiles.
    clipped
        The same under clipping by the global norm; None if it was not asked for.
    advice
        A sentence for each thing to do next, the most useful first.
    """

    profile: str
    workers: int
    recorded_s: float | None
    plain: Reachable
    clipped: Reachable | None
    time: WhereTimeGoes
    advice: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return asdict(self)


def headroom(profile: Profile, *, clip: bool = False, warnings: tuple[str, ...] = ()) -> Headroom:
    """Return what a job could gain, with clipping by the global norm as well if `clip`.

    A profile whose updates wait for a norm already is asked about both ways.
    """
    plain = _reachable(profile.replace(update="per-gradient"))
    clipped = None
    if clip or profile.update == "global-norm":
        clipped = _reachable(profile.replace(update="global-norm"))
    time = _where_time_goes(profile, plain)
    replay = profile.metadata.get("replay")
    return Headroom(
        profile=profile.name,
        workers=profile.workers,
        recorded_s=None if replay is None else float(np.median(replay["recorded_s"])),
        plain=plain,
        clipped=clipped,
        time=time,
        advice=tuple(_advice(plain, clipped, time)),
        warnings=warnings,
    )


def _reachable(profile: Profile) -> Reachable:
    best = optimize_allreduce(profile, Options(framework="ddp"))
    pace = optimize_allreduce(profile)
    # Parameter servers exchange no halves.
    halves = None if isinstance(profile.allreduce, PushPull) else optimize_sharded(profile)
    ddp_s = run_policy(profile, make_policy("ddp")).iteration_s
    # Caps that a search finds are never worse than the default ones: those are caps too.
    found = best.predicted.iteration_s < ddp_s
    return Reachable(
        ddp_s=ddp_s,
        ddp_best_caps_s=min(best.predicted.iteration_s, ddp_s),
        bucket_cap_mb_list=tuple(bucket_cap_mb_list(best)) if found else (),
        pace_s=pace.predicted.iteration_s,
        sharded_s=None if halves is None else halves.predicted.iteration_s,
        bound_s=lower_bound_s(profile),
    )


def _where_time_goes(profile: Profile, plain: Reachable) -> WhereTimeGoes:
    said = profile.metadata
    compute = profile.timing.compute_s
    host = said.get("host_wait_s") if said.get("clock") == "hybrid" else None
    other = said.get("fixed_communication_s") if said.get("clock") in ("hybrid", "host") else None
    return WhereTimeGoes(
        compute_s=max(compute - (host or 0.0) - (other or 0.0), 0.0),
        host_wait_s=host,
        exposed_communication_s=max(plain.ddp_s - compute, 0.0),
        other_communication_s=other,
        late_ranks_s=said.get("late_ranks_s"),
    )


def _gain(reachable: Reachable, window_s: float) -> float:
    return 1 - window_s / reachable.ddp_s if reachable.ddp_s else 0.0


def _advice(plain: Reachable, clipped: Reachable | None, time: WhereTimeGoes) -> list[str]:
    now = plain.ddp_s
    if now <= 0:
        return ["Nothing takes time here."]
    advice: list[tuple[float, str]] = []
    caps, pace = 1 - plain.ddp_best_caps_s / now, 1 - plain.pace_s / now
    if caps > 0.01:
        advice.append(
            (
                caps,
                f"Pass bucket_cap_mb_list to DistributedDataParallel: {caps:.1%} less.",
            )
        )
    if pace > 0.01 and plain.pace_s < 0.99 * plain.ddp_best_caps_s:
        text = f"Wrap the optimizer with PACE: {pace:.1%} less."
        if clipped is not None:
            text += f" With clipping by the global norm {_gain(clipped, clipped.pace_s):.1%} remain."
        advice.append((pace, text))
    if clipped is not None and clipped.sharded_s is not None:
        gain = _gain(clipped, clipped.sharded_s)
        if gain > 0.01 and clipped.sharded_s < 0.99 * min(clipped.pace_s, clipped.ddp_best_caps_s):
            advice.append(
                (
                    gain,
                    f"With clipping, reduce-scatter, norm and gathers of shards would take {gain:.1%} less.",
                )
            )
    host = (time.host_wait_s or 0.0) / now
    if host > 0.1:
        advice.append(
            (
                host,
                f"The device waits for its host {host:.0%} of the step: CUDA graphs, torch.compile or a "
                "larger batch help more than any schedule.",
            )
        )
    late = (time.late_ranks_s or 0.0) / now
    if late > 0.05:
        advice.append(
            (late, f"All-reduces wait for late ranks for {late:.0%} of the step: even out the ranks' work.")
        )
    other = (time.other_communication_s or 0.0) / now
    if other > 0.05:
        advice.append(
            (
                other,
                f"Other collectives are waited for during {other:.0%} of the step, which no schedule of "
                "gradients changes.",
            )
        )
    if not advice:
        advice.append((0.0, "Communication is hidden already: nothing is to be gained by sending otherwise."))
    return [text for _, text in sorted(advice, reverse=True)]
