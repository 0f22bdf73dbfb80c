"""The replica's part of a batch: the updates that it applies at once, and the plan beside the server's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate, updates_of
from pace_fabric.runtime.scheduling.known_hosts import NetworkView
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.solver.aggregation import AggregateSize, Aggregation, Hop
from pace_fabric.solver.replication import LeadLimit, replicate


@dataclass(slots=True, eq=False)
class ReplicaUnit:
    """Updates that the replica applies at once.

    Attributes
    ----------
    scaled
        Whether `key` is a sum of members times factors.
    missing
        How many transfers to the replica have not arrived.
    relayed
        Whether another host adds the members.
    """

    number: int
    members: list[FabricUpdate]
    key: str
    scaled: bool
    missing: int
    relayed: bool
    transfers: list[int] = field(default_factory=list)
    failed: bool = False

    @classmethod
    def of(
        cls, number: int, group: tuple[int, ...], queue: Sequence[FabricUpdate], hops: Sequence[Hop]
    ) -> "ReplicaUnit":
        """Return the unit of a group of places in a queue."""
        members = [queue[place] for place in group]
        relayed = any(hop.after and hop.updates == group for hop in hops)
        summed = len(members) > 1 or relayed
        return cls(
            number=number,
            members=members,
            key=f"p/{number}" if summed else members[0].key,
            scaled=summed,
            missing=1 if relayed else len(members),
            relayed=relayed,
        )


def whole_steps(
    sequence: Sequence[tuple[int, int]], num_received: int | None = None
) -> list[tuple[int, ...]]:
    """Return the steps of which all updates are among the first `num_received`, as places.

    Parameters
    ----------
    sequence
        The number of each update's step, and its place in the step.
    """
    places: dict[int, list[int]] = {}
    for place, (step, _) in enumerate(sequence):
        places.setdefault(step, []).append(place)
    last = len(sequence) if num_received is None else num_received
    return [tuple(each) for each in places.values() if each[-1] < last]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShare:
    """A batch's plan for server and replica.

    Attributes
    ----------
    server
        The server's plan, of which some transfers may start later.
    held
        Hops of the plan that wait until the replica has received all of this.
    queue
        Updates that the replica lacks, in commit order, from the first on that is not on its way.
    groups, hops
        What the replica receives at once (places in the queue), and the transfers.
    """

    server: Aggregation
    held: frozenset[int]
    queue: tuple[FabricUpdate, ...]
    groups: tuple[tuple[int, ...], ...]
    hops: tuple[Hop, ...]
    view: NetworkView


def plan_share(
    punted: Sequence[FabricUpdate],
    batch: Sequence[FabricUpdate],
    plan: Aggregation,
    view: NetworkView,
    holders: tuple[str, str],
    limit: LeadLimit,
    relays: Sequence[int],
    size: AggregateSize,
    options: SchedulerOptions,
) -> ReplicaShare | None:
    """Plan the replica's share of a batch; None if the replica cannot be reached.

    Parameters
    ----------
    punted
        Updates of earlier batches that the replica lacks, in commit order.
    batch
        The batch's updates in commit order.
    plan
        Plan of the server's transfers.
    holders
        The server and the replica.
    """
    queue = [*punted, *batch]
    made = replicate(
        updates_of(queue, view, holders[0], 0, None),
        np.array([update.norm for update in queue]),
        plan,
        len(punted),
        view.capacities,
        view.number[holders[1]],
        limit,
        relays,
        patient=options.replicate_patiently,
        size=size,
        buffer_bytes=options.buffer_bytes,
    )
    if made is None:
        return None
    groups = [group for group, _ in made.frozen_groups]
    if options.momentum and not options.exact_momentum:
        # A commit is one step with its sum: the replica can only apply it as a whole.
        sequence = [update.sequence for update in punted]
        sequence += [(-rank, 0) for rank, (group, _) in enumerate(plan.groups, start=1) for _ in group]
        groups = whole_steps(sequence, len(made.frozen_updates))
    received = {number for group in groups for number in group}
    return ReplicaShare(
        server=made.server,
        held=made.held,
        queue=tuple(queue),
        groups=tuple(groups),
        hops=tuple(hop for hop in made.frozen if set(hop.updates) <= received),
        view=view,
    )
