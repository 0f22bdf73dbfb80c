"""Whether a reshard plan is a right answer for a resharding document; shares no code with the planner."""

import math
from collections.abc import Iterator

from pace.documents.base import refuse_other
from pace_sync.documents.reshard_plan import ReshardPlan
from pace_sync.documents.resharding import Resharding, TensorBox
from pace_sync.errors import InvalidSync

TOLERANCE = 1e-6
# Fair shares of more streams take minutes to play back.
MOST_FAIR_STREAMS = 1000

Spans = tuple[tuple[int, int], ...]


def check_reshard(problem: Resharding, plan: ReshardPlan) -> list[str]:
    """Return every way in which a plan is not a right answer for a problem; empty if it is one.

    Every receiver must get each element that it wants once, from a sender that holds it; no link may carry
    more than its rate; and the bound is derived again from the hosts that the plan names.
    """
    refuse_other(problem, Resharding, InvalidSync)
    refuse_other(plan, ReshardPlan, InvalidSync)
    if plan.problem_sha256 != problem.sha256:
        return ["problem_sha256 is that of another resharding document: plan again, or give that document"]
    if plan.tensors != problem.tensors:
        return ["the plan is for other tensors than the document"]
    violations = [*_check_streams(problem, plan)]
    if not violations:
        violations = [
            *_check_wants(problem, plan),
            *_check_times(problem, plan),
            *_check_rivals(problem, plan),
        ]
    return [*violations, *_check_bound(problem, plan)]


def _spans(box: TensorBox) -> Spans:
    return tuple(zip(box.begin, box.end, strict=True))


def _common(left: Spans, right: Spans) -> Spans | None:
    found = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(left, right, strict=True))
    return found if all(low < high for low, high in found) else None


def _volume(spans: Spans) -> int:
    return math.prod(high - low for low, high in spans)


def _minus(whole: list[Spans], cut: Spans) -> list[Spans]:
    """Return what is left of disjoint boxes without another one."""
    left: list[Spans] = []
    for spans in whole:
        common = _common(spans, cut)
        if common is None:
            left.append(spans)
            continue
        rest = spans
        for axis, (low, high) in enumerate(common):
            begin, end = rest[axis]
            for piece in ((begin, low), (high, end)):
                if piece[0] < piece[1]:
                    left.append((*rest[:axis], piece, *rest[axis + 1 :]))
            rest = (*rest[:axis], (low, high), *rest[axis + 1 :])
    return left


def _check_streams(problem: Resharding, plan: ReshardPlan) -> Iterator[str]:
    held = {sender.name: sender.shards for sender in problem.senders}
    known = {receiver.name for receiver in problem.receivers}
    shapes = {tensor.name: tensor.shape for tensor in problem.tensors}
    for number, stream in enumerate(plan.streams):
        if stream.sender not in held:
            yield f'stream {number}: there is no sender "{stream.sender}"'
            continue
        for name in stream.receivers:
            if name not in known:
                yield f'stream {number}: there is no receiver "{name}"'
        if len(set(stream.receivers)) < len(stream.receivers):
            yield f"stream {number}: a receiver is in the chain twice"
        size = 0
        for box in stream.boxes:
            if len(shapes.get(box.tensor, ())) != len(box.shape) or box.tensor not in shapes:
                yield f"stream {number}: {box.told()} is of no tensor"
                continue
            size += problem.size_bytes(box)
            left = [_spans(box)]
            for shard in held[stream.sender]:
                if shard.tensor == box.tensor:
                    left = _minus(left, _spans(shard))
            if left:
                yield f'stream {number}: sender "{stream.sender}" does not hold {box.told()}'
        if size != stream.size_bytes:
            yield f"stream {number}: size_bytes is {stream.size_bytes}, derived {size}"


