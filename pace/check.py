"""An independent judge of schedules: shares no code with the solver and re-derives every number.

Ready times and tails come from networkx's topological order, durations from the formulas written out again,
the oracle's optimum from its dual (the strongest of all sets, DESIGN 4.3) instead of from a schedule. Times
agree when they differ by less than one part in 10^9 of the window.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx
import numpy as np

from pace.allreduce import (
    AffineAllReduce,
    AllReduce,
    HalvingDoublingAllReduce,
    NetworkLevel,
    RingAllReduce,
    SampledAllReduce,
    TreeAllReduce,
    TwoLevelAllReduce,
)
from pace.profile import ELEMENT_BYTES, Profile
from pace.schedule import ChainBound, FusionBound, Schedule

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the profile says, derived anew; `slack_s` is how far two times may differ."""

    ready: dict[str, float]
    tail: dict[str, float]
    compute_s: float
    slack_s: float


def check(profile: Profile, schedule: Schedule) -> list[str]:
    """Return every way in which `schedule` is not a right answer for `profile`; empty if it is one.

    A schedule may be slower than the best: optimality is claimed by its certificate and bounds, and those
    are re-added here.
    """
    facts = _derive(profile, schedule)
    parts = (
        _check_identity(profile, schedule),
        _check_groups(profile, schedule, facts),
        _check_segments(profile, schedule, facts),
        _check_slots(schedule, facts),
        _check_predictions(schedule, facts),
        _check_certificate(schedule, facts),
        _check_bound(profile, schedule, facts),
        _check_chain_bound(profile, schedule, facts),
    )
    return [violation for part in parts for violation in part]


def _derive(profile: Profile, schedule: Schedule) -> _Facts:
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    last: dict[str, str] = {}
    for op in profile.ops:
        graph.add_node(op.name)
        graph.add_edges_from((before, op.name) for before in op.deps)
        if op.stream is not None:
            if op.stream in last:
                graph.add_edge(last[op.stream], op.name)
            last[op.stream] = op.name
    duration = {op.name: op.duration_s for op in profile.ops}
    order = list(networkx.topological_sort(graph))
    end: dict[str, float] = {}
    for name in order:
        end[name] = duration[name] + max((end[before] for before in graph.predecessors(name)), default=0.0)
    after: dict[str, float] = {}
    for name in reversed(order):
        after[name] = duration[name] + max((after[later] for later in graph.successors(name)), default=0.0)
    tail = {gradient.name: 0.0 for gradient in profile.gradients}
    for op in profile.ops:
        for name in op.waits_for:
            tail[name] = max(tail[name], after[op.name])
    if schedule.target != "pace":
        # DDP and Horovod end an iteration at a barrier: the whole forward pass waits for every gradient.
        tail = dict.fromkeys(tail, max(tail.values(), default=0.0))
    compute = max(end.values(), default=0.0)
    window = max(compute, schedule.predicted.iteration_s, schedule.predicted.ideal_iteration_s)
    ready = {gradient.name: end[gradient.producer] for gradient in profile.gradients}
    return _Facts(ready=ready, tail=tail, compute_s=compute, slack_s=TOLERANCE * window)


def allreduce_s(document: AllReduce, workers: int, size_bytes: int) -> float:
    """Duration of one all-reduce, from the formulas of DESIGN 3 written out once more."""
    if size_bytes == 0 or workers == 1:
        return 0.0
    match document:
        case AffineAllReduce():
            return document.latency_s + size_bytes * document.seconds_per_byte
        case SampledAllReduce():
            return _sampled_s(document, size_bytes)
        case RingAllReduce():
            return _ring_s(document, workers, size_bytes)
        case HalvingDoublingAllReduce():
            power = 2 ** int(math.log2(workers) + 1e-12)
            extra = power != workers
            rounds = 2 * round(math.log2(power)) + 2 * extra
            volume = 2 * (power - 1) / power + 2 * extra
        case TreeAllReduce():
            depth = math.ceil(math.log2(workers) - 1e-12)
            rounds = volume = 2 * depth
        case TwoLevelAllReduce():
            local = min(workers, document.workers_per_node)
            inside = _ring_s(document.intra, local, size_bytes) if local > 1 else 0.0
            nodes = workers // local
            return inside + (_ring_s(document.inter, nodes, size_bytes) if nodes > 1 else 0.0)
    reduce = volume / 2 / document.reduce_bytes_per_s if document.reduce_bytes_per_s else 0.0
    per_byte = volume / document.bandwidth_bytes_per_s + reduce
    return float(rounds * document.latency_s + size_bytes * per_byte)


