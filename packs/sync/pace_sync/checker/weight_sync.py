"""Whether a sync plan is a right answer for a weight-sync document; shares no code with the planner.

Times are played back, Johnson's rule and the bound over all plans are derived anew from their statements.
"""

import heapq
import math
from collections.abc import Iterator, Sequence

from pace.documents.base import refuse_other
from pace_sync.documents.sync_plan import SyncPlan
from pace_sync.documents.weight_sync import SyncReceiver, SyncTensor, WeightSync
from pace_sync.errors import InvalidSync

TOLERANCE = 1e-9
# The proof weighs ratios up to so many buckets; for more, the lines without weights hold.
MOST_WEIGHED = 8192


def check_sync(problem: WeightSync, plan: SyncPlan) -> list[str]:
    """Return every way in which a plan is not a right answer for a problem; empty if it is one.

    A plan may be slower than the best: how far from it, its bounds say, and those are derived again here.
    """
    refuse_other(problem, WeightSync, InvalidSync)
    refuse_other(plan, SyncPlan, InvalidSync)
    violations = [*_check_identity(problem, plan), *_check_bytes(problem, plan)]
    if violations:
        return violations
    pause = max((end for bucket in plan.buckets for end in bucket.finished_s), default=0.0)
    slack = TOLERANCE * max(pause, plan.predicted.pause_s)
    return [
        *_check_times(problem, plan, slack),
        *_check_predictions(problem, plan, pause, slack),
        *_check_order_bound(problem, plan, slack),
        *check_bound(problem, plan.bound.bound_s, plan.bound.ratios, slack),
        *_check_rivals(problem, plan, slack),
    ]


def _check_identity(problem: WeightSync, plan: SyncPlan) -> Iterator[str]:
    if plan.problem_sha256 != problem.sha256:
        yield "problem_sha256 is that of another weight-sync document: plan again, or give that document"
    if plan.credit_bytes != problem.credit_bytes:
        yield f"credit_bytes is {plan.credit_bytes}, the document has {problem.credit_bytes}"


def _check_bytes(problem: WeightSync, plan: SyncPlan) -> Iterator[str]:
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    sent = dict.fromkeys(tensors, 0)
    count = len(problem.receivers)
    for number, bucket in enumerate(plan.buckets):
        if len(bucket.finished_s) != count:
            yield f"bucket {number} is finished by {len(bucket.finished_s)} of {count} receivers"
        for part in bucket.parts:
            tensor = tensors.get(part.tensor)
            if tensor is None:
                yield f'bucket {number}: there is no tensor "{part.tensor}"'
                continue
            sent[part.tensor] += part.size_bytes
            until = part.offset_bytes + part.size_bytes
            if part.offset_bytes % tensor.cut_bytes or (
                until % tensor.cut_bytes and until != tensor.size_bytes
            ):
                yield f'bucket {number}: "{part.tensor}" is cut inside a block of {tensor.cut_bytes} bytes'
    for name, size in sent.items():
        if size != tensors[name].size_bytes:
            yield f'tensor "{name}": {size} of {tensors[name].size_bytes} bytes are sent'


def _rate(receiver: SyncReceiver, tensor: SyncTensor) -> float:
    return math.fsum(rate.seconds_per_byte for rate in receiver.work if rate.kind in tensor.work)


def _works(problem: WeightSync, plan: SyncPlan, receiver: SyncReceiver) -> list[float]:
    rates = {tensor.name: _rate(receiver, tensor) for tensor in problem.tensors}
    return [
        receiver.bucket_s + math.fsum(rates[part.tensor] * part.size_bytes for part in bucket.parts)
        for bucket in plan.buckets
    ]


def _links(problem: WeightSync, plan: SyncPlan) -> list[float]:
    return [problem.message_s + bucket.size_bytes * problem.seconds_per_byte for bucket in plan.buckets]


def _check_times(problem: WeightSync, plan: SyncPlan, slack: float) -> Iterator[str]:
    links = _links(problem, plan)
    free = 0.0
    for number, (bucket, seconds) in enumerate(zip(plan.buckets, links, strict=True)):
        if bucket.start_s < free - slack:
            yield f"bucket {number} starts at {bucket.start_s!r}, the link is busy until {free!r}"
        free = bucket.start_s + seconds
        if abs(bucket.end_s - free) > slack:
            yield f"bucket {number}: end_s is {bucket.end_s!r}, derived {free!r}"
    for place, receiver in enumerate(problem.receivers):
        done = 0.0
        for number, (bucket, work) in enumerate(
            zip(plan.buckets, _works(problem, plan, receiver), strict=True)
        ):
            done = max(done, bucket.end_s + problem.lags_s[place]) + work
            if abs(bucket.finished_s[place] - done) > slack:
                yield (
                    f'bucket {number}: receiver "{receiver.name}" has finished at '
                    f"{bucket.finished_s[place]!r}, derived {done!r}"
                )
    if problem.credit_bytes is None:
        return
    held, ends = 0, list[tuple[float, int]]()
    for number, bucket in enumerate(plan.buckets):
        while ends and ends[0][0] <= bucket.start_s + slack:
            held -= heapq.heappop(ends)[1]
        held += bucket.size_bytes
        heapq.heappush(ends, (max(bucket.finished_s), bucket.size_bytes))
        if held > problem.credit_bytes:
            yield (
                f"bucket {number}: {held} bytes are held from {bucket.start_s!r} on, "
                f"the credit is {problem.credit_bytes}"
            )


