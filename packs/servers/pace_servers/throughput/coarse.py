"""Simpler models of asynchronous training, to compare with the simulation, and the knee and dips of a curve.

All models return steps per second.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from pace.documents.steps import StepResource, StepsDocument
from pace.solver.arrays import FloatArray
from pace_servers.documents.fleet import Fleet
from pace_servers.documents.prediction import PredictedPoint

# A worker is worthwhile if it adds at least this share of the first worker's throughput.
_WORTH_HAVING = 0.25
# A point is a dip if it is below the envelope by more than this share.
_DIP = 0.05


def cynthia_rate(compute_s: float, transfer_s: float, workers: int) -> float:
    """Return Cynthia's prediction (Zheng et al., ICPP 2019) for transfers that take `transfer_s` each way.

    The link of one worker is busy for a share U = 2 T_C / (T_P + 2 T_C) of the time. With more than 1/U
    workers, compute takes longer: X = W / (T_P max(1, W U) + 2 T_C).
    """
    alone_s = compute_s + 2 * transfer_s
    use = 2 * transfer_s / alone_s if alone_s else 0.0
    step_s = compute_s * max(1.0, workers * use) + 2 * transfer_s
    return workers / step_s if step_s else float("inf")


def closed_network_rate(link_s: Sequence[float], other_s: float, workers: int) -> float:
    """Return the throughput of a closed network, by exact mean value analysis.

    This is the model of Lin et al. (MASCOTS 2018) for asynchronous SGD. Each worker's step uses every link
    once, for ``link_s`` seconds if it is alone there, and spends `other_s` seconds without waiting for
    others. The recursion is that of Reiser and Lavenberg, J. ACM 27 (1980). Takes O(workers * links).
    """
    demand: FloatArray = np.asarray(link_s, dtype=np.float64)
    queue = np.zeros(len(demand))
    rate = 0.0
    for present in range(1, workers + 1):
        response = demand * (1 + queue)
        step_s = other_s + float(response.sum())
        rate = present / step_s if step_s else float("inf")
        queue = rate * response
    return rate


def bound_rate(step_s: float, link_s: Sequence[float], workers: int) -> float:
    """Return the asymptotic bound: the lower rate of `workers` single workers and of the busiest link."""
    busiest = max(link_s, default=0.0)
    return min(workers / step_s, 1.0 / busiest if busiest else float("inf"))


def compute_s(document: StepsDocument) -> float:
    """Return the mean over steps of the longest path if links take no time, in seconds."""
    longest = np.zeros((len(document.ops), len(document.steps)))
    for op in document.topological_order:
        for before in document.dependencies[op]:
            np.maximum(longest[op], longest[before], out=longest[op])
        if not document.ops[op].is_transfer:
            longest[op] += [step.duration_s[op] for step in document.steps]
    return float(longest.max(axis=0).mean())


def link_s(document: StepsDocument, fleet: Fleet) -> tuple[float, ...]:
    """Return how many seconds a mean step uses each server's downlink, then each server's uplink."""
    rates = fleet.server_bytes_per_s or (document.link.bytes_per_s,)
    directions: tuple[tuple[StepResource, int], ...] = (
        ("downlink", fleet.pull_every),
        ("uplink", fleet.push_every),
    )
    return tuple(
        size / rates[server % len(rates)] / every
        for resource, every in directions
        for server, size in enumerate(document.bytes_of(resource))
    )


def _envelope(curve: list[PredictedPoint]) -> list[tuple[int, float]]:
    """Return the corners of the upper concave envelope of throughput over workers, from (0, 0) on."""
    corners = [(0, 0.0)]
    for workers, rate in sorted((point.workers, point.throughput) for point in curve):
        while len(corners) > 1:
            (w0, r0), (w1, r1) = corners[-2:]
            if (r1 - r0) * (workers - w0) > (rate - r0) * (w1 - w0):
                break
            corners.pop()
        corners.append((workers, rate))
    return corners


def knee_of(curve: list[PredictedPoint]) -> int | None:
    """Return the most workers of which each adds at least a quarter of the first one's throughput.

    None if all do. The curve's concave envelope is used, so a dip, where workers run in lock-step, does not
    count.
    """
    corners = _envelope(curve)
    (_, _), (fewest, first) = corners[:2]
    for (w0, r0), (w1, r1) in pairwise(corners[1:]):
        if (r1 - r0) / (w1 - w0) < _WORTH_HAVING * first / fewest:
            return w0
    return corners[-1][0] if len(corners) > 1 and corners[-1][0] < max(p.workers for p in curve) else None


def dips_of(curve: list[PredictedPoint]) -> Iterator[int]:
    """Yield the numbers of workers whose throughput is well below what more and fewer workers suggest."""
    corners = _envelope(curve)
    for point in sorted(curve, key=lambda point: point.workers):
        for (w0, r0), (w1, r1) in pairwise(corners):
            if w0 < point.workers < w1:
                expected = r0 + (r1 - r0) * (point.workers - w0) / (w1 - w0)
                if point.throughput < (1 - _DIP) * expected:
                    yield point.workers
