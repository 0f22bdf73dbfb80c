"""The planner of weight synchronization: what each bucket carries, their order, and how good that is."""

import numpy as np

from pace.documents.base import refuse_other
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
from pace_sync.documents.weight_sync import WeightSync
from pace_sync.errors import InvalidSync
from pace_sync.planning.lowering import Part, line_of, parts_between, shop_of, to_send, work_rates
from pace_sync.solver.broadcast import best_order, order_bound, pause_in_order, times_in_order
from pace_sync.solver.bucket_bounds import every_buckets_bound
from pace_sync.solver.bucket_sizes import best_cuts

_CLOSER = 1 - 1e-9


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
