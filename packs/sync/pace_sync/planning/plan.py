"""The planner of weight synchronization: what each bucket carries, their order, and how good that is.

It takes a document to the solver's arrays first: lines of bytes, buckets, what is to be sent.
"""

import numpy as np

from pace.documents.base import refuse_other
from pace.solver.arrays import FloatArray
from pace.version import __version__
from pace_sync.documents.sync_plan import (
    BucketPart,
    RivalRule,
    SyncBound,
    SyncBucket,
    SyncOrderBound,
    SyncPlan,
    SyncPrediction,
)
from pace_sync.documents.weight_sync import SyncTensor, WeightSync
from pace_sync.errors import InvalidSync
from pace_sync.solver.broadcast import (
    NO_CREDIT,
    BroadcastShop,
    best_order,
    order_bound,
    pause_in_order,
    times_in_order,
)
from pace_sync.solver.bucket_bounds import BytesOnLink, every_buckets_bound
from pace_sync.solver.bucket_sizes import ByteLine, best_cuts

_CLOSER = 1 - 1e-9

# A stretch of a tensor: its number, where it begins, and its bytes.
Part = tuple[int, int, int]


def plan_sync(problem: WeightSync) -> SyncPlan:
    """Return the buckets of the shortest pause found, in their order, with bounds that prove how short it is.

    Tensors are put in two orders: that of the list, and those with the most work for a byte first, as
    Johnson's rule has it for small pieces. Each is cut into buckets
    (``pace_sync.solver.bucket_sizes``), and the buckets are then ordered
    (``pace_sync.solver.broadcast``). The rules of other libraries are candidates too, so the plan is
    never worse than theirs. Of equal plans the one with fewer buckets is taken.

    Raises
    ------
    InvalidSync
        For what is no weight-sync document.
    """
    refuse_other(problem, WeightSync, InvalidSync)
    rivals, candidates = _rivals(problem)
    orders = _orders(problem)
    # Some plan's pause: fewer numbers of buckets have to be looked at, by far.
    known_s = min((rival.pause_s for rival in rivals if rival.pause_s is not None), default=np.inf)
    rough_s = every_buckets_bound(to_send(problem), known_s=known_s).bound_s if orders else 0.0
    for order in orders:
        line = line_of(problem, order)
        cuts = best_cuts(line, at_least_s=rough_s)
        candidates.append((parts_between(problem, order, cuts.tolist()), "sizes by lot streaming"))
    best: list[list[Part]] = []
    method, least = "nothing to send", np.inf
    for buckets, how in candidates:
        shop = shop_of(problem, buckets)
        places, ordered = best_order(shop)
        pause = pause_in_order(shop, places)
        if pause < least * _CLOSER or (pause <= least and len(buckets) < len(best)):
            least, method = pause, f"{how}, {ordered}"
            best = [buckets[place] for place in places.tolist()]
    return _document(problem, best, method, rivals)


def _orders(problem: WeightSync) -> list[list[int]]:
    """Return the orders in which tensors stand before they are cut, without those that are empty."""
    listed = [number for number, tensor in enumerate(problem.tensors) if tensor.size_bytes]
    if not listed:
        return []
    rates = work_rates(problem, problem.tensors)
    sizes = np.array([tensor.size_bytes for tensor in problem.tensors])
    busiest = rates[int(np.argmax(rates @ sizes))]
    heavy_first = sorted(listed, key=lambda number: -busiest[number])
    return [listed] if heavy_first == listed else [listed, heavy_first]


def _rivals(problem: WeightSync) -> tuple[list[RivalRule], list[tuple[list[list[Part]], str]]]:
    """Return what other rules take in their own order, and their buckets as candidates."""
    rules: list[tuple[int | None, list[list[Part]] | None]] = [(None, tensor_by_tensor(problem))]
    rules += [(size, fixed_buckets(problem, size)) for size in FIXED_BYTES]
    found: list[RivalRule] = []
    candidates: list[tuple[list[list[Part]], str]] = []
    for size, buckets in rules:
        name = "tensor by tensor" if size is None else "fixed buckets"
        pause = None
        if buckets is not None:
            shop = shop_of(problem, buckets)
            pause = pause_in_order(shop, np.arange(len(shop), dtype=np.int64))
            how = "one message a tensor" if size is None else f"buckets of up to {size} bytes"
            candidates.append((buckets, how))
        found.append(RivalRule(rule=name, largest_bytes=size, num_buckets=len(buckets or ()), pause_s=pause))
    return found, candidates


def _document(
    problem: WeightSync, buckets: list[list[Part]], method: str, rivals: list[RivalRule]
) -> SyncPlan:
    shop = shop_of(problem, buckets)
    times = times_in_order(shop, np.arange(len(shop), dtype=np.int64))
    pause = times.pause_s
    by_order = order_bound(shop)
    if buckets:
        every = every_buckets_bound(to_send(problem), known_s=pause)
        bound = SyncBound(bound_s=every.bound_s, num_buckets=every.num_buckets, ratios=every.ratios)
    else:
        bound = SyncBound(bound_s=0.0, num_buckets=0, ratios=())
    names = [tensor.name for tensor in problem.tensors]
    return SyncPlan(
        problem_sha256=problem.sha256,
        version=__version__,
        method=method,
        credit_bytes=problem.credit_bytes,
        buckets=tuple(
            SyncBucket(
                parts=tuple(
                    BucketPart(tensor=names[tensor], offset_bytes=offset, size_bytes=size)
                    for tensor, offset, size in bucket
                ),
                start_s=float(times.starts[place]),
                end_s=float(times.ends[place]),
                finished_s=tuple(times.finished[:, place].tolist()),
            )
            for place, bucket in enumerate(buckets)
        ),
        predicted=SyncPrediction(
            pause_s=pause,
            gap=max(pause / bound.bound_s - 1, 0.0) if bound.bound_s else 0.0,
            link_s=float(np.sum(shop.link_s)),
            work_s=float(np.max(np.sum(shop.work_s, axis=1), initial=0.0)),
        ),
        order_bound=SyncOrderBound(kind=by_order.kind, receiver=by_order.receiver, bound_s=by_order.bound_s),
        bound=bound,
        rivals=tuple(rivals),
    )


