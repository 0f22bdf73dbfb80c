"""What a policy puts on the links: partitions, their servers and orders, and the rules of both sides."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from pace.documents.cluster import Cluster
from pace.documents.profile import Profile
from pace.solver.arrays import FloatArray, IntArray


class ServersRules(NamedTuple):
    """How workers hand over pushes, and servers answers.

    Attributes
    ----------
    credit_bytes
        Bytes that a worker may have handed over and not got back; one partition always may be.
    overshoots
        Whether a partition is admitted as soon as any credit is left (ByteScheduler's code), or when the
        credit covers all of it (its paper).
    per_connection
        Whether each connection has a credit of its own, or all of a worker share one.
    acknowledged
        Whether credit returns a round trip after the push has left, or at once.
    until_pulled
        Whether credit returns only when the partition has been pulled.
    led
        Whether worker 0 alone has credit, and the others hand a partition over when worker 0 has.
    push_in_order, pull_in_order
        Whether a connection waits for the partition that comes next in its order; servers' gates (TicTac).
    arrival_pushes, arrival_pulls
        Whether pushes go in the order of readiness, pulls in that of their sums, whatever the priorities.
    streams
        Messages that a connection carries at once, as gRPC multiplexes.
    step_barrier
        Whether no pull starts before everything has been pushed by all.
    barrier
        Whether forward ops wait for every gradient.
    paced
        Whether each connection is held to its share, so that it cannot use what others leave.
    """

    credit_bytes: float = 0.0
    overshoots: bool = False
    per_connection: bool = True
    acknowledged: bool = False
    until_pulled: bool = False
    led: bool = False
    push_in_order: bool = False
    pull_in_order: bool = False
    arrival_pushes: bool = False
    arrival_pulls: bool = False
    streams: int = 1
    step_barrier: bool = False
    barrier: bool = False
    paced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersTraffic:
    """The partitions of one window, sorted so that each carries one group of gradients.

    Attributes
    ----------
    groups
        The gradients of every group; a group is pushed when the last of them is ready.
    part_groups : integer array of shape (num_parts,)
        The group of every partition, not decreasing.
    server, sizes : integer arrays of shape (num_parts,)
        Where it is placed, and its bytes.
    push_priority, pull_priority : arrays of shape (num_parts,)
        Smaller goes first; ties by index.
    rules
        Of both sides.
    shuffled
        Whether every worker pulls in a random order of its own in every window.
    """

    groups: tuple[tuple[int, ...], ...]
    part_groups: IntArray
    server: IntArray
    sizes: IntArray
    push_priority: FloatArray
    pull_priority: FloatArray
    rules: ServersRules = field(default_factory=ServersRules)
    shuffled: bool = False


class ServersPolicy(Protocol):
    """A rule for pushing and pulling gradients."""

    def traffic(self, profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Decide all that is decided before training."""


def ranks(priority: FloatArray) -> IntArray:
    """Return each partition's place by priority; ties by index, those without one (nan) first."""
    placed = np.empty(len(priority), dtype=np.int64)
    placed[np.argsort(np.nan_to_num(priority, nan=-np.inf), kind="stable")] = np.arange(len(priority))
    return placed


def gates(priority: FloatArray, server: IntArray) -> IntArray:
    """Return how many partitions of strictly smaller priority each one's server hands over before it.

    A gate opens when the counter of hand-overs has reached the number: equal priorities go together. A
    partition without a priority (nan) passes at once and is not counted: its number is -1.
    """
    before = np.zeros(len(priority), dtype=np.int64)
    for number in np.unique(server):
        on_it = np.flatnonzero(server == number)
        ranked = np.sort(priority[on_it][~np.isnan(priority[on_it])])
        before[on_it] = np.searchsorted(ranked, np.nan_to_num(priority[on_it], nan=-np.inf), side="left")
    before[np.isnan(priority)] = -1
    return before
