"""Checks of a transfer plan's lower bound and of undeliverable updates, derived independently.

Rates are followed change by change and the linear program is written over whole arrays; nothing is shared
with the solver.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from pace_fabric.documents.batch import PendingUpdate
from pace_fabric.documents.network import FabricHost, FabricNetwork
from pace_fabric.documents.transfer_plan import TransferPlan

# As planned: for more updates the linear program is not solved; it cuts time into so many slots.
_MOST_IN_PROGRAM, _NUM_SLOTS = 40, 120

Rates = list[tuple[float, float]]
"""From when on a link carries how much; the first entry is at 0."""


def link_rates(host: FabricHost, direction: str) -> Rates:
    """Return what one direction of a host's link carries."""
    field = f"{direction}_bytes_per_s"
    rates = [(0.0, float(getattr(host, field)))]
    for change in sorted(host.changes, key=lambda change: change.at_s):
        value = getattr(change, field)
        if value is not None:
            rates.append((change.at_s, float(value)))
    return rates


def _rate_at(rates: Rates, moment: float) -> float:
    return next(rate for at, rate in reversed(rates) if at <= moment)


def _narrower(one: Rates, other: Rates) -> Rates:
    moments = sorted({at for at, _ in (*one, *other)})
    return [(at, min(_rate_at(one, at), _rate_at(other, at))) for at in moments]


def _end_s(rates: Rates, size_bytes: float, start_s: float) -> float:
    """Return when so many bytes that start then have passed; infinity if they never have."""
    left = size_bytes
    for (at, rate), (until, _) in pairwise([*rates, (np.inf, 0.0)]):
        begin = max(at, start_s)
        if until <= begin:
            continue
        if left <= 0:
            return begin
        if rate > 0 and left <= rate * (until - begin):
            return begin + left / rate
        left -= rate * (until - begin) if rate > 0 else 0.0
    return np.inf


def _areas(rates: Rates, edges: Sequence[float]) -> list[float]:
    """Return what a link carries between neighboring moments."""
    moments = sorted({*edges, *(at for at, _ in rates)})
    pieces = [(a, (b - a) * _rate_at(rates, a)) for a, b in pairwise(moments)]
    return [sum(area for at, area in pieces if first <= at < last) for first, last in pairwise(edges)]


def greatest_bound_s(
    network: FabricNetwork,
    updates: Sequence[PendingUpdate],
    plan: TransferPlan,
    *,
    relayed: bool,
    most_bytes: float,
) -> float:
    """Return the greatest lower bound on the mean commit of these updates that a plan may state.

    Parameters
    ----------
    relayed
        Whether hosts add updates on the way: then each update's time on its host's way up counts, and the
        time of a sum that contains it on the server's way down.
    most_bytes
        Limit on the size of a sum.
    """
    hosts = {host.name: host for host in network.hosts}
    down = link_rates(hosts[network.server], "down")
    away = [update for update in updates if update.host != network.server]
    here = sum(update.ready_s for update in updates if update.host == network.server)
    ways = [link_rates(hosts[update.host], "up") for update in away]
    if not relayed:
        ways = [_narrower(way, down) for way in ways]
    alone = [_end_s(way, u.size_bytes, u.ready_s) for way, u in zip(ways, away, strict=True)]
    if relayed:
        sums = [_end_s(down, min(u.size_bytes, most_bytes), u.ready_s) for u in away]
        alone = [max(pair) for pair in zip(alone, sums, strict=True)]
    bound = sum(alone)
    if not np.isfinite(bound):
        return np.inf
    if not relayed and away:
        bound = max(bound, _one_after_the_other(down, away))
        sent = [place for place, update in enumerate(away) if update.size_bytes]
        if sent and len(updates) <= _MOST_IN_PROGRAM:
            least = _program(
                hosts,
                down,
                [away[place] for place in sent],
                [alone[place] for place in sent],
                [max(rate for _, rate in ways[place]) for place in sent],
                plan.predicted.last_commit_s,
            )
            bound = max(bound, least + sum(alone) - sum(alone[place] for place in sent))
    return (here + bound) / len(updates)