def _ring_s(network: RingAllReduce | NetworkLevel, workers: int, size_bytes: int) -> float:
    share = size_bytes * (workers - 1) / workers
    reduce = share / network.reduce_bytes_per_s if network.reduce_bytes_per_s else 0.0
    return 2 * (workers - 1) * network.latency_s + 2 * share / network.bandwidth_bytes_per_s + reduce


def _sampled_s(document: SampledAllReduce, size_bytes: int) -> float:
    by_size: dict[float, list[float]] = {}
    for size, seconds in document.samples:
        by_size.setdefault(size, []).append(seconds)
    # Pool adjacent violators: blocks of (sizes, total seconds, count), merged while the means fall.
    blocks: list[tuple[list[float], float, int]] = []
    for size in sorted(by_size):
        blocks.append(([size], sum(by_size[size]), len(by_size[size])))
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][2] > blocks[-1][1] / blocks[-1][2]:
            sizes, total, count = blocks.pop()
            before = blocks.pop()
            blocks.append((before[0] + sizes, before[1] + total, before[2] + count))
    points = [(size, total / count) for sizes, total, count in blocks for size in sizes]
    if size_bytes <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if size_bytes <= x1:
            return y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0)
    rising = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points) if y1 > y0]
    slope = rising[-1] if rising else points[-1][1] / points[-1][0]
    return points[-1][1] + slope * (size_bytes - points[-1][0])


def _check_identity(profile: Profile, schedule: Schedule) -> Iterator[str]:
    if schedule.profile_sha256 != profile.sha256:
        yield f"profile_sha256 is {schedule.profile_sha256}, the profile's is {profile.sha256}"
    if schedule.fingerprint != profile.fingerprint:
        yield f"fingerprint is {schedule.fingerprint}, the profile's is {profile.fingerprint}"


def _check_groups(profile: Profile, schedule: Schedule, facts: _Facts) -> Iterator[str]:
    gradients = {gradient.name: gradient for gradient in profile.gradients}
    placed: set[str] = set()
    for number, group in enumerate(schedule.groups):
        unknown = [name for name in group.gradients if name not in gradients]
        for name in unknown:
            yield f'group {number}: "{name}" is no gradient of the profile'
        for name in group.gradients:
            if name in placed:
                yield f'group {number}: gradient "{name}" is in two places'
            placed.add(name)
        if unknown:
            continue
        members = [gradients[name] for name in group.gradients]
        for gradient in members:
            if gradient.dtype != group.dtype:
                yield f'group {number}: gradient "{gradient.name}" is {gradient.dtype}, not {group.dtype}'
        size = sum(gradient.size_bytes for gradient in members)
        if size != group.size_bytes:
            yield f"group {number}: size_bytes is {group.size_bytes}, its gradients have {size}"
        expected = (
            ("ready_s", group.ready_s, max(facts.ready[name] for name in group.gradients)),
            ("tail_s", group.tail_s, max(facts.tail[name] for name in group.gradients)),
            ("allreduce_s", group.allreduce_s, allreduce_s(profile.allreduce, profile.workers, size)),
        )
        for field, stated, derived in expected:
            if not _same(stated, derived, facts):
                yield f"group {number}: {field} is {stated!r}, derived {derived!r}"
    for name in gradients:
        if name not in placed:
            yield f'gradient "{name}" is in no group'