def _check_wants(problem: Resharding, plan: ReshardPlan) -> Iterator[str]:
    for receiver in problem.receivers:
        left: dict[str, list[Spans]] = {}
        for box in receiver.wants:
            left.setdefault(box.tensor, []).append(_spans(box))
        for stream in plan.streams:
            if receiver.name not in stream.receivers:
                continue
            for box in stream.boxes:
                before = left.get(box.tensor, [])
                after = _minus(before, _spans(box))
                gone = sum(map(_volume, before)) - sum(map(_volume, after))
                if gone != box.num_elements:
                    yield f'receiver "{receiver.name}" gets {box.told()}, which it does not want, or twice'
                left[box.tensor] = after
        for name, rest in left.items():
            if rest:
                spans = ", ".join(f"{low}:{high}" for low, high in rest[0])
                yield f'receiver "{receiver.name}" does not get {name}[{spans}]'


def _links(problem: Resharding, plan: ReshardPlan) -> dict[str, tuple[float, list[int]]]:
    """Return the rate of each direction of a link, and the streams that cross it."""
    found: dict[str, tuple[float, list[int]]] = {}
    for sender in problem.senders:
        found[f'sender "{sender.name}"'] = (
            sender.bytes_per_s,
            [n for n, stream in enumerate(plan.streams) if stream.sender == sender.name],
        )
    for receiver in problem.receivers:
        here = [n for n, stream in enumerate(plan.streams) if receiver.name in stream.receivers]
        found[f'link to receiver "{receiver.name}"'] = receiver.bytes_per_s, here
        on = [n for n in here if plan.streams[n].receivers[-1] != receiver.name]
        found[f'link from receiver "{receiver.name}"'] = receiver.bytes_per_s, on
    return found


def _check_times(problem: Resharding, plan: ReshardPlan) -> Iterator[str]:
    links = _links(problem, plan)
    paces = {stream.bytes_per_s is not None for stream in plan.streams}
    if len(paces) > 1:
        yield "some streams have a pace and some do not"
        return
    ends = [stream.end_s for stream in plan.streams]
    slack = TOLERANCE * max(ends, default=0.0)
    if True in paces:
        rates = [stream.bytes_per_s or 0.0 for stream in plan.streams]
        for name, (rate, users) in links.items():
            used = math.fsum(rates[number] for number in users)
            if used > rate * (1 + TOLERANCE):
                yield f"{name} carries {used!r} bytes/s, its rate is {rate!r}"
        derived = [stream.size_bytes / rate for stream, rate in zip(plan.streams, rates, strict=True)]
    elif len(plan.streams) > MOST_FAIR_STREAMS:
        yield f"{len(plan.streams)} streams have no pace: more than {MOST_FAIR_STREAMS} need one"
        return
    else:
        derived = _played_back([stream.size_bytes for stream in plan.streams], list(links.values()))
    for number, (stated, end) in enumerate(zip(ends, derived, strict=True)):
        if abs(stated - end) > slack:
            yield f"stream {number}: end_s is {stated!r}, derived {end!r}"
    yield from _check_finished(problem, plan, slack)


def _played_back(sizes: list[int], links: list[tuple[float, list[int]]]) -> list[float]:
    """Let streams share links max-min fairly; return when each has ended."""
    left = [float(size) for size in sizes]
    ends = [0.0] * len(sizes)
    active = set(range(len(sizes)))
    now = 0.0
    while active:
        rates: dict[int, float] = {}
        while len(rates) < len(active):
            shares = []
            for capacity, users in links:
                open_users = [n for n in users if n in active and n not in rates]
                if open_users:
                    used = math.fsum(rates[n] for n in users if n in rates)
                    shares.append((max(capacity - used, 0.0) / len(open_users), open_users))
            least = min(share for share, _ in shares)
            for share, users in shares:
                if share <= least * (1 + 1e-12):
                    rates |= dict.fromkeys((n for n in users if n not in rates), least)
        step = min(left[n] / rates[n] for n in active)
        now += step
        for n in list(active):
            if left[n] / rates[n] <= step * (1 + 1e-12):
                ends[n] = now
                active.remove(n)
            else:
                left[n] -= rates[n] * step
    return ends