# Bytes of a bucket: DDP's, and those between which users of verl and slime choose.
FIXED_BYTES = tuple(mib << 20 for mib in (25, 64, 128, 256, 512, 1024, 2048))


def tensor_by_tensor(problem: WeightSync) -> list[list[Part]] | None:
    """Return one bucket for each tensor, in the order of the list; None if one does not fit the credit."""
    sizes = [tensor.size_bytes for tensor in problem.tensors]
    if problem.credit_bytes is not None and max(sizes) > problem.credit_bytes:
        return None
    return [[(number, 0, size)] for number, size in enumerate(sizes) if size]


def fixed_buckets(problem: WeightSync, largest_bytes: int) -> list[list[Part]] | None:
    """Return buckets of whole tensors, filled in the order of the list; None if they do not fit the credit.

    A bucket is sent when the next tensor would not fit. A larger tensor has a bucket of its own.
    """
    buckets: list[list[Part]] = []
    filled = largest_bytes
    for number, tensor in enumerate(problem.tensors):
        size = tensor.size_bytes
        if not size:
            continue
        if filled + size > largest_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append((number, 0, size))
        filled += size
        if problem.credit_bytes is not None and filled > problem.credit_bytes:
            return None
    return buckets


def work_rates(problem: WeightSync, tensors: tuple[SyncTensor, ...]) -> FloatArray:
    """Return the seconds of work for each byte, by receiver and tensor."""
    return np.array(
        [
            [
                sum(rate.seconds_per_byte for rate in receiver.work if rate.kind in tensor.work)
                for tensor in tensors
            ]
            for receiver in problem.receivers
        ],
        dtype=np.float64,
    )


def to_send(problem: WeightSync) -> BytesOnLink:
    """Return what is to be sent, in any buckets."""
    return BytesOnLink(
        size_bytes=np.array([tensor.size_bytes for tensor in problem.tensors], dtype=np.float64),
        work_s_per_byte=work_rates(problem, problem.tensors),
        message_s=problem.message_s,
        seconds_per_byte=problem.seconds_per_byte,
        overhead_s=np.array([receiver.bucket_s for receiver in problem.receivers]),
        lag_s=np.array(problem.lags_s),
        credit_bytes=_credit(problem),
    )


def line_of(problem: WeightSync, order: list[int]) -> ByteLine:
    """Return tensors one after another, in the order of their numbers; none of them is empty."""
    tensors = tuple(problem.tensors[number] for number in order)
    sizes = np.array([tensor.size_bytes for tensor in tensors], dtype=np.int64)
    return ByteLine(
        ends=np.cumsum(sizes),
        block_bytes=np.array([tensor.cut_bytes for tensor in tensors], dtype=np.int64),
        worked_s=np.cumsum(work_rates(problem, tensors) * sizes, axis=1),
        message_s=problem.message_s,
        seconds_per_byte=problem.seconds_per_byte,
        overhead_s=np.array([receiver.bucket_s for receiver in problem.receivers]),
        lag_s=np.array(problem.lags_s),
        credit_bytes=_credit(problem),
    )


def shop_of(problem: WeightSync, buckets: list[list[Part]]) -> BroadcastShop:
    """Return what buckets cost."""
    rates = work_rates(problem, problem.tensors)
    sizes = np.array([sum(size for _, _, size in bucket) for bucket in buckets], dtype=np.int64)
    work = np.array(
        [
            [
                receiver.bucket_s + sum(float(rates[place, tensor]) * size for tensor, _, size in bucket)
                for bucket in buckets
            ]
            for place, receiver in enumerate(problem.receivers)
        ]
    )
    return BroadcastShop(
        link_s=np.asarray(problem.message_s + sizes * problem.seconds_per_byte, dtype=np.float64),
        work_s=work.reshape(len(problem.receivers), len(buckets)),
        size_bytes=sizes,
        lag_s=np.array(problem.lags_s),
        credit_bytes=_credit(problem),
    )


def parts_between(problem: WeightSync, order: list[int], cuts: list[int]) -> list[list[Part]]:
    """Return the parts of each bucket of a line that is cut here."""
    buckets: list[list[Part]] = []
    begin, place, first = 0, 0, 0  # of the bucket; the tensor's place in the order, and where it begins
    for end in cuts:
        bucket: list[Part] = []
        while begin < end:
            size = problem.tensors[order[place]].size_bytes
            until = min(end, first + size)
            bucket.append((order[place], begin - first, until - begin))
            begin = until
            if until == first + size:
                first += size
                place += 1
        buckets.append(bucket)
    return buckets


def _credit(problem: WeightSync) -> int:
    return NO_CREDIT if problem.credit_bytes is None else problem.credit_bytes