def _check_segments(profile: Profile, schedule: Schedule, facts: _Facts) -> Iterator[str]:
    covered: list[list[tuple[int, int]]] = [[] for _ in schedule.groups]
    for number, segment in enumerate(schedule.segments):
        group = schedule.groups[segment.group]
        covered[segment.group].append((segment.offset_bytes, segment.offset_bytes + segment.size_bytes))
        if segment.start_s < group.ready_s - facts.slack_s:
            yield f"segment {number}: starts at {segment.start_s!r}, its group is ready at {group.ready_s!r}"
        duration = allreduce_s(profile.allreduce, profile.workers, segment.size_bytes)
        if not _same(segment.end_s - segment.start_s, duration, facts):
            stated = segment.end_s - segment.start_s
            yield f"segment {number}: takes {stated!r} s, derived {duration!r}"
        if segment.size_bytes > schedule.execution.max_segment_bytes:
            yield f"segment {number}: {segment.size_bytes} bytes exceed execution.max_segment_bytes"
    if schedule.segments and not schedule.execution.credit_bytes:
        yield "execution.credit_bytes is 0: no segment may be sent"
    for number, ranges in enumerate(covered):
        at = 0
        for start, stop in sorted(ranges):
            if start != at:
                yield f"group {number}: byte {min(start, at)} is sent twice or never"
            at = stop
        if at != schedule.groups[number].size_bytes:
            yield f"group {number}: {at} of {schedule.groups[number].size_bytes} bytes are sent"
    by_time = sorted(
        range(len(schedule.segments)),
        key=lambda n: (schedule.segments[n].start_s, schedule.segments[n].end_s),
    )
    for first, second in pairwise(by_time):
        if schedule.segments[second].start_s < schedule.segments[first].end_s - facts.slack_s:
            yield f"segments {first} and {second} are on the network at the same time"
        # Only what takes no slot may share the priority of what follows.
        step = 0 if schedule.segments[first].num_slots == 0 else 1
        if schedule.segments[second].priority < schedule.segments[first].priority + step:
            yield f"segments {first} and {second}: priorities do not follow the order of sending"


def _check_slots(schedule: Schedule, facts: _Facts) -> Iterator[str]:
    slot_s = schedule.solver.slot_s
    if slot_s is None:
        for number, segment in enumerate(schedule.segments):
            if segment.start_slot is not None or segment.num_slots is not None:
                yield f"segment {number}: has slots in a schedule without slot_s"
        return
    taken: list[tuple[int, int, int]] = []
    used = [0] * len(schedule.groups)
    for number, segment in enumerate(schedule.segments):
        if segment.start_slot is None or segment.num_slots is None:
            yield f"segment {number}: has no slots, slot_s is {slot_s!r}"
            continue
        if segment.priority != segment.start_slot:
            yield f"segment {number}: priority {segment.priority} is not its start_slot {segment.start_slot}"
        if segment.start_slot < _slots(schedule.groups[segment.group].ready_s, slot_s):
            yield f"segment {number}: starts in slot {segment.start_slot}, before its group is ready"
        if segment.num_slots:
            taken.append((segment.start_slot, segment.start_slot + segment.num_slots, number))
        used[segment.group] += segment.num_slots
    taken.sort()
    for (_, end, first), (start, _, second) in pairwise(taken):
        if start < end:
            yield f"segments {first} and {second} share slot {start}"
    for number, group in enumerate(schedule.groups):
        needed = _slots_served(group.allreduce_s, slot_s)
        # With fewer elements than slots some slots carry nothing, and have no segment.
        idle = group.size_bytes // ELEMENT_BYTES[group.dtype] < needed
        if used[number] > needed or (used[number] < needed and not idle):
            yield f"group {number}: {used[number]} slots serve it, it needs {needed}"
    ends = [
        (segment.start_slot + segment.num_slots) * slot_s + schedule.groups[segment.group].tail_s
        for segment in schedule.segments
        if segment.start_slot is not None and segment.num_slots is not None
    ]
    latest = max([facts.compute_s, *ends])
    if latest > schedule.predicted.ideal_iteration_s + facts.slack_s:
        yield f"slots end the window at {latest!r}, later than ideal_iteration_s"


