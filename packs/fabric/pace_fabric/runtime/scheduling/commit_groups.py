"""Updates on their way to the server, the groups that are committed together, and their plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

from pace_fabric.runtime.messages import AdditionOrder
from pace_fabric.runtime.scheduling.known_hosts import NetworkView
from pace_fabric.runtime.scheduling.transfer_queue import TransferQueue
from pace_fabric.runtime.shards import shard_bytes, shard_key
from pace_fabric.runtime.update_records import CommitMember, HeldUpdate
from pace_fabric.solver.aggregation import DENSE, AggregateSize, Aggregation, Hop, aggregate
from pace_fabric.solver.ordering import Drop, Late, order_updates
from pace_fabric.solver.plain_ordering import ShardedServers, order_plainly
from pace_fabric.solver.updates import NO_DEADLINE, Updates, deadlines

Merge = Literal["sum", "weighted-mean"]
NOTHING: Mapping[int, Sequence[int]] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class FabricUpdate:
    """An update that a host keeps for the server or the replica.

    Attributes
    ----------
    factor
        What it is multiplied by in its commit.
    again
        Whether it was committed by a server that died, so that it is neither dropped nor reordered.
    sequence
        Its place among all commits that were planned; what the replica follows.
    """

    held: HeldUpdate
    host: str
    factor: float = 1.0
    again: bool = False
    sequence: tuple[int, int] = (0, 0)

    @property
    def key(self) -> str:
        """Under which its host keeps it."""
        return f"u/{self.held.id}"

    @property
    def norm(self) -> float:
        """Norm of what is added to the model."""
        return self.held.norm * abs(self.factor)

    def member(self) -> CommitMember:
        """Return what the commit log says of it."""
        held = self.held
        return CommitMember(
            id=held.id, host=self.host, version=held.version, norm=held.norm, factor=self.factor
        )


@dataclass(slots=True, eq=False)
class CommitGroup:
    """Updates that arrive together and are committed at once.

    Attributes
    ----------
    aggregator
        The host that adds them; None for one update that comes directly.
    number
        Number of its commit, in planned order.
    missing, unanswered
        How many servers have not received it, and have not said that it is committed.
    """

    number: int
    members: list[FabricUpdate]
    aggregator: str | None
    planned_s: float
    missing: int = 1
    unanswered: int = 1
    arrived_s: float = 0.0
    hosts: set[str] = field(default_factory=set)
    transfers: list[int] = field(default_factory=list)

    @property
    def arrived(self) -> bool:
        """Whether every server has received the group."""
        return self.missing <= 0

    @property
    def key(self) -> str:
        """Key of what the server applies."""
        return self.members[0].key if self.aggregator is None else f"s/{self.number}"


def updates_of(
    waiting: Sequence[FabricUpdate],
    view: NetworkView,
    target: str,
    version: int,
    bound: int | None,
    shard: tuple[int, int] = (0, 1),
) -> Updates:
    """Return updates, or a shard of each, as the solver's arrays."""
    sizes = np.array([shard_bytes(update.held.size_bytes, *shard) for update in waiting], dtype=float)
    hosts = np.array([view.number[update.host] for update in waiting], dtype=np.int64)
    last = np.full(len(waiting), NO_DEADLINE)
    if bound is not None:
        versions = np.array([min(update.held.version, version) for update in waiting], dtype=np.int64)
        last = deadlines(versions, version, bound)
    return Updates(size=sizes, host=hosts, server=view.number[target], deadline=last)


def order_batch(
    waiting: Sequence[FabricUpdate],
    updates: Updates,
    view: NetworkView,
    late: Late,
    servers: Sequence[str],
) -> tuple[list[int], tuple[Drop, ...]]:
    """Return the order of commits and what is dropped; factors of updates that come late are lowered.

    On several servers, each with a shard of the model, an update has arrived when its last shard has.
    """
    if all(update.again for update in waiting):
        return list(range(len(waiting))), ()
    if len(servers) > 1:
        sizes = [
            [shard_bytes(u.held.size_bytes, n, len(servers)) for n in range(len(servers))] for u in waiting
        ]
        at = tuple(view.number[server] for server in servers)
        placed = ShardedServers(
            np.array(sizes, dtype=float), updates.host, at, view.capacities.copy(), updates.ready
        )
        ordering = order_plainly(placed, updates.deadline, late=late)
    else:
        ordering = order_updates(updates, view.capacities, late=late)
    for place in ordering.commits:
        waiting[place].factor *= float(ordering.weights[place])
    return list(ordering.commits), ordering.dropped


def towards(
    updates: Updates,
    order: Sequence[int],
    view: NetworkView,
    relays: Sequence[int],
    target: str,
    size: AggregateSize = DENSE,
) -> Aggregation | None:
    """Return how updates reach a host; None if they do not."""
    chosen = [host for host in relays if host != view.number[target]]
    return aggregate(updates, order, view.capacities, chosen, target=view.number[target], size=size)


def submit_hops(
    transfers: TransferQueue,
    hops: Sequence[Hop],
    names: Sequence[str],
    parts: Sequence[FabricUpdate],
    target: str,
    now_s: float,
    sum_key: Callable[[tuple[int, ...]], str],
    on_end: Callable[[tuple[int, ...], bool], None],
    *,
    urgency: int = 1,
    purpose: str = "update",
    momentum: float = 0.0,
    earlier: Sequence[int] = (),
    waits: Mapping[int, Sequence[int]] = NOTHING,
    shard: tuple[int, int] = (0, 1),
) -> list[int]:
    """Queue planned hops; return their numbers.

    Parameters
    ----------
    hops
        Hops of a plan, beginning after `earlier`.
    momentum
        Momentum of steps that sums keep apart; 0 if a sum is one step.
    earlier
        Numbers of the plan's hops before these.
    waits
        Transfers that a hop, by its place in the plan, waits for though they are none of the plan.
    shard
        Which part of the updates is sent, of how many.
    parts
        The updates that hops name by number.
    sum_key
        Under which a relay keeps the sum of these updates.
    on_end
        Called with the updates of a hop to `target` when it has arrived, and with those of any hop that
        failed.
    """
    numbers = list(earlier)
    for hop in hops:
        final = names[hop.target] == target
        relayed = final and bool(hop.after)
        members = hop.updates
        prepare: tuple[AdditionOrder, ...] = ()
        key = shard_key(parts[members[0]].key, *shard)
        if relayed:
            key = shard_key(sum_key(members), *shard)
            prepare = (
                AdditionOrder(
                    key=key,
                    parts=tuple(shard_key(parts[place].key, *shard) for place in members),
                    factors=tuple(parts[place].factor for place in members),
                    momentum=momentum if len(members) > 1 else 0.0,
                ),
            )

        def ended(arrived: bool, members: tuple[int, ...] = members, final: bool = final) -> None:
            if final or not arrived:
                on_end(members, arrived)

        numbers.append(
            transfers.submit(
                names[hop.source],
                names[hop.target],
                key,
                round(hop.size_bytes),
                ended,
                urgency=urgency,
                planned_s=now_s + hop.reservation.end_s,
                after=(*(numbers[place] for place in hop.after), *waits.get(len(numbers), ())),
                prepare=prepare,
                once=relayed,
                purpose=purpose if final else f"{purpose} to a relay",
            )
        )
    return numbers[len(earlier) :]
