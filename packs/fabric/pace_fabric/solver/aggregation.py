"""Adding updates on the way: which go directly to the target, and which hosts add the others.

The first updates of an order go directly. The following are sent to aggregators, each of which receives,
adds and then sends one sum (store and forward). A group ends where another member would let the target wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.solver.capacity import Capacities, Reservation
from pace_fabric.solver.updates import Updates


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSize:
    """How large a sum of updates is.

    Parameters
    ----------
    at_most_bytes
        Sparse updates: as large as all members together, but never above this. None for dense updates, whose
        sum is as large as the largest member.
    at_least_bytes
        How large any is at least: numbers of a sum may need more bytes than those of its members.
    vectors
        2 if an aggregate carries what momentum needs to be exact (a sum for the model and one for its
        history), else 1.
    """

    at_most_bytes: float | None = None
    at_least_bytes: float = 0.0
    vectors: int = 1

    def of(self, sizes: Sequence[float] | FloatArray) -> float:
        """Return the size of the sum of updates of these sizes."""
        sent = max(sizes)
        if self.at_most_bytes is not None and len(sizes) > 1:
            sent = min(sum(sizes), self.at_most_bytes)
        return float(max(sent, self.at_least_bytes) * (self.vectors if len(sizes) > 1 else 1))


DENSE = AggregateSize()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A planned transfer of one update, or of the sum of several.

    Attributes
    ----------
    updates
        In commit order.
    after
        Hops, by number, that must have arrived before this one starts.
    """

    source: int
    target: int
    updates: tuple[int, ...]
    size_bytes: float
    after: tuple[int, ...]
    reservation: Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How an order of updates reaches one target.

    Attributes
    ----------
    num_direct
        How many updates go directly.
    hops
        All transfers, in the order in which bandwidth was given to them.
    groups
        What the target commits, in order: updates, and when.
    left
        The capacities with all hops booked.
    """

    num_direct: int
    hops: tuple[Hop, ...]
    groups: tuple[tuple[tuple[int, ...], float], ...]
    left: Capacities

    @property
    def order(self) -> tuple[int, ...]:
        """Updates in the order in which the target commits them."""
        return tuple(update for updates, _ in self.groups for update in updates)

    @property
    def last_s(self) -> float:
        """When the last group is committed."""
        return self.groups[-1][1] if self.groups else 0.0

    @property
    def mean_s(self) -> float:
        """Mean time of commit, each update counted once."""
        number = sum(len(updates) for updates, _ in self.groups)
        return sum(len(updates) * at for updates, at in self.groups) / number if number else 0.0


def fastest_hosts(
    capacities: Capacities, candidates: Sequence[int], most: int | None = None, *, seed: int | None = None
) -> tuple[int, ...]:
    """Return candidates with the greatest min(up, down) now first; with a seed, in random order."""
    order = list(candidates)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order).tolist()
    else:
        order.sort(key=lambda h: -min(capacities.rate_at(2 * h, 0.0), capacities.rate_at(2 * h + 1, 0.0)))
    return tuple(order if most is None else order[:most])


def aggregate(
    updates: Updates,
    order: Sequence[int],
    capacities: Capacities,
    aggregators: Sequence[int] = (),
    *,
    target: int | None = None,
    size: AggregateSize = DENSE,
    begin_s: float = 0.0,
) -> Aggregation | None:
    """Choose the number of direct updates with the earliest last commit; None if not all can arrive.

    Of equal last commits the least mean commit wins, then the fewest direct updates. `capacities` stays as
    it is. O(n^2) ends: heuristic, because groups follow the order. It attains T slots for
    N <= (T - k) + sum over i = 1..k of (T - i) equal updates, about sqrt(2 N).

    Parameters
    ----------
    order
        Updates in the order in which the target commits them.
    aggregators
        Hosts that add, in the order in which they are used; each adds one group at most.
    target
        Where the updates go; the updates' server if left out.
    """
    from pace_fabric.solver.kernels import aggregation as kernel

    goal = updates.server if target is None else target
    updates.require_hosts(capacities, goal, *aggregators)
    chosen = np.array([host for host in aggregators if host != goal], dtype=np.int64)
    listed = np.array(order, dtype=np.int64)
    group_end = np.zeros(max(len(chosen), 1), dtype=np.int64)
    capacities = capacities.copy()
    while True:
        num_direct = kernel.best_split(
            capacities.times,
            capacities.rates,
            capacities.counts,
            updates.size,
            updates.host,
            updates.ready,
            listed,
            goal,
            chosen,
            size.at_most_bytes or 0.0,
            size.at_least_bytes,
            float(size.vectors),
            begin_s,
            group_end,
        )
        if num_direct != -2:
            break
        capacities.widen()
    if num_direct < 0:
        return None
    return split(updates, listed, capacities, chosen, goal, num_direct, group_end, size, begin_s)


def aggregate_alike(
    plan: Aggregation,
    updates: Updates,
    order: Sequence[int],
    capacities: Capacities,
    *,
    target: int,
    size: AggregateSize = DENSE,
) -> Aggregation:
    """Return a plan with another's groups and aggregators: parts of the same updates for another target."""
    relays: list[int] = []
    ends: list[int] = []
    place = plan.num_direct
    for group, _ in plan.groups[plan.num_direct :]:
        relays.append(next(hop.source for hop in plan.hops if hop.updates == group and hop.after))
        place += len(group)
        ends.append(place)
    return split(
        updates,
        np.array(order, dtype=np.int64),
        capacities.copy(),
        np.array(relays, dtype=np.int64),
        target,
        plan.num_direct,
        np.array(ends, dtype=np.int64),
        size,
        begin_s=0.0,
    )


