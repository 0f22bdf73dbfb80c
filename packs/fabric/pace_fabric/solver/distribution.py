"""One model to many hosts: the server sends to some, and they send it on.

Who serves whom is the aggregation of the same hosts' updates with every link turned round; the transfers are
then booked forward, those to the busiest distributors first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace_fabric.solver.aggregation import DENSE, Hop, aggregate
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.updates import Updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Who receives a model from whom, and when.

    Attributes
    ----------
    hops
        Transfers in the order in which bandwidth was given to them; `updates` are the receivers' hosts.
    arrival_s
        For each receiver.
    left
        The capacities with all hops booked.
    """

    hops: tuple[Hop, ...]
    arrival_s: dict[int, float]
    left: Capacities

    @property
    def last_s(self) -> float:
        """When the last host has the model."""
        return max(self.arrival_s.values(), default=0.0)


def distribute(
    capacities: Capacities,
    server: int,
    hosts: Sequence[int],
    size_bytes: float,
    distributors: Sequence[int] = (),
    *,
    begin_s: float = 0.0,
) -> Distribution | None:
    """Send one model of `size_bytes` to all `hosts`; None if not all can be reached.

    A distributor that is no receiver gets the model too. Heuristic: the partition is best for the reversed
    network, and is kept only if its last arrival is earlier than that of sending to everybody directly.
    """
    away = [host for host in hosts if host != server]
    to_all = _forward(capacities, server, [], away, size_bytes, begin_s)
    backward = Updates(
        size=np.full(len(away), size_bytes),
        host=np.array(away, dtype=np.int64),
        server=server,
        ready=np.full(len(away), begin_s),
    )
    mirrored = capacities.reversed()
    order = sorted(range(len(away)), key=lambda i: backward.finish(i, mirrored))
    plan = aggregate(backward, order, mirrored, distributors, size=DENSE, begin_s=begin_s)
    best = to_all
    if plan is not None:
        direct = [away[i] for i in order[: plan.num_direct]]
        groups = [(hop.source, [away[i] for i in hop.updates]) for hop in plan.hops if hop.after]
        relayed = _forward(capacities, server, groups, direct, size_bytes, begin_s)
        best = relayed if relayed.last_s < to_all.last_s else to_all
    for host in hosts:
        if host == server:
            best.arrival_s[host] = begin_s
    return best if best.last_s < np.inf else None


def _forward(
    capacities: Capacities,
    server: int,
    groups: Sequence[tuple[int, Sequence[int]]],
    direct: Sequence[int],
    size_bytes: float,
    begin_s: float,
) -> Distribution:
    left = capacities.copy()
    hops: list[Hop] = []
    arrival: dict[int, float] = {}

    def send(source: int, target: int, start_s: float, after: tuple[int, ...]) -> None:
        booked = left.reserve(source, target, size_bytes, start_s)
        hops.append(
            Hop(
                source=source,
                target=target,
                updates=(target,),
                size_bytes=size_bytes,
                after=after,
                reservation=booked,
            )
        )
        arrival[target] = booked.end_s

    relays = list(reversed(groups))
    for distributor, _ in relays:
        send(server, distributor, begin_s, ())
    for number, (distributor, members) in enumerate(relays):
        for host in members:
            if host != distributor and host not in arrival:
                send(distributor, host, arrival[distributor], (number,))
    for host in direct:
        if host not in arrival:
            send(server, host, begin_s, ())
    return Distribution(hops=tuple(hops), arrival_s=arrival, left=left)
