"""What a job could gain without a changed line of the job: from better buckets, from PACE, at the very most.

Under clipping by the global norm no parameter is updated before every gradient has been reduced, so the whole
forward pass waits for all of them. Reading the gradients for the norm is taken to be free.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pace.allreduce.frameworks import bucket_cap_mb_list
from pace.allreduce.optimize import optimize
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.simulation import make_policy, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """Iterations in seconds: DDP as it comes, DDP with the best caps, PACE, and no schedule is faster."""

    ddp_s: float
    ddp_best_caps_s: float
    bucket_cap_mb_list: tuple[float, ...]
    pace_s: float
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
    doubts: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return asdict(self)


def headroom(profile: Profile, *, clip: bool = False, doubts: tuple[str, ...] = ()) -> Headroom:
    """Return what a job could gain, with clipping by the global norm as well if `clip`."""
    plain = _reachable(profile)
    clipped = _reachable(under_clipping(profile)) if clip else None
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
        doubts=doubts,
    )


def under_clipping(profile: Profile) -> Profile:
    """Return the profile with a forward pass that waits for every gradient before its first op."""
    if not profile.gradients:
        return profile
    tails = profile.graph.tails()
    before = _leading_to_producers(profile)
    after = [number for number in range(len(profile.ops)) if number not in before]
    if not after:
        return profile
    first = max(after, key=lambda number: float(tails[number]))
    ops = list(profile.ops)
    names = tuple(gradient.name for gradient in profile.gradients)
    ops[first] = ops[first].model_copy(update={"waits_for": names})
    return profile.replace(ops=tuple(ops))


def _leading_to_producers(profile: Profile) -> set[int]:
    found: set[int] = set()
    waiting = list(profile.producers)
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting.extend(profile.graph.predecessors[number])
    return found


def _reachable(profile: Profile) -> Reachable:
    best = optimize(profile, Options(target="ddp"))
    pace = optimize(profile)
    ddp_s = simulate(profile, make_policy("ddp")).iteration_s
    # Caps that a search finds are never worse than the default ones: those are caps too.
    found = best.predicted.iteration_s < ddp_s
    return Reachable(
        ddp_s=ddp_s,
        ddp_best_caps_s=min(best.predicted.iteration_s, ddp_s),
        bucket_cap_mb_list=tuple(bucket_cap_mb_list(best)) if found else (),
        pace_s=pace.predicted.iteration_s,
        bound_s=pace.predicted.lower_bound_s,
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
            kept = 1 - clipped.pace_s / clipped.ddp_s if clipped.ddp_s else 0.0
            text += f" With clipping by the global norm {kept:.1%} remain."
        advice.append((pace, text))
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
