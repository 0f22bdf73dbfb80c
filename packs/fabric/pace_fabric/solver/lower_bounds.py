"""Lower bounds on the sum of the kept updates' commit times, over all orders of direct transfers."""

import numpy as np

from pace.solver.arrays import FloatArray
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.updates import Updates

NUM_SLOTS = 120


def machine_bound(updates: Updates, capacities: Capacities) -> float:
    """Return the greater of two bounds on the sum of ends, in O(n log n).

    One lets the server's way down serve the update with the least bytes left, as if every host had all of it
    at once (optimal for one machine); the other lets every update have the network alone.
    """
    alone = sum(updates.finish(g, capacities) for g in range(len(updates)))
    away = updates.host != updates.server
    sizes = np.sort(updates.size[away])
    begin = float(updates.ready[away].min()) if away.any() else 0.0
    here = float(updates.ready[~away].sum())
    # All bytes are there when the first are: fewer constraints, so still a bound.
    wide = Capacities.of_steps(
        [
            [(0.0, float(capacities.most().max()) + 1.0)],
            [(0.0, 0.0)],
            [(0.0, 0.0)],
            capacities.steps(2 * updates.server + 1),
        ]
    )
    together = sum(wide.reserve(0, 1, size, begin).end_s for size in sizes.tolist())
    return max(float(alone), here + float(together))


def time_indexed_bound(updates: Updates, capacities: Capacities, horizon_s: float) -> float:
    """Return a bound on the sum of ends from a linear program over slots of time.

    With M the mean time at which bytes are sent, taken at the start of each slot, an update ends no earlier
    than M + size / (2 x its greatest rate), and no earlier than it would alone.

    Parameters
    ----------
    horizon_s
        A moment at which some order has sent everything; by such an exchange the optimum needs no more.
    """
    from scipy.optimize import linprog  # only small batches need the large library
    from scipy.sparse import csr_array

    n = len(updates)
    edges = np.linspace(0.0, horizon_s, NUM_SLOTS + 1)
    alone = np.array([updates.finish(g, capacities) for g in range(n)])
    sent = [g for g in range(n) if updates.size[g] > 0 and updates.host[g] != updates.server]
    rest = float(alone.sum() - alone[sent].sum())
    if not sent:
        return rest
    scale = float(updates.size.max())
    server = _areas(capacities, 2 * updates.server + 1, edges) / scale
    hosts = sorted({int(updates.host[g]) for g in sent})
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = []

    def add(entries: list[tuple[int, float]], limit: float) -> None:
        rows.extend([len(limits)] * len(entries))
        columns.extend(column for column, _ in entries)
        values.extend(value for _, value in entries)
        limits.append(limit)

    def x(place: int, slot: int) -> int:
        return place * NUM_SLOTS + slot

    first_end = len(sent) * NUM_SLOTS
    for slot in range(NUM_SLOTS):
        add([(x(place, slot), 1.0) for place in range(len(sent))], float(server[slot]))
    for host in hosts:
        area = _areas(capacities, 2 * host, edges) / scale
        mine = [place for place, g in enumerate(sent) if updates.host[g] == host]
        for slot in range(NUM_SLOTS):
            add([(x(place, slot), 1.0) for place in mine], float(area[slot]))
    most = capacities.most()
    for place, g in enumerate(sent):
        rate = min(most[2 * int(updates.host[g])], most[2 * updates.server + 1])
        share = scale / updates.size[g]
        mean = [(x(place, slot), float(edges[slot]) * share) for slot in range(NUM_SLOTS)]
        add([*mean, (first_end + place, -1.0)], -float(updates.size[g] / (2 * rate)))
    upper = [
        (0.0, 0.0 if edges[slot + 1] <= updates.ready[g] else np.inf)
        for g in sent
        for slot in range(NUM_SLOTS)
    ]
    program = linprog(  # type: ignore[call-overload]  # its types know no sparse matrices
        np.concatenate((np.zeros(first_end), np.ones(len(sent)))).astype(np.float64),
        A_ub=csr_array((values, (rows, columns)), shape=(len(limits), first_end + len(sent))),
        b_ub=np.array(limits),
        A_eq=csr_array(
            (np.ones(first_end), (np.repeat(np.arange(len(sent)), NUM_SLOTS), np.arange(first_end))),
            shape=(len(sent), first_end + len(sent)),
        ),
        b_eq=updates.size[sent] / scale,
        bounds=[*upper, *((float(alone[g]), None) for g in sent)],
        method="highs",
    )
    if program.status != 0:
        return float(alone.sum())
    return max(rest + float(program.fun), float(alone.sum()))


def _areas(capacities: Capacities, link: int, edges: FloatArray) -> FloatArray:
    """Return how many bytes a link can carry in each slot."""
    steps = capacities.steps(link)
    starts = np.array([start for start, _ in steps])
    rates = np.array([rate for _, rate in steps])
    before = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(starts))))
    step = np.searchsorted(starts, edges, side="right") - 1
    area: FloatArray = np.diff(before[step] + (edges - starts[step]) * rates[step])
    return area
