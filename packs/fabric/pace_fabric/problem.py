"""A network and a batch as arrays: names become numbers, changes become steps."""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray
from pace_fabric.documents.batch import PendingUpdate, UpdateBatch
from pace_fabric.documents.network import FabricHost, FabricNetwork
from pace_fabric.errors import InvalidFabric
from pace_fabric.solver.aggregation import AggregateSize
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.updates import NO_DEADLINE, Updates, deadlines


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricProblem:
    """A network and a batch as arrays for the solver.

    Attributes
    ----------
    updates
        The batch's updates, in its order.
    norms
        (n,) of each.
    server, replica, aggregators
        Numbers of hosts.
    size
        How large sums are.
    """

    network: FabricNetwork
    batch: UpdateBatch
    capacities: Capacities
    updates: Updates
    norms: FloatArray
    server: int
    replica: int | None
    aggregators: tuple[int, ...]
    size: AggregateSize


def capacities_of(network: FabricNetwork) -> Capacities:
    """Return the rates of every host's two links."""
    links = [steps for host in network.hosts for steps in (_steps(host, "up"), _steps(host, "down"))]
    return Capacities.of_steps(links)


def _steps(host: FabricHost, direction: str) -> list[tuple[float, float]]:
    field = f"{direction}_bytes_per_s"
    steps = [(0.0, float(getattr(host, field)))]
    for change in host.changes:
        rate = getattr(change, field)
        if rate is not None:
            steps.append((change.at_s, float(rate)))
    return steps


def updates_of(network: FabricNetwork, updates: tuple[PendingUpdate, ...], batch: UpdateBatch) -> Updates:
    """Return updates as arrays; raises InvalidFabric if one is on a host that the network lacks."""
    number = {host.name: place for place, host in enumerate(network.hosts)}
    for update in updates:
        if update.host not in number:
            raise InvalidFabric(f'update "{update.id}": "{update.host}" is no host of the network')
    if batch.delay_bound is None:
        last = np.full(len(updates), NO_DEADLINE)
    else:
        versions = np.array([update.version for update in updates], dtype=np.int64)
        last = deadlines(versions, batch.version, batch.delay_bound)
    return Updates(
        size=np.array([update.size_bytes for update in updates], dtype=float),
        host=np.array([number[update.host] for update in updates], dtype=np.int64),
        server=number[network.server],
        deadline=last,
        ready=np.array([update.ready_s for update in updates], dtype=float),
    )


def problem_of(network: FabricNetwork, batch: UpdateBatch) -> FabricProblem:
    """Return what the solver needs; raises InvalidFabric if the two do not fit."""
    number = {host.name: place for place, host in enumerate(network.hosts)}
    if batch.divergence is not None and network.replica is None:
        raise InvalidFabric(
            "the batch bounds the divergence of a replica, but the network has none: add a replica to it"
        )
    limit = batch.sum_size.at_most_bytes
    return FabricProblem(
        network=network,
        batch=batch,
        capacities=capacities_of(network),
        updates=updates_of(network, batch.updates, batch),
        norms=np.array([update.norm for update in batch.updates], dtype=float),
        server=number[network.server],
        replica=None if network.replica is None else number[network.replica],
        aggregators=tuple(number[name] for name in network.aggregators),
        size=AggregateSize(
            at_most_bytes=None if limit is None else float(limit),
            vectors=2 if batch.sum_size.momentum == "exact" else 1,
        ),
    )