def _check_predictions(problem: WeightSync, plan: SyncPlan, pause: float, slack: float) -> Iterator[str]:
    predicted = plan.predicted
    work = max((math.fsum(_works(problem, plan, receiver)) for receiver in problem.receivers), default=0.0)
    gap = max(pause / plan.bound.bound_s - 1, 0.0) if plan.bound.bound_s else 0.0
    for field, stated, derived in (
        ("pause_s", predicted.pause_s, pause),
        ("link_s", predicted.link_s, math.fsum(_links(problem, plan))),
        ("work_s", predicted.work_s, work),
    ):
        if abs(stated - derived) > slack:
            yield f"predicted.{field} is {stated!r}, derived {derived!r}"
    if abs(predicted.gap - gap) > TOLERANCE * (1 + gap):
        yield f"predicted.gap is {predicted.gap!r}, derived {gap!r}"


def _check_order_bound(problem: WeightSync, plan: SyncPlan, slack: float) -> Iterator[str]:
    stated = plan.order_bound
    if stated.receiver >= len(problem.receivers):
        yield f"order_bound: there is no receiver {stated.receiver}"
        return
    receiver, lag = problem.receivers[stated.receiver], problem.lags_s[stated.receiver]
    jobs = list(zip(_links(problem, plan), _works(problem, plan, receiver), strict=True))
    sizes = [bucket.size_bytes for bucket in plan.buckets]
    if stated.kind == "johnson":
        first = sorted((job for job in jobs if job[0] < job[1]), key=lambda job: job[0])
        last = sorted((job for job in jobs if job[0] >= job[1]), key=lambda job: -job[1])
        arrived = derived = 0.0
        for link, work in first + last:
            arrived += link
            derived = max(derived, arrived + lag) + work
    elif problem.credit_bytes is None:
        derived = 0.0
    elif stated.kind == "credit":
        held = math.fsum((link + lag + work) * size for (link, work), size in zip(jobs, sizes, strict=True))
        derived = held / problem.credit_bytes
    else:
        large = [job for job, size in zip(jobs, sizes, strict=True) if 2 * size > problem.credit_bytes]
        derived = math.fsum(link + lag + work for link, work in large)
    if stated.bound_s > derived + slack:
        yield f"order_bound.bound_s is {stated.bound_s!r}, derived {derived!r}"


