"""What an all-reduce and its two halves cost, from their formulas written out once more."""

import math
from itertools import pairwise

from pace.documents.collective_costs import (
    AffineAllReduce,
    AffineHalf,
    AllReduce,
    HalvingDoublingAllReduce,
    NetworkLevel,
    RingAllReduce,
    SampledAllReduce,
    TreeAllReduce,
    TwoLevelAllReduce,
)
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.documents.schedule import ShardedOp


def allreduce_s(document: AllReduce, workers: int, size_bytes: int) -> float:
    """Duration of one all-reduce, by formulas that share no code with ``pace.collectives``."""
    alone = workers == 1 and not (isinstance(document, PushPull) and not document.colocated)
    if size_bytes == 0 or alone:
        return 0.0
    match document:
        case AffineAllReduce():
            return document.latency_s + size_bytes * document.seconds_per_byte
        case SampledAllReduce():
            return _sampled_s(document, workers, size_bytes)
        case RingAllReduce():
            return _ring_s(document, workers, size_bytes)
        case PushPull():
            return push_pull_s(document, workers, size_bytes)
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


def push_pull_s(document: PushPull, workers: int, size_bytes: float) -> float:
    """Link time of one push by all workers, or of the pull behind it; of both where they share links."""
    rate, servers = document.worker_bytes_per_s, document.servers
    if document.colocated:
        # The busiest link is a server's: its own worker's pushes to the others, and what it serves to the
        # others.
        pushed, served = size_bytes * (1 - 1 / servers), size_bytes / servers * (workers - 1)
        return document.partition_s + (pushed + served) / rate
    at_server = size_bytes * workers / servers / (document.server_bytes_per_s or rate)
    return document.partition_s + max(size_bytes / rate, at_server)


def _ring_s(network: RingAllReduce | NetworkLevel, workers: int, size_bytes: int) -> float:
    share = size_bytes * (workers - 1) / workers
    reduce = share / network.reduce_bytes_per_s if network.reduce_bytes_per_s else 0.0
    return 2 * (workers - 1) * network.latency_s + 2 * share / network.bandwidth_bytes_per_s + reduce


def _sampled_s(document: SampledAllReduce, workers: int, size_bytes: int) -> float:
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
    smallest, fastest = points[0]
    if size_bytes <= smallest:
        if smallest <= 65536:
            return fastest
        latency = min(fastest, 2 * (workers - 1).bit_length() * 10e-6)
        return latency + (fastest - latency) * size_bytes / smallest
    for (x0, y0), (x1, y1) in pairwise(points):
        if size_bytes <= x1:
            return y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0)
    largest, longest = points[-1]
    slopes = [y / x for x, y in points]
    below = [(x, y) for x, y in points if x <= largest / 2 and y < longest]
    if below:
        slopes.append((longest - below[-1][1]) / (largest - below[-1][0]))
    return longest + min(slopes) * (size_bytes - largest)


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
            return _ring_half_s(ring, workers, size_bytes, adds=adds)
        case TwoLevelAllReduce() as levels:
            local = min(workers, levels.workers_per_node)
            inside = _ring_half_s(levels.intra, local, size_bytes, adds=adds)
            return inside + _ring_half_s(levels.inter, workers // local, size_bytes, adds=adds)
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


def _ring_half_s(
    network: RingAllReduce | NetworkLevel, workers: int, size_bytes: int, *, adds: bool
) -> float:
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
