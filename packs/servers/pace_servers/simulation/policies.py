"""The policies of the field on parameter servers, each with its authors' constants.

Placement of tensors and partitions in other systems is here, too: their keys, and each key's server.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.planning.fusion.problem import FusionProblem
from pace.simulation.grouped import cut_evenly
from pace.simulation.knobs import Bytes, SomeBytes, knobs
from pace.simulation.registry import PolicyEntry
from pace.simulation.tictac import TransferDag, tao, tio
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.least_bytes import least_loaded
from pace_servers.planning.optimize import plan_servers
from pace_servers.planning.problem import ServersProblem
from pace_servers.simulation.traffic import ServersRules, ServersTraffic

# MXNet's kvstore_dist.h: arrays above so many elements are split evenly over all servers.
MXNET_BIG_ELEMENTS = 1_000_000


def mxnet_parts(
    sizes: IntArray, element_bytes: IntArray, servers: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the tensor, bytes and server of MXNet's keys (kvstore_dist.h, EncodeDefaultKey).

    A small array is one key on server (key * 9973) mod servers; one above `MXNET_BIG_ELEMENTS` is split
    evenly over all servers.
    """
    tensors: list[int] = []
    parts: list[int] = []
    placed: list[int] = []
    for key, (size, element) in enumerate(zip(sizes.tolist(), element_bytes.tolist(), strict=True)):
        elements = size // element
        if elements < MXNET_BIG_ELEMENTS or servers == 1:
            tensors.append(key)
            parts.append(size)
            placed.append(key * 9973 % servers)
            continue
        for server in range(servers):
            begin, end = (round(elements / servers * at) for at in (server, server + 1))
            tensors.append(key)
            parts.append((end - begin) * element)
            placed.append(server)
    return _arrays(tensors, parts, placed)


def round_robin(count: int, servers: int) -> IntArray:
    """Place one after another, as TensorFlow's replica_device_setter does."""
    return np.arange(count, dtype=np.int64) % servers


def djb2_server(key: int, servers: int) -> int:
    """Return BytePS's server of a key: Bernstein's hash of its decimal digits (global.cc, Hash_DJB2)."""
    found = 5381
    for character in str(key):
        found = (found * 33 + ord(character)) & 0xFFFFFFFFFFFFFFFF
    return found % servers


def byteps_keys(tensor_parts: IntArray, servers: int) -> IntArray:
    """Return the server of every part: key = (tensor << 16) + part, hashed (operations.cc, InitTensor)."""
    seen: dict[int, int] = {}
    placed = np.empty(len(tensor_parts), dtype=np.int64)
    for number, tensor in enumerate(tensor_parts.tolist()):
        part = seen.get(tensor, 0)
        seen[tensor] = part + 1
        placed[number] = djb2_server((tensor << 16) + part, servers)
    return placed


def _arrays(*lists: list[int]) -> tuple[IntArray, IntArray, IntArray]:
    first, second, third = (np.array(each, dtype=np.int64) for each in lists)
    return first, second, third


def _sent(problem: FusionProblem) -> IntArray:
    """Return the gradients with bytes in the order in which they become ready: that of their keys."""
    return problem.sent_by_ready()


def _traffic(
    gradients: IntArray,
    parts: tuple[IntArray, IntArray, IntArray],
    rules: ServersRules,
    priority: FloatArray,
    *,
    shuffled: bool = False,
) -> ServersTraffic:
    """Return the traffic of single gradients, `parts` their numbers among those, bytes and servers."""
    tensors, sizes, server = parts
    return ServersTraffic(
        groups=tuple((int(gradient),) for gradient in gradients),
        part_groups=tensors,
        server=server,
        sizes=sizes,
        push_priority=priority,
        pull_priority=priority,
        rules=rules,
        shuffled=shuffled,
    )


def _by_layer(problem: FusionProblem, gradients: IntArray) -> FloatArray:
    """Return every gradient's place by layer from the input: the longest tail first."""
    place = np.empty(len(gradients))
    place[np.lexsort((-problem.ready[gradients], -problem.tail[gradients]))] = np.arange(len(gradients))
    return place