def check_bound(problem: WeightSync, stated: float, ratios: Sequence[float], slack: float) -> Iterator[str]:
    """Derive the bound over all plans from the ratios that a plan names (``docs``: New weights on time)."""
    total = sum(tensor.size_bytes for tensor in problem.tensors)
    if not total:
        if stated > 0:
            yield f"bound.bound_s is {stated!r}, and nothing is sent"
        return
    count = 1 if problem.credit_bytes is None else -(-total // problem.credit_bytes)
    # Tensors of one kind of work are alike.
    kinds: dict[tuple[str, ...], int] = {}
    examples: dict[tuple[str, ...], SyncTensor] = {}
    for tensor in problem.tensors:
        key = tuple(sorted(tensor.work))
        kinds[key] = kinds.get(key, 0) + tensor.size_bytes
        examples[key] = tensor
    loads = [
        [(size, _rate(receiver, examples[key])) for key, size in kinds.items()]
        for receiver in problem.receivers
    ]
    while True:
        plain = _plain_lines(problem, loads, total, count)
        if plain >= stated - slack:
            return  # so are those of more buckets: they rise with the count
        best = max(plain, _held_line(problem, loads, total, count))
        if count <= MOST_WEIGHED:
            for ratio in ratios:
                if best >= stated - slack:
                    break
                best = max(best, _weighed_line(problem, loads, count, ratio))
        if best < stated - slack:
            yield f"bound.bound_s is {stated!r}, with {count} buckets derived {best!r}"
            return
        if count > MOST_WEIGHED:
            yield f"bound.bound_s is {stated!r}, which nothing proves for more than {count} buckets"
            return
        count += 1


Loads = list[list[tuple[int, float]]]


def _plain_lines(problem: WeightSync, loads: Loads, total: int, count: int) -> float:
    link = count * problem.message_s + total * problem.seconds_per_byte
    found = 0.0
    for receiver, lag, load in zip(problem.receivers, problem.lags_s, loads, strict=True):
        work = count * receiver.bucket_s + math.fsum(size * rate for size, rate in load)
        found = max(found, lag + link + receiver.bucket_s, lag + problem.message_s + work)
    return found


def _held_line(problem: WeightSync, loads: Loads, total: int, count: int) -> float:
    if problem.credit_bytes is None:
        return 0.0
    found = 0.0
    for receiver, lag, load in zip(problem.receivers, problem.lags_s, loads, strict=True):
        least = min(rate for _, rate in load)
        whole = total * (problem.message_s + lag + receiver.bucket_s)
        found = max(found, whole + total / count * total * (problem.seconds_per_byte + least))
    return found / problem.credit_bytes


def _weighed_line(problem: WeightSync, loads: Loads, count: int, ratio: float) -> float:
    first, last, mean = _weights(ratio, count)
    per_byte = problem.seconds_per_byte
    found = 0.0
    for receiver, lag, load in zip(problem.receivers, problem.lags_s, loads, strict=True):
        sent = math.fsum(size * min(per_byte + rate * first, last * per_byte + rate) for size, rate in load)
        found = max(found, lag + problem.message_s * mean + receiver.bucket_s * (count + 1 - mean) + sent)
    return found


def _weights(ratio: float, count: int) -> tuple[float, float, float]:
    """Return the first and last of weights proportional to ratio^k, k = 1..count, and the mean of k."""
    if ratio > 1:
        first, last, mean = _weights(1 / ratio, count)
        return last, first, count + 1 - mean
    if ratio > 0.999:  # the formula below loses its digits, and equal weights prove as well
        return 1 / count, 1 / count, (count + 1) / 2
    power = ratio**count
    whole = (1 - power) / (1 - ratio)
    mean = (1 - (count + 1) * power + count * power * ratio) / ((1 - ratio) * (1 - power))
    return 1 / whole, ratio ** (count - 1) / whole, mean


def _check_rivals(problem: WeightSync, plan: SyncPlan, slack: float) -> Iterator[str]:
    """Fill the buckets of the other rules, and play them back."""
    named = [(rival.rule, rival.largest_bytes) for rival in plan.rivals]
    if len(set(named)) < len(named):
        yield "rivals: a rule is there twice"
    for number, rival in enumerate(plan.rivals):
        if (rival.rule == "tensor by tensor") != (rival.largest_bytes is None):
            yield f'rivals[{number}]: largest_bytes is {rival.largest_bytes} for rule "{rival.rule}"'
        buckets: list[list[SyncTensor]] = []
        room = 0
        for tensor in problem.tensors:
            if tensor.size_bytes:
                if rival.largest_bytes is None or tensor.size_bytes > room:
                    buckets.append([])
                    room = rival.largest_bytes or 0
                buckets[-1].append(tensor)
                room -= tensor.size_bytes
        derived = _pause(problem, buckets)
        count = len(buckets) if derived is not None else 0
        if rival.num_buckets != count:
            yield f"rivals[{number}]: num_buckets is {rival.num_buckets}, derived {count}"
        off_s = abs((rival.pause_s or 0.0) - (derived or 0.0))
        if (rival.pause_s is None) != (derived is None) or off_s > slack + TOLERANCE * (derived or 0.0):
            yield f"rivals[{number}]: pause_s is {rival.pause_s!r}, derived {derived!r}"


def _pause(problem: WeightSync, buckets: list[list[SyncTensor]]) -> float | None:
    """Return when the last receiver has finished buckets that are sent in this order; None without credit."""
    free, held = 0.0, 0
    done = [0.0] * len(problem.receivers)
    ends = list[tuple[float, int]]()
    for bucket in buckets:
        size = sum(tensor.size_bytes for tensor in bucket)
        while problem.credit_bytes is not None and held + size > problem.credit_bytes:
            if not ends:
                return None
            end, given_back = heapq.heappop(ends)
            free, held = max(free, end), held - given_back
        free += problem.message_s + size * problem.seconds_per_byte
        for place, (receiver, lag) in enumerate(zip(problem.receivers, problem.lags_s, strict=True)):
            work = receiver.bucket_s + math.fsum(_rate(receiver, each) * each.size_bytes for each in bucket)
            done[place] = max(done[place], free + lag) + work
        heapq.heappush(ends, (max(done), size))
        held += size
    return max(done, default=0.0)
