"""Disciplines of links: windows, shares, and the order of waiting transfers."""

import numpy as np

from pace.documents.steps import StepsDocument
from pace.simulation.tictac import TransferDag, tio
from pace.solver.arrays import BoolArray, FloatArray
from pace_servers.documents.fleet import Fleet
from pace_servers.throughput.graph import StepGraph
from pace_servers.throughput.kernels.arrays import DOWNLINK, WORKER, RuleNumbers

NUM_RANDOM_ORDERS = 64
NUM_DEVIATES = 4093  # a prime, so that an op gets another deviate in every step
CAPPED_SPREAD = 0.3  # the spread of a transfer of a few bytes, which ends with its first packet
FIRST_WINDOW_BYTES = 65_535.0  # the initial window of HTTP/2, RFC 9113 section 6.9.2
QUEUE_S = 0.1  # the length of a full queue before a link, as usual in routers and switches


def rules_of(
    document: StepsDocument, fleet: Fleet, workers: int, *, steps: int, skip: int, in_total: bool
) -> RuleNumbers:
    """Return a link's discipline and a fleet's barrier as numbers for the simulation."""
    link = document.link
    window, first, growth, services = np.inf, np.inf, 1.0, 1
    if link.discipline in ("window", "first-service-first"):
        assert link.window_bytes is not None
        window = first = float(link.window_bytes)
        services = 2
    elif link.discipline == "adaptive":
        # gRPC's window is twice the bandwidth-delay product, and the delay that it measures includes a full
        # queue.
        window = float(link.window_bytes or max(2 * link.bytes_per_s * QUEUE_S, 1.0))
        first, growth, services = min(FIRST_WINDOW_BYTES, window), 2.0, 2
    max_ahead = {"all": 0, "staleness": fleet.max_ahead}.get(fleet.barrier)
    return RuleNumbers(
        window=float(window),
        first_window=float(first),
        growth=growth,
        max_services=services,
        fresh_first=link.discipline == "first-service-first",
        ordered=link.discipline in ("tic", "reverse", "random"),
        seconds_per_byte=document.overhead.seconds_per_byte,
        seconds=document.overhead.seconds,
        pull_every=fleet.pull_every,
        push_every=fleet.push_every,
        max_ahead=-1 if max_ahead is None else max_ahead,
        quorum=min(fleet.quorum, workers) if fleet.quorum is not None else 0,
        drop_late=fleet.late == "drop",
        skip=skip,
        steps=steps,
        in_total=in_total,
    )


def deviates_of(document: StepsDocument, workers: int, seed: int) -> FloatArray:
    """Return the standard normal numbers from which transfers' shares are drawn; of shape (workers, any)."""
    if not document.link.share_spread:
        return np.zeros((workers, 1))
    return np.random.default_rng([seed, 2]).standard_normal((workers, NUM_DEVIATES))


def spreads_of(document: StepsDocument) -> FloatArray:
    """Return the standard deviation of the logarithm of each op's share, an array of shape (num_ops,).

    A share is the sum over many packets with nearly equal turns, so the standard deviation of its logarithm
    is proportional to one over the square root of their number.
    """
    spread = document.link.share_spread or 0.0
    reference = document.link.share_spread_bytes
    if reference is None:
        return np.full(len(document.ops), spread)
    sizes = np.array(
        [op.size_bytes if op.is_transfer else reference for op in document.ops], dtype=np.float64
    )
    by_size = spread * np.sqrt(reference / np.maximum(sizes, 1.0))
    return np.minimum(by_size, max(spread, CAPPED_SPREAD))


def priorities_of(document: StepsDocument, graph: StepGraph, seed: int) -> FloatArray:
    """Return the orders that steps draw from, an array of shape (num_orders, num_ops); smaller goes first.

    TicTac's timing-independent order ranks downlinks by how soon compute can go on after them. "reverse" is
    the opposite order, and "random" draws an order for each step. Uplinks are served in order of arrival.
    """
    discipline = document.link.discipline
    num_ops = len(document.ops)
    if discipline not in ("tic", "reverse", "random"):
        return np.zeros((1, num_ops))
    down = np.flatnonzero(graph.ops.kind == DOWNLINK)
    if discipline == "random":
        rng = np.random.default_rng([seed, 1])
        orders = np.zeros((NUM_RANDOM_ORDERS, num_ops))
        orders[:, down] = [rng.permutation(len(down)) for _ in range(NUM_RANDOM_ORDERS)]
        return orders
    order = np.zeros((1, num_ops))
    rank = tio(_transfers(document, graph))
    place = np.empty(len(down))
    place[np.lexsort((np.arange(len(down)), rank))] = np.arange(len(down))
    order[0, down] = place if discipline == "tic" else -place
    return order


def _transfers(document: StepsDocument, graph: StepGraph) -> TransferDag:
    """Return the downlinks that each compute op of the worker waits for, including those of its ancestors."""
    down = np.flatnonzero(graph.ops.kind == DOWNLINK)
    column = {int(op): at for at, op in enumerate(down)}
    waits: BoolArray = np.zeros((len(document.ops), len(down)), dtype=bool)
    for op in document.topological_order:
        for before in document.dependencies[op]:
            waits[op] |= waits[before]
            if before in column:
                waits[op, column[before]] = True
    compute = np.flatnonzero((graph.ops.kind == WORKER) & waits.any(axis=1))
    return TransferDag(
        transfer_s=graph.ops.size[down] / document.link.bytes_per_s,
        op_s=graph.duration_s.mean(axis=0)[compute],
        waits=waits[compute],
    )