def _one_after_the_other(down: Rates, updates: Sequence[PendingUpdate]) -> float:
    """Return the sum of ends if the server's way down alone counted, the smallest update first."""
    end = min(update.ready_s for update in updates)
    total = 0.0
    for size in sorted(update.size_bytes for update in updates):
        end = _end_s(down, size, end)
        total += end
    return total


def _program(
    hosts: dict[str, FabricHost],
    down: Rates,
    updates: Sequence[PendingUpdate],
    alone: Sequence[float],
    most: Sequence[float],
    horizon_s: float,
) -> float:
    """Return the least sum of ends of bytes that are spread over slots as links allow.

    Variables are the share of each update in each slot, and each update's end.
    """
    edges = np.linspace(0.0, horizon_s, _NUM_SLOTS + 1)
    size = np.array([update.size_bytes for update in updates], dtype=float)
    number = len(updates)
    slots = eye_array(_NUM_SLOTS)
    names = sorted({update.host for update in updates})
    mine = np.array([[update.host == name for update in updates] for name in names]) * size
    shares = vstack([kron(csr_array(row[None, :]), slots) for row in (size, *mine)])
    carried = [
        _areas(rates, edges.tolist()) for rates in (down, *(link_rates(hosts[n], "up") for n in names))
    ]
    if not np.isfinite(carried).all():
        return sum(alone)
    starts = kron(eye_array(number), csr_array(edges[None, :-1]))
    nothing = csr_array((shares.shape[0], number))
    limits = csr_array(vstack([hstack([shares, nothing]), hstack([starts, -eye_array(number)])]))
    all_sent = hstack(
        [kron(eye_array(number), csr_array(np.ones((1, _NUM_SLOTS)))), csr_array((number, number))]
    )
    ready = [(0.0, 0.0 if after <= update.ready_s else None) for update in updates for after in edges[1:]]
    scale = float(size.max())
    found = linprog(  # type: ignore[call-overload]  # its types know no sparse matrices
        np.concatenate([np.zeros(number * _NUM_SLOTS), np.ones(number)]),
        A_ub=_scaled(limits, shares.shape[0], scale),
        b_ub=np.concatenate([np.ravel(carried) / scale, -size / (2 * np.array(most))]),
        A_eq=all_sent,
        b_eq=np.ones(number),
        bounds=[*ready, *((end, None) for end in alone)],
        method="highs",
    )
    return float(found.fun) if found.status == 0 else sum(alone)


def _scaled(matrix: csr_array, rows: int, scale: float) -> csr_array:
    """Return a matrix whose first rows are divided by a number, so that the program is well scaled."""
    factors = np.ones(matrix.shape[0])
    factors[:rows] = 1 / scale
    return csr_array(matrix.multiply(factors[:, None]))


def could_be_delivered(
    network: FabricNetwork,
    update: PendingUpdate,
    pieces: dict[tuple[str, str], list[tuple[float, float, float]]],
) -> bool:
    """Return whether what a plan leaves of the links would bring an update to the server.

    Parameters
    ----------
    pieces
        Times and rates at which the plan uses each link, by direction and host.
    """
    if update.host == network.server:
        return True
    hosts = {host.name: host for host in network.hosts}
    ends = (("up", update.host), ("down", network.server))
    left = _narrower(
        *(_left(link_rates(hosts[name], way), pieces.get((way, name), ())) for way, name in ends)
    )
    return bool(np.isfinite(_end_s(left, update.size_bytes + 1.0, update.ready_s)))


def _left(rates: Rates, pieces: Iterable[tuple[float, float, float]]) -> Rates:
    used = list(pieces)
    moments = sorted({at for at, _ in rates} | {at for piece in used for at in piece[:2]})
    return [
        (at, max(_rate_at(rates, at) - sum(rate for begin, end, rate in used if begin <= at < end), 0.0))
        for at in moments
    ]
