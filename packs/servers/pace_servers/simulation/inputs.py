"""Inputs of the compiled events: named tuples of a worker's window, its partitions and the links."""

from itertools import chain
from typing import NamedTuple

import numpy as np

from pace.documents.cluster import Cluster
from pace.documents.profile import Profile
from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace_servers.planning.problem import ServersProblem
from pace_servers.simulation.traffic import ServersTraffic, gates, ranks


class WindowDag(NamedTuple):
    """One worker's window as ranges of flat lists.

    Ops and groups are numbered as in the profile and the traffic. Op i is followed by
    ``successors[first_successor[i]:first_successor[i + 1]]`` and has gradients in as many `op_groups`; group
    g has `group_producers[g]` gradients and partitions `first_part[g]` to `first_part[g + 1]`, and `waiters`
    wait for it.
    """

    successors: IntArray
    first_successor: IntArray
    num_predecessors: IntArray
    op_groups: IntArray
    first_op_group: IntArray
    group_producers: IntArray
    waiters: IntArray
    first_waiter: IntArray
    first_part: IntArray

    @classmethod
    def of(cls, profile: Profile, traffic: ServersTraffic) -> "WindowDag":
        """Build from a profile and its partitions; gradients without bytes are there with their producers."""
        graph = profile.graph
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        group_of = {gradient: at for at, group in enumerate(traffic.groups) for gradient in group}
        after: list[list[int]] = [[] for _ in profile.ops]
        waiting: list[list[int]] = [[] for _ in traffic.groups]
        produced: list[list[int]] = [[] for _ in profile.ops]
        counts = [len(before) for before in graph.predecessors]
        for op, before in enumerate(graph.predecessors):
            for previous in before:
                after[previous].append(op)
        behind_all = traffic.rules.barrier or profile.update == "global-norm"
        everything = range(len(profile.gradients)) if behind_all else None
        for op, document in enumerate(profile.ops):
            if not document.waits_for:
                continue
            needed = everything or [index[name] for name in document.waits_for]
            for group in sorted({group_of[gradient] for gradient in needed if gradient in group_of}):
                waiting[group].append(op)
                counts[op] += 1
            for gradient in needed:
                if gradient not in group_of:
                    after[profile.producers[gradient]].append(op)
                    counts[op] += 1
        for gradient, group in group_of.items():
            produced[profile.producers[gradient]].append(group)
        part_counts = np.bincount(traffic.part_groups, minlength=len(traffic.groups))
        successors, first_successor = _flat(after)
        op_groups, first_op_group = _flat(produced)
        waiters, first_waiter = _flat(waiting)
        return cls(
            successors=successors,
            first_successor=first_successor,
            num_predecessors=np.array(counts, dtype=np.int64),
            op_groups=op_groups,
            first_op_group=first_op_group,
            group_producers=np.array([len(group) for group in traffic.groups], dtype=np.int64),
            waiters=waiters,
            first_waiter=first_waiter,
            first_part=np.concatenate(([0], np.cumsum(part_counts))).astype(np.int64),
        )


def _flat(lists: list[list[int]]) -> tuple[IntArray, IntArray]:
    first = np.concatenate(([0], np.cumsum([len(each) for each in lists]))).astype(np.int64)
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64), first


class ServerParts(NamedTuple):
    """The partitions of a window.

    Attributes
    ----------
    group, server, size : integer arrays of shape (num_parts,)
    push_work, pull_work : arrays of shape (num_parts,)
        Bytes on the links, overhead included.
    push_rank, pull_rank : integer arrays of shape (any, any, num_parts)
        Places in the order of a window and a worker, which take entries in turns.
    push_gate, pull_gate : integer arrays of shape (num_parts,)
        How many partitions its server hands over before it, -1 for one that passes at once.
    gated_pushes, gated_pulls : integer arrays of shape (num_servers,)
        Partitions with a gate in each window.
    """

    group: IntArray
    server: IntArray
    size: IntArray
    push_work: FloatArray
    pull_work: FloatArray
    push_rank: IntArray
    pull_rank: IntArray
    push_gate: IntArray
    pull_gate: IntArray
    gated_pushes: IntArray
    gated_pulls: IntArray

    @classmethod
    def of(cls, problem: ServersProblem, traffic: ServersTraffic, servers: int) -> "ServerParts":
        """Build from a policy's partitions."""
        push_work, pull_work = partition_work(problem, traffic)
        push_gate = gates(traffic.push_priority, traffic.server)
        pull_gate = gates(traffic.pull_priority, traffic.server)
        return cls(
            group=traffic.part_groups,
            server=traffic.server,
            size=traffic.sizes,
            push_work=push_work,
            pull_work=pull_work,
            push_rank=ranks(traffic.push_priority)[None, None],
            pull_rank=ranks(traffic.pull_priority)[None, None],
            push_gate=push_gate,
            pull_gate=pull_gate,
            gated_pushes=np.bincount(traffic.server[push_gate >= 0], minlength=servers),
            gated_pulls=np.bincount(traffic.server[pull_gate >= 0], minlength=servers),
        )


def partition_work(problem: ServersProblem, traffic: ServersTraffic) -> tuple[FloatArray, FloatArray]:
    """Return what every partition's push and pull put on their links, in bytes, overhead included."""
    group_bytes = np.array([problem.plain.sizes[list(group)].sum() for group in traffic.groups])
    share = (
        traffic.sizes / np.maximum(group_bytes[traffic.part_groups], 1) if len(traffic.sizes) else np.zeros(0)
    )
    work = []
    for travelling in (problem.push_bytes, problem.pull_bytes):
        of_group = np.array([travelling[list(group)].sum() for group in traffic.groups])
        carried = share * of_group[traffic.part_groups] if len(traffic.sizes) else np.zeros(0)
        work.append(np.where(carried > 0, carried + problem.links.overhead_bytes, 0.0))
    return work[0], work[1]


class ServerLinks(NamedTuple):
    """The links: of workers up and down, then of servers on hosts of their own in and out.

    Attributes
    ----------
    capacity : array of shape (num_links,)
        Bytes a second.
    first_link, second_link, local : arrays of shape (num_flows,)
        The links of every flow: of pushes by worker, server and stream, then of pulls likewise. A flow
        between a worker and the server on its own host is `local` and needs none.
    num_servers
    pace
        Bytes a second of a connection that is held to its share.
    round_trip_s
    """

    capacity: FloatArray
    first_link: IntArray
    second_link: IntArray
    local: BoolArray
    num_servers: int
    pace: float
    round_trip_s: float

    @classmethod
    def of(cls, cluster: Cluster, workers: int, streams: int) -> "ServerLinks":
        """Build from a cluster; every connection carries `streams` messages at once."""
        exchange = cluster.exchange
        servers = exchange.servers
        rates = [exchange.worker_bytes_per_s] * (2 * workers)
        if not exchange.colocated:
            rates += [exchange.server_bytes_per_s or exchange.worker_bytes_per_s] * (2 * servers)
        worker, server, _ = np.indices((workers, servers, streams)).reshape(3, -1)
        ingress = (workers if exchange.colocated else 2 * workers) + server
        egress = (0 if exchange.colocated else 2 * workers + servers) + server
        return cls(
            capacity=np.array(rates),
            first_link=np.concatenate((worker, egress)),
            second_link=np.concatenate((ingress, workers + worker)),
            local=np.tile(exchange.colocated & (worker == server), 2),
            num_servers=servers,
            pace=float(exchange.pace_bytes_per_s(workers)),
            round_trip_s=float(exchange.round_trip_s),
        )
