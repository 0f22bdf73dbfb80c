"""Keeping a replica within a bound of the server while the network is busy with the server's own updates.

The replica's transfers take what the server's leave. Where the server would lead by too much, its next
transfers wait until the replica has received enough; what the replica need not receive yet is punted to the
next batch. An update stays with its worker until the replica has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pace.solver.arrays import FloatArray
from pace_fabric.solver import divergence
from pace_fabric.solver.aggregation import DENSE, AggregateSize, Aggregation, Hop, aggregate
from pace_fabric.solver.capacity import SAME_MOMENT_S, Capacities
from pace_fabric.solver.updates import Updates


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadLimit:
    """How far the server may lead.

    Parameters
    ----------
    kind
        "norm": the bound on the norm of the difference; "updates": how many updates.
    most
        The largest allowed lead.
    gamma, history_norm
        Momentum, and the norm of the history of the model that the replica has, for "norm".
    """

    kind: Literal["norm", "updates"] = "norm"
    most: float
    gamma: float = 0.0
    history_norm: float = 0.0

    def lead(self, received: Sequence[float], ahead: Sequence[float]) -> float:
        """Return the lead when the replica has applied `received` and the server `ahead` too (norms)."""
        if self.kind == "updates":
            return float(len(ahead))
        history = divergence.history_bound(received, self.history_norm, self.gamma)
        return divergence.bound(ahead, history, self.gamma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What the replica receives of a batch, and how the server's own transfers moved.

    Attributes
    ----------
    server
        The server's plan; its transfers may start later than without the replica.
    held
        Numbers of its hops that do.
    frozen
        Hops to the replica that will be made, and when each group has arrived; of numbers in the queue.
    frozen_updates, punted
        Updates (numbers in the queue) that the replica receives now, and later, in commit order.
    bound
        Bound on the server's lead after all commits.
    bounds
        Bound on the server's lead at each of its commits, in order.
    delay_s
        Seconds by which the server's last commit moved.
    """

    server: Aggregation
    held: frozenset[int]
    frozen: tuple[Hop, ...]
    frozen_groups: tuple[tuple[tuple[int, ...], float], ...]
    frozen_updates: tuple[int, ...]
    punted: tuple[int, ...]
    bound: float
    bounds: tuple[float, ...]
    delay_s: float


def replicate(
    queue: Updates,
    norms: FloatArray,
    server: Aggregation,
    num_punted: int,
    capacities: Capacities,
    replica: int,
    limit: LeadLimit,
    aggregators: Sequence[int] = (),
    *,
    check: Literal["commit", "batch-end"] = "commit",
    patient: bool = False,
    size: AggregateSize = DENSE,
    buffer_bytes: float = np.inf,
) -> Replication | None:
    """Plan the replica's transfers; None if the replica cannot be reached.

    Parameters
    ----------
    queue
        Punted updates of earlier batches, in commit order, then the batch's in commit order.
    norms
        (n,) of each update in the queue.
    server
        The server's plan of the batch, with any numbers of its own for updates.
    num_punted
        How many in the queue are committed already.
    capacities
        Before the server's transfers were booked.
    check
        Where the bound is kept: at every commit, or (as in the paper) only after the batch's last.
    patient
        Replicate nothing until the lead has reached half of what is allowed, then all that waits: longer
        queues make larger sums, so fewer bytes. Otherwise whatever arrives by the server's last commit.
    buffer_bytes
        How much a worker may keep for the replica; beyond it, updates are replicated whatever the bound.
    """
    back = dict(enumerate(server.order, start=num_punted))
    server = _renumbered(server, {update: number for number, update in back.items()})
    plan = _towards(queue, server, capacities, replica, aggregators, size)
    if plan is None:
        return None
    arrivals = [(group, at) for group, at in plan.groups]
    first = server
    hold: dict[int, float] = {}
    committed = list(range(num_punted))
    for number, (group, at) in enumerate(server.groups):
        committed += group
        last = number == len(server.groups) - 1
        if check == "batch-end" and not last:
            continue
        wanted = _enough(arrivals, committed, norms, limit)
        if wanted is None:
            return None
        if hold or wanted > at + SAME_MOMENT_S:
            hold[number] = wanted  # what follows a moved transfer moves too
    needed = max(hold.values(), default=0.0)
    if hold:
        server = _moved(queue, server, capacities, plan, hold, needed)
        if server.last_s == np.inf:
            return None
    keep = max(server.last_s, needed) if not hold else needed
    num_groups = sum(1 for _, at in arrivals if at <= keep + SAME_MOMENT_S)
    if patient:
        waits = not hold and limit.lead([], norms.tolist()) <= limit.most / 2
        num_groups = 0 if waits else sum(1 for _, at in arrivals if at < np.inf)
    num_groups = _within_buffer(queue, arrivals, num_groups, buffer_bytes)
    received = [update for group, _ in arrivals[:num_groups] for update in group]
    punted = tuple(range(len(received), len(queue)))
    bounds = []
    committed = list(range(num_punted))
    for group, at in server.groups:
        committed += group
        bounds.append(_lead(arrivals[:num_groups], committed, norms, limit, at))
    hops = tuple(hop for hop in plan.hops if set(hop.updates) <= set(received))
    held = frozenset(
        number
        for number, (hop, before) in enumerate(zip(server.hops, first.hops, strict=True))
        if hop.target == queue.server and hop.reservation.start_s > before.reservation.start_s + SAME_MOMENT_S
    )
    return Replication(
        server=_renumbered(server, back),
        held=held,
        frozen=hops,
        frozen_groups=tuple(arrivals[:num_groups]),
        frozen_updates=tuple(received),
        punted=punted,
        bound=limit.lead(norms[received].tolist(), norms[list(punted)].tolist()),
        bounds=tuple(bounds),
        delay_s=server.last_s - first.last_s,
    )