def _check_finished(problem: Resharding, plan: ReshardPlan, slack: float) -> Iterator[str]:
    hops = {receiver.name: receiver.hop_s for receiver in problem.receivers}
    stated = plan.predicted.finished_s
    slack = max(slack, TOLERANCE * max(stated, default=0.0))
    if len(stated) != len(hops):
        yield f"predicted.finished_s has {len(stated)} of {len(hops)} receivers"
        return
    pause = 0.0
    for receiver, end in zip(problem.receivers, stated, strict=True):
        derived = receiver.work_s_per_byte * sum(problem.size_bytes(box) for box in receiver.wants)
        for stream in plan.streams:
            if receiver.name in stream.receivers:
                before = stream.receivers[: stream.receivers.index(receiver.name) + 1]
                derived = max(derived, stream.end_s + math.fsum(hops[name] for name in before))
        if abs(end - derived) > slack:
            yield f'receiver "{receiver.name}": finished_s is {end!r}, derived {derived!r}'
        pause = max(pause, derived)
    if abs(plan.predicted.pause_s - pause) > slack:
        yield f"predicted.pause_s is {plan.predicted.pause_s!r}, derived {pause!r}"
    gap = max(pause / plan.bound.bound_s - 1, 0.0) if plan.bound.bound_s else 0.0
    if abs(plan.predicted.gap - gap) > TOLERANCE * (1 + gap):
        yield f"predicted.gap is {plan.predicted.gap!r}, derived {gap!r}"


def _check_rivals(problem: Resharding, plan: ReshardPlan) -> Iterator[str]:
    """Derive what the other rules take: one sender for whole tensors, or the first holder of each element."""
    first, whole = problem.senders[0], sum(tensor.size_bytes for tensor in problem.tensors)
    missing = whole - sum(problem.size_bytes(box) for box in first.shards)
    slowest = min(first.bytes_per_s, *(receiver.bytes_per_s for receiver in problem.receivers))
    holders: dict[str, list[tuple[int, Spans]]] = {}
    for number, sender in enumerate(problem.senders):
        for shard in sender.shards:
            holders.setdefault(shard.tensor, []).append((number, _spans(shard)))
    sent: dict[tuple[int, int], int] = {}
    gathered, counted = [0] * len(problem.senders), dict[str, list[Spans]]()
    work = 0.0
    for place, receiver in enumerate(problem.receivers):
        size = sum(problem.size_bytes(box) for box in receiver.wants)
        work = max(work, size * receiver.work_s_per_byte)
        for box in receiver.wants:
            element = problem.size_bytes(box) // box.num_elements
            held = holders.get(box.tensor, [])
            for number, volume in _by_first_holder([_spans(box)], held):
                sent[number, place] = sent.get((number, place), 0) + volume * element
            left = [_spans(box)]
            for cut in counted.get(box.tensor, ()):
                left = _minus(left, cut)
            counted.setdefault(box.tensor, []).extend(left)
            for number, volume in _by_first_holder(left, held):
                gathered[number] += volume * element if number else 0
    hops = math.fsum(receiver.hop_s for receiver in problem.receivers)
    gather = max(
        max(missing, 0) / first.bytes_per_s,
        *(size / sender.bytes_per_s for size, sender in zip(gathered, problem.senders, strict=True)),
    )
    derived = {
        "gather, then broadcast": gather + max(whole / slowest + hops, work),
        "first holder to each receiver": max(_direct_s(problem, sent), work),
    }
    if sorted(rival.rule for rival in plan.rivals) != sorted(derived):
        yield f"rivals are not {', '.join(derived)}, each once"
    for rival in plan.rivals:
        if abs(rival.pause_s - derived[rival.rule]) > TOLERANCE * derived[rival.rule]:
            yield f'rival "{rival.rule}": pause_s is {rival.pause_s!r}, derived {derived[rival.rule]!r}'


