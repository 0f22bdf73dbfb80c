"""From a weight-sync document to the solver's arrays: lines of bytes, buckets, what is to be sent."""

import numpy as np

from pace.solver.arrays import FloatArray
from pace_sync.documents.weight_sync import SyncTensor, WeightSync
from pace_sync.solver.broadcast import NO_CREDIT, BroadcastShop
from pace_sync.solver.bucket_bounds import BytesOnLink
from pace_sync.solver.bucket_sizes import ByteLine

# A stretch of a tensor: its number, where it begins, and its bytes.
Part = tuple[int, int, int]


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