def _renumbered(plan: Aggregation, number: Mapping[int, int]) -> Aggregation:
    """Return a plan whose updates have other numbers: those of a queue instead of a batch's, say."""
    return replace(
        plan,
        hops=tuple(replace(hop, updates=tuple(number[u] for u in hop.updates)) for hop in plan.hops),
        groups=tuple((tuple(number[u] for u in group), at) for group, at in plan.groups),
    )


def _towards(
    queue: Updates,
    server: Aggregation,
    capacities: Capacities,
    replica: int,
    aggregators: Sequence[int],
    size: AggregateSize,
) -> Aggregation | None:
    left = capacities.copy()
    for hop in server.hops:
        left.book(hop.source, hop.target, hop.reservation.pieces)
    # What cannot arrive is punted with all after it: the longest deliverable prefix is planned.
    few, many = 0, len(queue)
    best = aggregate(queue, range(many), left, aggregators, target=replica, size=size)
    while best is None and few < many:
        middle = (few + many) // 2
        if aggregate(queue, range(middle + 1), left, aggregators, target=replica, size=size) is None:
            many = middle
        else:
            few = middle + 1
    return best or aggregate(queue, range(few), left, aggregators, target=replica, size=size)


def _lead(
    arrivals: Sequence[tuple[tuple[int, ...], float]],
    committed: Sequence[int],
    norms: FloatArray,
    limit: LeadLimit,
    at_s: float,
) -> float:
    """Return the bound at a moment; the replica has what arrived of the commits, in order."""
    here = {update for group, at in arrivals if at <= at_s + SAME_MOMENT_S for update in group}
    received = [update for update in committed if update in here]
    ahead = [update for update in committed if update not in here]
    return limit.lead(norms[received].tolist(), norms[ahead].tolist())


def _enough(
    arrivals: Sequence[tuple[tuple[int, ...], float]],
    committed: Sequence[int],
    norms: FloatArray,
    limit: LeadLimit,
) -> float | None:
    """Return the earliest moment at which the server may have committed all of `committed`."""
    for moment in [0.0, *(at for _, at in arrivals)]:
        if moment < np.inf and _lead(arrivals, committed, norms, limit, moment) <= limit.most:
            return moment
    return None


def _moved(
    queue: Updates,
    server: Aggregation,
    capacities: Capacities,
    plan: Aggregation,
    hold: dict[int, float],
    until: float,
) -> Aggregation:
    """Book the server's hops again, after the replica's that must be early; held groups arrive later."""
    left = capacities.copy()
    goal = queue.server
    start = {group: hold[number] for number, (group, _) in enumerate(server.groups) if number in hold}
    early = next(number for number, (group, _) in enumerate(server.groups) if number in hold)
    first_held = server.groups[early][0]
    hops: list[Hop] = []
    for hop in server.hops:
        if hop.target == goal and hop.updates == first_held:
            break
        left.book(hop.source, hop.target, hop.reservation.pieces)
        hops.append(hop)
    ready = {number: hop.reservation.end_s for number, hop in enumerate(hops)}
    arrived = {update for group, at in plan.groups if at <= until + SAME_MOMENT_S for update in group}
    for hop in plan.hops:
        if set(hop.updates) <= arrived:
            left.book(hop.source, hop.target, hop.reservation.pieces)
    wait = 0.0
    for hop in server.hops[len(hops) :]:
        if hop.target == goal:
            wait = max(wait, start.get(hop.updates, 0.0))
        begin = wait if hop.target == goal else 0.0
        if not hop.after:
            begin = max(begin, *(float(queue.ready[update]) for update in hop.updates))
        begin = max(begin, *(ready[number] for number in hop.after), 0.0)
        booked = left.reserve(hop.source, hop.target, hop.size_bytes, begin)
        ready[len(hops)] = booked.end_s
        hops.append(replace(hop, reservation=booked))
    last = 0.0
    groups = []
    for group, _ in server.groups:
        arrival = next(h.reservation.end_s for h in hops if h.target == goal and h.updates == group)
        last = max(last, arrival)
        groups.append((group, last))
    return replace(server, hops=tuple(hops), groups=tuple(groups), left=left)


def _within_buffer(
    queue: Updates,
    arrivals: Sequence[tuple[tuple[int, ...], float]],
    num_groups: int,
    buffer_bytes: float,
) -> int:
    while num_groups < len(arrivals) and arrivals[num_groups][1] < np.inf:
        kept: dict[int, float] = {}
        for group, _ in arrivals[num_groups:]:
            for update in group:
                host = int(queue.host[update])
                kept[host] = kept.get(host, 0.0) + float(queue.size[update])
        if max(kept.values()) <= buffer_bytes:
            break
        num_groups += 1
    return num_groups