def _slots(seconds: float, slot_s: float) -> int:
    return math.ceil(seconds / slot_s - TOLERANCE)


def _slots_served(seconds: float, slot_s: float) -> int:
    return max(_slots(seconds, slot_s), 1) if seconds > 0 else 0


def _jobs(schedule: Schedule) -> tuple[list[float], list[float], list[float]]:
    """Return ready time, duration and tail of every group in seconds, rounded as the oracle rounds them."""
    slot_s = schedule.solver.slot_s
    ready = [group.ready_s for group in schedule.groups]
    duration = [group.allreduce_s for group in schedule.groups]
    if slot_s is not None:
        ready = [_slots(value, slot_s) * slot_s for value in ready]
        duration = [_slots_served(value, slot_s) * slot_s for value in duration]
    return ready, duration, [group.tail_s for group in schedule.groups]


def _strongest_set(schedule: Schedule) -> float:
    """Return the maximum over all sets {r >= rho, q >= theta} of min r + sum p + min q, in O(n^2)."""
    if not schedule.groups:
        return 0.0
    ready, duration, tail = (np.array(values) for values in _jobs(schedule))
    best = 0.0
    by_tail = np.argsort(-tail, kind="stable")
    ready, duration, tail = ready[by_tail], duration[by_tail], tail[by_tail]
    for rho in np.unique(ready):
        inside = ready >= rho
        best = max(best, float(np.max(rho + np.cumsum(duration[inside]) + tail[inside])))
    return best


def _check_predictions(schedule: Schedule, facts: _Facts) -> Iterator[str]:
    predicted = schedule.predicted
    ends = [group.ready_s for group in schedule.groups]
    for segment in schedule.segments:
        ends[segment.group] = max(ends[segment.group], segment.end_s)
    realised = max(
        (end + group.tail_s for end, group in zip(ends, schedule.groups, strict=True)), default=0.0
    )
    lower = max(facts.compute_s, schedule.bound.bound_s, schedule.chain_bound.bound_s)
    expected = (
        ("compute_s", predicted.compute_s, facts.compute_s),
        ("iteration_s", predicted.iteration_s, max(facts.compute_s, realised)),
        ("ideal_iteration_s", predicted.ideal_iteration_s, max(facts.compute_s, _strongest_set(schedule))),
        ("lower_bound_s", predicted.lower_bound_s, lower),
    )
    for field, stated, derived in expected:
        if not _same(stated, derived, facts):
            yield f"predicted.{field} is {stated!r}, derived {derived!r}"
    gap = predicted.iteration_s / lower - 1 if lower else 0.0
    if abs(predicted.gap - gap) > 1e-6:
        yield f"predicted.gap is {predicted.gap!r}, derived {gap!r}"


def _check_certificate(schedule: Schedule, facts: _Facts) -> Iterator[str]:
    proof = schedule.certificate
    unknown = [number for number in proof.groups if number >= len(schedule.groups)]
    if unknown or len(set(proof.groups)) < len(proof.groups):
        yield f"certificate: groups {list(proof.groups)} are not groups of the schedule, each once"
        return
    ready, duration, tail = _jobs(schedule)
    expected = (
        ("min_ready_s", proof.min_ready_s, min((ready[n] for n in proof.groups), default=0.0)),
        ("total_allreduce_s", proof.total_allreduce_s, sum(duration[n] for n in proof.groups)),
        ("min_tail_s", proof.min_tail_s, min((tail[n] for n in proof.groups), default=0.0)),
        ("bound_s", proof.bound_s, proof.min_ready_s + proof.total_allreduce_s + proof.min_tail_s),
    )
    for field, stated, derived in expected:
        if not _same(stated, derived, facts):
            yield f"certificate.{field} is {stated!r}, derived {derived!r}"
    if not _same(max(facts.compute_s, proof.bound_s), schedule.predicted.ideal_iteration_s, facts):
        yield f"certificate.bound_s {proof.bound_s!r} does not prove predicted.ideal_iteration_s"