def _by_first_holder(left: list[Spans], holders: list[tuple[int, Spans]]) -> Iterator[tuple[int, int]]:
    """Yield senders, in order, and how many elements each holds that none before it does."""
    volume = sum(map(_volume, left))
    for number, held in holders:
        if not left:
            return
        left = _minus(left, held)
        rest = sum(map(_volume, left))
        yield number, volume - rest
        volume = rest


def _direct_s(problem: Resharding, sent: dict[tuple[int, int], int]) -> float:
    """Return when bytes from senders to receivers have arrived at best, without forwarding.

    Bytes that arrive at T left their sender at T less their receiver's hop. A link suffices if its transfers,
    each its bytes divided by that time, add up to at most the link's rate. The sum falls as T grows, so T is
    found by bisection, less the longest hop.
    """
    links: dict[tuple[str, int], tuple[float, list[tuple[int, float]]]] = {}
    used = {pair: size for pair, size in sent.items() if size}
    longest = max((problem.receivers[place].hop_s for _, place in used), default=0.0)
    for (number, place), size in used.items():
        head = longest - problem.receivers[place].hop_s
        for key, host in (("up", problem.senders[number]), ("down", problem.receivers[place])):
            at = number if key == "up" else place
            links.setdefault((key, at), (host.bytes_per_s, []))[1].append((size, head))
    low, high = 0.0, max((sum(size for size, _ in all_) / rate for rate, all_ in links.values()), default=0.0)
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if any(
            math.fsum(size / (middle + head) for size, head in all_) > rate for rate, all_ in links.values()
        ):
            low = middle
        else:
            high = middle
    return longest + high


def _check_bound(problem: Resharding, plan: ReshardPlan) -> Iterator[str]:
    bound = plan.bound
    if bound.kind == "senders":
        rates = {sender.name: sender.bytes_per_s for sender in problem.senders}
        unknown = [name for name in bound.hosts if name not in rates]
        if unknown:
            yield f'bound: there is no sender "{unknown[0]}"'
            return
        alone = _only_they_hold(problem, set(bound.hosts))
        derived = alone / math.fsum(rates[name] for name in bound.hosts) if bound.hosts else 0.0
        derived += min((each.hop_s for each in problem.receivers if each.wants), default=0.0)
    else:
        named = [each for each in problem.receivers if (each.name,) == bound.hosts]
        if not named:
            yield f"bound: there is no receiver {', '.join(bound.hosts)}"
            return
        size = sum(problem.size_bytes(box) for box in named[0].wants)
        link_s = size / named[0].bytes_per_s + (named[0].hop_s if size else 0.0)
        derived = link_s if bound.kind == "link" else size * named[0].work_s_per_byte
    if bound.bound_s > derived * (1 + TOLERANCE):
        yield f"bound.bound_s is {bound.bound_s!r}, derived {derived!r}"


def _only_they_hold(problem: Resharding, names: set[str]) -> int:
    """Return the wanted bytes that no sender but these holds, each counted once."""
    elsewhere: dict[str, list[Spans]] = {}
    for sender in problem.senders:
        if sender.name not in names:
            for shard in sender.shards:
                elsewhere.setdefault(shard.tensor, []).append(_spans(shard))
    counted: dict[str, list[Spans]] = {}
    total = 0
    for receiver in problem.receivers:
        for box in receiver.wants:
            left = [_spans(box)]
            for cut in (*elsewhere.get(box.tensor, ()), *counted.get(box.tensor, ())):
                left = _minus(left, cut)
                if not left:
                    break
            counted.setdefault(box.tensor, []).extend(left)
            total += sum(map(_volume, left)) * (problem.size_bytes(box) // box.num_elements)
    return total
