"""Traffic of a policy: partitions, their servers and orders, and the rules of workers and servers."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from pace.documents.cluster import Cluster
from pace.documents.profile import Profile
from pace.solver.arrays import FloatArray, IntArray


class ServersRules(NamedTuple):
    """Rules by which workers hand over pushes, and servers answers.

    Attributes
    ----------
    credit_bytes
        How many bytes of a worker may be in flight. One partition always may.
    overshoots
        Whether a partition is admitted while any credit is left (as in ByteScheduler's code). Otherwise the
        credit must cover all of it (as in its paper).
    per_connection
        Whether each connection has its own credit. Otherwise all connections of a worker share one.
    acknowledged
        Whether credit returns one round trip after the push has ended. Otherwise it returns at once.
    until_pulled
        Whether credit returns only when the partition has been pulled.
    led
        Whether only worker 0 has credit, and the other workers hand over a partition after worker 0 has.
    push_in_order, pull_in_order
        Whether a connection waits for the next partition in its order, as with TicTac's gates on servers.
    arrival_pushes, arrival_pulls
        Whether pushes are in order of readiness, and pulls in the order of their sums, instead of by
        priority.
    streams
        Number of messages that a connection carries at once, as gRPC multiplexes.
    step_barrier
        Whether pulls wait until all workers have pushed everything.
    barrier
        Whether forward ops wait for all gradients.
    paced
        Whether each connection is limited to its share of the links, even if other connections are idle.
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
        The gradients of each group. A group is pushed when the last of them is ready.
    part_groups : integer array of shape (num_parts,)
        The group of each partition, not decreasing.
    server, sizes : integer arrays of shape (num_parts,)
        The server of each partition, and its bytes.
    push_priority, pull_priority : arrays of shape (num_parts,)
        Smaller goes first; ties by index.
    rules
        The rules of workers and servers.
    shuffled
        Whether every worker pulls in its own random order in every window.
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
        """Return the partitions, orders and rules, which are fixed before training."""


def ranks(priority: FloatArray) -> IntArray:
    """Return each partition's place by priority; ties by index, partitions without a priority (nan) first."""
    placed = np.empty(len(priority), dtype=np.int64)
    placed[np.argsort(np.nan_to_num(priority, nan=-np.inf), kind="stable")] = np.arange(len(priority))
    return placed


def gates(priority: FloatArray, server: IntArray) -> IntArray:
    """Return, for each partition, how many of smaller priority its server must hand over before it.

    A gate opens when the number of hand-overs has reached this number, so partitions of equal priority pass
    together. A partition without a priority (nan) passes at once and is not counted; its number is -1.
    """
    before = np.zeros(len(priority), dtype=np.int64)
    for number in np.unique(server):
        on_it = np.flatnonzero(server == number)
        ranked = np.sort(priority[on_it][~np.isnan(priority[on_it])])
        before[on_it] = np.searchsorted(ranked, np.nan_to_num(priority[on_it], nan=-np.inf), side="left")
    before[np.isnan(priority)] = -1
    return before
