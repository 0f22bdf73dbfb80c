"""Simpler models of asynchronous training, to compare with the simulation. All return steps per second."""

from collections.abc import Sequence

import numpy as np

from pace.documents.steps import StepResource, StepsDocument
from pace.solver.arrays import FloatArray
from pace_servers.documents.fleet import Fleet


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
