"""What the two halves of an all-reduce cost, from their formulas written out once more."""

import math

from pace.checker.allreduce import allreduce_s
from pace.documents.collective_costs import (
    HalvingDoublingAllReduce,
    NetworkLevel,
    RingAllReduce,
    SampledAllReduce,
    TreeAllReduce,
    TwoLevelAllReduce,
)
from pace.documents.half_costs import AffineHalf
from pace.documents.profile import Profile
from pace.documents.schedule import ShardedOp


def half_s(profile: Profile, half: ShardedOp, size_bytes: int) -> float:
    """Duration of one call, as measured, or as the all-reduce's algorithm has it."""
    workers = profile.workers
    if size_bytes == 0 or workers == 1:
        return 0.0
    adds = half == "reduce-scatter"
    measured = profile.reduce_scatter if adds else profile.all_gather
    if isinstance(measured, AffineHalf):
        return measured.latency_s + size_bytes * measured.seconds_per_byte
    if measured is not None:
        doubled = tuple((size, 2 * seconds) for size, seconds in measured.samples)
        return allreduce_s(SampledAllReduce(samples=doubled), workers, size_bytes) / 2
    match profile.allreduce:
        case RingAllReduce() as ring:
            return _ring_s(ring, workers, size_bytes, adds=adds)
        case TwoLevelAllReduce() as levels:
            local = min(workers, levels.workers_per_node)
            inside = _ring_s(levels.intra, local, size_bytes, adds=adds)
            return inside + _ring_s(levels.inter, workers // local, size_bytes, adds=adds)
        case HalvingDoublingAllReduce() as network:
            rounds = int(math.log2(workers) + 1e-12)
            extra = 2**rounds != workers
            volume = (2**rounds - 1) / 2**rounds + extra
            added = volume if adds else 0.0
            return _priced_s(network, rounds + extra, volume, added, size_bytes)
        case TreeAllReduce() as network:
            depth = math.ceil(math.log2(workers) - 1e-12)
            volume = depth + (workers - 1) / workers
            return _priced_s(network, 2 * depth, volume, depth if adds else 0.0, size_bytes)
        case other:
            return allreduce_s(other, workers, size_bytes) / 2


def _ring_s(network: RingAllReduce | NetworkLevel, workers: int, size_bytes: int, *, adds: bool) -> float:
    volume = (workers - 1) / workers
    return _priced_s(network, workers - 1, volume, volume if adds else 0.0, size_bytes)


def _priced_s(
    network: RingAllReduce | NetworkLevel | HalvingDoublingAllReduce | TreeAllReduce,
    messages: float,
    volume: float,
    added: float,
    size_bytes: int,
) -> float:
    adding = added * size_bytes / network.reduce_bytes_per_s if network.reduce_bytes_per_s else 0.0
    return messages * network.latency_s + volume * size_bytes / network.bandwidth_bytes_per_s + adding