def split(
    updates: Updates,
    order: IntArray,
    capacities: Capacities,
    aggregators: IntArray,
    target: int,
    num_direct: int,
    group_end: IntArray,
    size: AggregateSize,
    begin_s: float,
) -> Aggregation:
    """Book one case: the first `num_direct` directly, the others over aggregators. Changes `capacities`."""
    hops: list[Hop] = []
    groups: list[tuple[tuple[int, ...], float]] = []
    last = begin_s

    def send(
        source: int, to: int, members: tuple[int, ...], size_bytes: float, start_s: float, first: int
    ) -> float:
        booked = capacities.reserve(source, to, size_bytes, start_s)
        hop = Hop(
            source=source,
            target=to,
            updates=members,
            size_bytes=size_bytes,
            after=tuple(range(first, len(hops))),
            reservation=booked,
        )
        hops.append(hop)
        return booked.end_s

    def send_update(g: int, to: int) -> float:
        return send(
            int(updates.host[g]), to, (g,), float(updates.size[g]), float(updates.ready[g]), len(hops)
        )

    for update in order[:num_direct].tolist():
        last = max(last, send_update(update, target))
        groups.append(((update,), last))
    begin = num_direct
    for aggregator, end in zip(aggregators.tolist(), group_end.tolist(), strict=False):
        if begin >= len(order):
            break
        members = tuple(order[begin:end].tolist())
        first = len(hops)
        complete = max(begin_s, *(send_update(update, aggregator) for update in members))
        sent = size.of([float(updates.size[update]) for update in members])
        last = max(last, send(aggregator, target, members, sent, complete, first))
        groups.append((members, last))
        begin = end
    return Aggregation(num_direct=num_direct, hops=tuple(hops), groups=tuple(groups), left=capacities)


def in_order_of_arrival(plan: Aggregation, updates: Updates) -> Aggregation:
    """Return the plan with commits in the order of arrival at the server, as far as deadlines allow.

    A sum over a slow aggregator may arrive after one that is to be committed later, which then waits. Of two
    neighbors the one that arrives first goes first, unless the other would miss its last position. Each
    exchange makes one commit earlier and none later, so no mean grows. O(groups^2).
    """
    arrival = {hop.updates: hop.reservation.end_s for hop in plan.hops if hop.target == updates.server}
    groups = [group for group, _ in plan.groups]
    due = {
        group: min(int(updates.deadline[g]) - place for place, g in enumerate(group, start=1))
        for group in groups
    }
    for end in range(len(groups), 1, -1):
        before = 0
        for place in range(end - 1):
            first, second = groups[place : place + 2]
            if arrival[second] < arrival[first] and before + len(second) <= due[first]:
                groups[place : place + 2] = second, first
            before += len(groups[place])
    commits, last = [], 0.0
    for group in groups:
        last = max(last, arrival[group])
        commits.append((group, last))
    return replace(plan, groups=tuple(commits))