@knobs
class FifoOnServers:
    """First ready, first pushed; first summed, first pulled.

    Attributes
    ----------
    keys
        "mxnet": arrays of over 10^6 elements split evenly over all servers, others by key; "round-robin":
        whole; "parts": equal parts of `partition_bytes`, each on the server with least bytes.
    """

    keys: Literal["mxnet", "round-robin", "parts"] = "mxnet"
    partition_bytes: SomeBytes = 4_000_000
    barrier: bool = False

    def traffic(self, profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Cut as the system does; everything is handed over at once."""
        problem = FusionProblem.of(profile)
        gradients = _sent(problem)
        sizes, elements = problem.sizes[gradients], problem.element_bytes[gradients]
        servers = cluster.exchange.servers
        if self.keys == "mxnet":
            parts = mxnet_parts(sizes, elements, servers)
        elif self.keys == "round-robin":
            every = np.arange(len(gradients), dtype=np.int64)
            parts = (every, sizes, round_robin(len(gradients), servers))
        else:
            tensors, cut = cut_evenly(sizes, elements, self.partition_bytes)
            parts = (tensors, cut, least_loaded(cut, servers))
        rules = ServersRules(
            credit_bytes=np.inf, arrival_pushes=True, arrival_pulls=True, barrier=self.barrier
        )
        return _traffic(gradients, parts, rules, np.arange(len(parts[0]), dtype=np.float64))


@knobs
class PartitionedOnServers:
    """Parts by layer from the input, so many bytes handed over: ByteScheduler (2019) and P3 (2019).

    Attributes
    ----------
    partition_bytes, credit_bytes
        ByteScheduler's code: 1e6 and 4e6 parameters of 4 bytes.
    admission
        "code": while any credit is left; "paper": Algorithm 1, when the credit covers the whole part.
    credit_of
        Whether all of a worker's connections share the credit, or each has one.
    lead
        "each": every worker decides (the paper); "first": worker 0 does, the others follow it (the released
        code).
    servers
        Whether servers answer by layer too, or in the order in which sums are complete.
    """

    partition_bytes: SomeBytes = 4_000_000
    credit_bytes: Bytes = 16_000_000
    admission: Literal["code", "paper"] = "code"
    credit_of: Literal["worker", "connection"] = "worker"
    lead: Literal["each", "first"] = "each"
    servers: Literal["priority", "arrival"] = "priority"
    acknowledged: bool = False
    barrier: bool = False

    def traffic(self, profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Cut gradients, place parts by least bytes and rank them by layer."""
        problem = FusionProblem.of(profile)
        gradients = _sent(problem)
        tensors, sizes = cut_evenly(
            problem.sizes[gradients], problem.element_bytes[gradients], self.partition_bytes
        )
        rules = ServersRules(
            credit_bytes=float(self.credit_bytes),
            overshoots=self.admission == "code",
            per_connection=self.credit_of == "connection",
            acknowledged=self.acknowledged,
            led=self.lead == "first",
            arrival_pulls=self.servers == "arrival",
            barrier=self.barrier,
        )
        priority = _by_layer(problem, gradients)[tensors] if len(tensors) else np.zeros(0)
        parts = (tensors, sizes, least_loaded(sizes, cluster.exchange.servers))
        return _traffic(gradients, parts, rules, priority)


@knobs
class BytePs:
    """BytePS (last release 0.2.5): parts of 4,096,000 bytes, hashed to servers, in the order of readiness.

    Attributes
    ----------
    scheduling
        Whether parts go by layer with `credit_bytes` in flight (BYTEPS_SCHEDULING_CREDIT); off by default.
    """

    partition_bytes: SomeBytes = 4_096_000
    scheduling: bool = False
    credit_bytes: Bytes = 16_384_000

    def traffic(self, profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Cut gradients and hash the keys of their parts."""
        problem = FusionProblem.of(profile)
        gradients = _sent(problem)
        tensors, sizes = cut_evenly(
            problem.sizes[gradients], problem.element_bytes[gradients], self.partition_bytes
        )
        rules = ServersRules(
            credit_bytes=float(self.credit_bytes) if self.scheduling else np.inf,
            overshoots=True,
            per_connection=False,
            arrival_pushes=not self.scheduling,
            arrival_pulls=True,
        )
        priority = _by_layer(problem, gradients)[tensors] if len(tensors) else np.zeros(0)
        return _traffic(
            gradients, (tensors, sizes, byteps_keys(tensors, cluster.exchange.servers)), rules, priority
        )


@knobs
class TicTacOnServers:
    """TicTac (MLSys 2019): whole tensors, all pulled at the start of a step, in one order for all workers.

    Attributes
    ----------
    order
        "tio" or "tao"; "random": no order is enforced, as in TensorFlow without TicTac.
    streams
        Messages that gRPC interleaves on one channel.
    barrier
        Whether pulls start when all workers have pushed everything, as in TensorFlow. Else a tensor may be
        pulled once it is summed, and of those that wait the first in the order goes first.
    """

    order: Literal["tio", "tao", "random"] = "tao"
    streams: SomeBytes = 1
    barrier: bool = True

    def traffic(self, profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Rank the pulls; the servers' gates hold each back until its number has come."""
        problem = FusionProblem.of(profile)
        gradients = _sent(problem)
        if self.order == "random":
            priority = np.arange(len(gradients), dtype=np.float64)
        else:
            exchange = ServersProblem.of(profile, cluster)
            dag = TransferDag.of(profile)
            timed = replace(dag, transfer_s=exchange.plain.cost(problem.sizes))
            priority = {"tio": tio, "tao": tao}[self.order](timed)[gradients]
        rules = ServersRules(
            credit_bytes=np.inf,
            arrival_pushes=True,
            pull_in_order=self.order != "random" and self.barrier,
            streams=self.streams,
            step_barrier=self.barrier,
        )
        every = np.arange(len(gradients), dtype=np.int64)
        parts = (
            every,
            problem.sizes[gradients],
            least_loaded(problem.sizes[gradients], cluster.exchange.servers),
        )
        return _traffic(gradients, parts, rules, priority, shuffled=self.order == "random")


@knobs
class PlannedOnServers:
    """Our own plans, one part at a time on each connection.

    Attributes
    ----------
    order
        "overtake": a free connection takes the waiting part that is planned first; "static": it waits for
        the one that is planned next; "by-layer": every worker and server goes by longest tail.
    paced
        Whether each connection keeps to its share of the links.
    """

    order: Literal["overtake", "static", "by-layer"] = "overtake"
    partition_bytes: Bytes = 0
    paced: bool = False

    def traffic(self, profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Plan for the profile and the cluster; parts of 0 bytes mean that their size is searched for."""
        problem = ServersProblem.of(profile, cluster)
        plan, _ = plan_servers(problem, Options(partition_bytes=self.partition_bytes or None))
        by_group = np.argsort(plan.groups, kind="stable")
        sent, groups = np.unique(plan.groups[by_group], return_inverse=True)
        sizes = (plan.elements * plan.buffers.element_bytes[plan.groups])[by_group]
        position = by_group.astype(np.float64)
        tails = -plan.buffers.tail[plan.groups][by_group]
        priority = tails if self.order == "by-layer" else position
        strict = self.order == "static"
        return ServersTraffic(
            groups=tuple(plan.partition[group] for group in sent.tolist()),
            part_groups=groups.astype(np.int64),
            server=plan.segments.server[by_group],
            sizes=sizes,
            push_priority=priority,
            pull_priority=priority,
            rules=ServersRules(push_in_order=strict, pull_in_order=strict, paced=self.paced),
        )


POLICIES: tuple[tuple[str, PolicyEntry], ...] = (
    (
        "fifo",
        PolicyEntry(
            kind=FifoOnServers,
            rule="First ready, first pushed; first summed, first pulled; large arrays are split as in MXNet",
            exchange="servers",
        ),
    ),
    (
        "tio",
        PolicyEntry(
            kind=TicTacOnServers,
            rule="Whole tensors in TicTac's order from the graph alone; pulled at the next step, or without "
            "a barrier once summed",
            exchange="servers",
            fixed={"order": "tio"},
        ),
    ),
    (
        "tao",
        PolicyEntry(
            kind=TicTacOnServers,
            rule="As `tio`, with the order from measured times",
            exchange="servers",
            fixed={"order": "tao"},
        ),
    ),
    (
        # Upstream MXNet's slices of 40,000 parameters, the next to a server when the last has been
        # acknowledged.
        "p3",
        PolicyEntry(
            kind=PartitionedOnServers,
            rule="Slices of 160 kB by layer, one at a time to each server",
            exchange="servers",
            preset={
                "partition_bytes": 160_000,
                "credit_bytes": 0,
                "admission": "paper",
                "credit_of": "connection",
                "acknowledged": True,
            },
        ),
    ),
    (
        "bytescheduler",
        PolicyEntry(
            kind=PartitionedOnServers,
            rule="Parts of 4 MB by layer, with a credit of 16 MB",
            exchange="servers",
        ),
    ),
    (
        "byteps",
        PolicyEntry(kind=BytePs, rule="Parts of 4,096,000 bytes, hashed to servers", exchange="servers"),
    ),
    ("pace", PolicyEntry(kind=PlannedOnServers, rule="PACE's plan", exchange="servers")),
)
