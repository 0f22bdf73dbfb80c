"""What a schedule says of windows under load, replayed once more; shares no code with the planner."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import NormalDist

import numpy

from pace.checker.collective_times import allreduce_s, half_s
from pace.checker.derived_times import DerivedTimes
from pace.documents.profile import Gradient, Profile
from pace.documents.schedule import Schedule, ShardedOp

# What the planner assumes where a profile states nothing (docs/concepts/fusion.md, few calls).
NUM_WINDOWS, SEED = 16, 20200706
EXTRA_S, MOST_OF_WINDOW = 1.25e-3, 0.1
OP_DEVIATION, RANK_DEVIATION = 0.05, 0.02
FEW_GRADIENTS = 12
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
NORM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call: the gradients that it waits for and delivers, and its seconds on the compute clock.

    `extra_s` is added beside compute.
    """

    waits_for: tuple[str, ...]
    delivers: tuple[str, ...]
    duration_s: float
    extra_s: float


def check_under_load(profile: Profile, schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield the expected windows that do not follow from the profile and the schedule's calls."""
    predicted = schedule.predicted
    if schedule.solver.slot_s is not None:
        for field, value, expected_value in (
            ("predicted.expected_s", predicted.expected_s, "null"),
            ("predicted.ddp_s", predicted.ddp_s, "null"),
            ("solver.curve", schedule.solver.curve or None, "an empty list"),
        ):
            if value is not None:
                slot_s = schedule.solver.slot_s
                yield f"{field} is {value!r}: expected {expected_value}, as solver.slot_s is {slot_s!r}"
        return
    load = _Load(profile, schedule, times)
    calls = [*_calls(schedule, load)]
    longest = max(times.tail.values(), default=0.0)
    barrier = dict.fromkeys(times.tail, longest)
    buckets = [load.call(names, names, size) for names, size in _ddp_buckets(profile, times)]
    for field, stated, planned, tail in (
        ("expected_s", predicted.expected_s, calls, times.tail),
        ("ddp_s", predicted.ddp_s, buckets, barrier),
    ):
        windows = [load.window_s(planned, tail, slower, late) for slower, late in load.windows()]
        expected = (float(numpy.mean(windows)), float(numpy.percentile(windows, 95)))
        # Which of the two was minimized is an option, not a claim.
        if stated is None or all(abs(stated - each) > 1e-6 * each for each in expected):
            yield f"predicted.{field} is {stated!r}, derived {expected[0]!r}"
            return
    curve = schedule.solver.curve
    for number, (few, more) in enumerate(pairwise(curve)):
        if more[0] <= few[0] or more[1] >= few[1]:
            yield (
                f"solver.curve[{number + 1}] has {more[0]} calls and {more[1]!r} s: expected more calls and "
                f"less time than solver.curve[{number}], which has {few[0]} calls and {few[1]!r} s"
            )
    own = len(schedule.transfers)
    expected_s = predicted.expected_s or 0.0
    if curve and not any(calls <= own and seconds <= expected_s for calls, seconds in curve):
        yield (
            f"solver.curve: expected an entry of at most {own} calls and {expected_s!r} s, which this "
            f"schedule has; none of its {len(curve)} entries is one"
        )


def _calls(schedule: Schedule, load: "_Load") -> Iterator[_Call]:
    """Yield the calls in their order; behind the last reduce-scatter, the exchange of a norm."""
    left = [
        sum(each.group == number for each in schedule.transfers) for number in range(len(schedule.groups))
    ]
    scatters = sum(each.op == "reduce-scatter" for each in schedule.transfers)
    for number, transfer in enumerate(schedule.transfers):
        left[transfer.group] -= 1
        group = schedule.groups[transfer.group]
        waits_for = () if group.op == "all-gather" else group.tensors
        delivers = () if left[transfer.group] or group.op == "reduce-scatter" else group.tensors
        yield load.call(waits_for, delivers, transfer.size_bytes, group.op)
        if number + 1 == scatters and schedule.shard_layout.norm is not None:
            yield load.call((), (), NORM_BYTES)


class _Load:
    """The load of a profile, stated or assumed, on the compute clock."""

    def __init__(self, profile: Profile, schedule: Schedule, times: DerivedTimes) -> None:
        self._profile, self._times, self._rate = profile, times, 1 - times.lost
        sent = sum(gradient.size_bytes > 0 for gradient in profile.gradients)
        assumes = schedule.solver.fusion == "optimal" and sent > FEW_GRADIENTS
        stated = profile.load
        self._assumed_s = 0.0
        if assumes and profile.workers > 1 and (stated is None or stated.delta is None):
            whole_s = allreduce_s(profile.allreduce, profile.workers, times.total_bytes) * self._rate
            self._assumed_s = min(EXTRA_S, MOST_OF_WINDOW * max(times.compute_s, whole_s))
        self._deviation = RANK_DEVIATION if assumes and (stated is None or stated.sigma is None) else 0.0
        self._spread = self._spreads(assumes)

    def _spreads(self, assumes: bool) -> dict[str, float]:
        profile, ready = self._profile, self._times.ready
        sigma = None if profile.load is None else profile.load.sigma
        if sigma is None:
            total = sum(op.duration_s for op in profile.ops)
            variance = sum((op.duration_std_s or OP_DEVIATION * op.duration_s) ** 2 for op in profile.ops)
            share = variance / total if assumes and total else 0.0
            return {name: sqrt(seconds * share) for name, seconds in ready.items()}
        known = sorted((self._times.ends[name], seconds) for name, seconds in sigma.items())
        if not known:
            return dict.fromkeys(ready, 0.0)
        at, seconds = zip(*known, strict=True)
        return {name: float(numpy.interp(when, at, seconds)) for name, when in ready.items()}

    def call(
        self, waits_for: Sequence[str], delivers: Sequence[str], size_bytes: int, op: ShardedOp | None = None
    ) -> _Call:
        """Return a call of so many bytes; an all-reduce unless `op` names a half of one."""
        extra_s, profile = self._times.extra_of(size_bytes) or self._assumed_s, self._profile
        if op is None:
            duration_s = allreduce_s(profile.allreduce, profile.workers, size_bytes)
        else:
            duration_s = half_s(profile, op, size_bytes)
        return _Call(
            waits_for=tuple(waits_for),
            delivers=tuple(delivers),
            duration_s=duration_s * self._rate,
            extra_s=extra_s * self._rate,
        )

    def windows(self) -> Iterator[tuple[float, float]]:
        """Yield by which factor compute is longer, and how many deviations the latest rank is late."""
        shares = [(number + 0.5) / NUM_WINDOWS for number in range(NUM_WINDOWS)]
        latest = [NormalDist().inv_cdf(share ** (1 / self._profile.workers)) for share in shares]
        order = numpy.random.Generator(numpy.random.PCG64(SEED)).permutation(NUM_WINDOWS).tolist()
        for number, other in enumerate(order):
            yield 1 + self._deviation * latest[number], latest[other]

    def window_s(self, calls: Iterable[_Call], tail: dict[str, float], slower: float, late: float) -> float:
        """Return one window in wall time."""
        times = self._times
        idle_at = times.backward_s * slower + max(self._spread.values(), default=0.0) * late
        window_s = idle_at + (times.compute_s - times.backward_s) * slower

        def ready_s(name: str) -> float:
            return times.ready[name] * slower + self._spread[name] * late

        calls = list(calls)
        sent = {name for call in calls for name in call.delivers}
        for name in times.ready.keys() - sent:
            window_s = max(window_s, ready_s(name) + tail[name] * slower)
        waiting = sorted(sent, key=lambda name: -tail[name])
        arrived: dict[str, float] = {}
        now_s = busy_s = 0.0
        at = 0
        for call in calls:
            # As in the planner, a group is late by the largest spread of its gradients.
            if call.waits_for:
                ready = max(times.ready[name] for name in call.waits_for) * slower
                now_s = max(now_s, ready + max(self._spread[name] for name in call.waits_for) * late)
            while at < len(waiting) and waiting[at] in arrived:
                name = waiting[at]
                at += 1
                following = tail[waiting[at]] if at < len(waiting) else 0.0
                idle_at = max(idle_at, arrived[name]) + (tail[name] - following) * slower
            lasting_s = call.duration_s + (call.extra_s if now_s < idle_at * (1 - 1e-9) else 0.0)
            busy_s += lasting_s
            now_s += lasting_s
            if call.delivers:
                arrived |= dict.fromkeys(call.delivers, now_s)
                window_s = max(window_s, now_s + max(tail[name] for name in call.delivers) * slower)
        return window_s + (1 / self._rate - 1) * busy_s


def _ddp_buckets(profile: Profile, times: DerivedTimes) -> Iterator[tuple[list[str], int]]:
    filling: dict[str, list[Gradient]] = {}
    closed: set[str] = set()
    for gradient in sorted(profile.gradients, key=lambda gradient: times.ready[gradient.name]):
        if not gradient.size_bytes:
            continue
        bucket = filling.setdefault(gradient.dtype, [])
        bucket.append(gradient)
        limit = BUCKET_BYTES if gradient.dtype in closed else FIRST_BUCKET_BYTES
        if sum(each.size_bytes for each in bucket) >= limit:
            closed.add(gradient.dtype)
            yield _named(filling.pop(gradient.dtype))
    yield from map(_named, filling.values())


def _named(bucket: list[Gradient]) -> tuple[list[str], int]:
    return [gradient.name for gradient in bucket], sum(gradient.size_bytes for gradient in bucket)