def _check_bound(profile: Profile, schedule: Schedule, facts: _Facts) -> Iterator[str]:
    bound = schedule.bound
    slack = facts.slack_s
    inside = [
        gradient.size_bytes
        for gradient in profile.gradients
        if gradient.size_bytes
        and facts.ready[gradient.name] >= bound.min_ready_s - slack
        and facts.tail[gradient.name] >= bound.min_tail_s - slack
    ]
    if bound.total_bytes > sum(inside) or bound.num_gradients > len(inside):
        stated = f"{bound.num_gradients} gradients of {bound.total_bytes} bytes"
        yield f"bound: {stated}, at most {len(inside)} of {sum(inside)} qualify"
    per_byte = bound.total_bytes * bound.seconds_per_byte
    # Without a byte there is no call that starts after min_ready_s, and nothing is proved.
    total = bound.min_ready_s + bound.latency_s + per_byte + bound.min_tail_s if bound.total_bytes else 0.0
    if not _same(bound.bound_s, total, facts):
        yield f"bound.bound_s is {bound.bound_s!r}, its parts add up to {total!r}"
    yield from _check_line(profile, facts, "bound", bound)


def _check_chain_bound(profile: Profile, schedule: Schedule, facts: _Facts) -> Iterator[str]:
    """Show that no contiguous partition of the relaxed chain is faster than chain_bound says."""
    bound = schedule.chain_bound
    yield from _check_line(profile, facts, "chain_bound", bound)
    chain = [
        (facts.ready[gradient.name], facts.tail[gradient.name], gradient.size_bytes)
        for gradient in profile.gradients
        if gradient.size_bytes
    ]
    if not chain:
        if bound.bound_s:
            yield f"chain_bound.bound_s is {bound.bound_s!r}, there is nothing to send"
        return
    # Of gradients ready together the one needed last comes first: that relaxes the chain least.
    chain.sort(
        key=lambda gradient: gradient if bound.order == "ready" else (gradient[1], gradient[0], gradient[2])
    )
    ready, tail, size = (np.array(values, dtype=float) for values in zip(*chain, strict=True))
    relaxed = tail if bound.order == "ready" else ready
    relaxed[:] = np.minimum.accumulate(relaxed[::-1])[::-1]
    # fewest[i]: the fewest groups that send everything from i on within the limit, or inf.
    limit = bound.bound_s - 2 * facts.slack_s
    behind = size[::-1].cumsum()[::-1] * bound.seconds_per_byte
    fewest = np.full(len(size) + 1, np.inf)
    fewest[-1] = 0.0
    for first in range(len(size) - 1, -1, -1):
        possible = np.flatnonzero(np.isfinite(fewest[first + 1 :]))
        groups = 1 + fewest[first + 1 + possible]
        windows = ready[first + possible] + tail[first + possible] + groups * bound.latency_s + behind[first]
        # Strictly: a window of 0 s, in which no two times may differ, is no faster than 0 s.
        fewest[first] = np.min(groups[windows < limit], initial=np.inf)
    if np.isfinite(fewest[0]):
        yield f"chain_bound.bound_s is {bound.bound_s!r}, {int(fewest[0])} contiguous groups are faster"


def _check_line(
    profile: Profile, facts: _Facts, field: str, bound: FusionBound | ChainBound
) -> Iterator[str]:
    slack = facts.slack_s
    everything = sum(gradient.size_bytes for gradient in profile.gradients)
    if not everything:
        return
    sizes = {int(size) for size in np.geomspace(1, everything, 200)}
    if isinstance(profile.allreduce, SampledAllReduce):
        sizes |= {int(size) for size, _ in profile.allreduce.samples if 1 <= size <= everything}
    for size in sorted(sizes):
        least = bound.latency_s + size * bound.seconds_per_byte
        real = allreduce_s(profile.allreduce, profile.workers, size)
        if least > real * (1 + TOLERANCE) + slack:
            yield f"{field}: its line says {least!r} s for {size} bytes, an all-reduce takes {real!r}"
            return


def _same(stated: float, derived: float, facts: _Facts) -> bool:
    return abs(stated - derived) <= facts.slack_s
