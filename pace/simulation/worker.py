"""A worker's DAG with several channels, as TicTac schedules it: compute ops, recv and send ops, resources.

Profiles describe windows with one network; this is for what else TicTac's orders and metrics are
defined on: a parameter server's worker, whose recv ops wait for nothing and whose send ops nothing waits for,
and the toy models of the paper.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pace.documents.profile import Profile
from pace.errors import InvalidProfile
from pace.simulation.tictac import TransferDag, ordering_efficiency
from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.least_bytes import least_bytes_servers


@dataclass(frozen=True, kw_only=True)
class WorkerDag:
    """Ops in a topological order, each on one resource that runs one op at a time.

    Attributes
    ----------
    names : tuple of str
        Names of the ops.
    duration_s : array of shape (num_ops,)
        Seconds.
    resources : integer array of shape (num_ops,)
        The resource that runs each op: a device or a channel.
    predecessors : tuple of tuples of int
        The ops that end before each one starts; their numbers are smaller.
    recvs : tuple of int
        The transfers that an order ranks.
    """

    names: tuple[str, ...]
    duration_s: FloatArray
    resources: IntArray
    predecessors: tuple[tuple[int, ...], ...]
    recvs: tuple[int, ...]

    def __post_init__(self) -> None:
        for op, before in enumerate(self.predecessors):
            if any(previous >= op for previous in before):
                raise InvalidProfile(f'op "{self.names[op]}" comes before an op that it waits for')

    @cached_property
    def transfers(self) -> TransferDag:
        """What TIO and TAO look at: every op that waits for a recv op, ancestors' recvs included."""
        column = {op: number for number, op in enumerate(self.recvs)}
        waits: BoolArray = np.zeros((len(self.names), len(column)), dtype=bool)
        for op, before in enumerate(self.predecessors):
            for previous in before:
                np.logical_or(waits[op], waits[previous], out=waits[op])
                if previous in column:
                    waits[op, column[previous]] = True
        waiting: BoolArray = np.asarray(waits.any(axis=1))
        waiting[list(self.recvs)] = False
        return TransferDag(
            transfer_s=self.duration_s[list(self.recvs)],
            op_s=self.duration_s[waiting],
            waits=waits[waiting],
            channels=self.resources[list(self.recvs)],
        )

    @cached_property
    def _successors(self) -> tuple[IntArray, IntArray, IntArray]:
        after: list[list[int]] = [[] for _ in self.names]
        for op, before in enumerate(self.predecessors):
            for previous in before:
                after[previous].append(op)
        first = np.concatenate(([0], np.cumsum([len(ops) for ops in after]))).astype(np.int64)
        counts = np.array([len(before) for before in self.predecessors], dtype=np.int64)
        return np.array([op for ops in after for op in ops], dtype=np.int64), first, counts


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRun:
    """When every op ran, in seconds, and when the last one ended."""

    starts_s: FloatArray
    ends_s: FloatArray
    makespan_s: float
    efficiency: float


def run_worker(
    dag: WorkerDag, priority: FloatArray | None = None, *, durations_s: FloatArray | None = None
) -> WorkerRun:
    """Run a worker's ops, each resource serving what is released in order of priority.

    Parameters
    ----------
    priority : array of shape (num_recvs,)
        Rank of every recv op on its channel, smaller first; None for the order of the ops. Other ops go in
        the order of the ops.
    durations_s : array of shape (num_ops,)
        Durations of this run; the DAG's if left out.
    """
    from pace.simulation import kernels

    durations = dag.duration_s if durations_s is None else durations_s
    rank = np.arange(len(dag.names), dtype=np.float64)
    if priority is not None:
        rank[list(dag.recvs)] = priority
    starts, ends = np.empty(len(rank)), np.empty(len(rank))
    num_resources = int(dag.resources.max(initial=-1)) + 1
    ran = kernels.run_worker(
        durations,
        dag.resources,
        np.argsort(rank, kind="stable"),
        *dag._successors,
        num_resources,
        starts,
        ends,
    )
    assert ran == len(rank)
    makespan = float(ends.max(initial=0.0))
    busy = np.bincount(dag.resources, weights=durations, minlength=num_resources)
    return WorkerRun(
        starts_s=starts, ends_s=ends, makespan_s=makespan, efficiency=ordering_efficiency(busy, makespan)
    )


def parameter_server_worker(profile: Profile, *, servers: int, transfer: CostCurve) -> WorkerDag:
    """Return the DAG of a parameter server's worker that computes what a profile's window computes.

    Recv ops are leaves: one for each gradient's parameters, which the ops that wait for the gradient wait
    for. The forward pass comes first, then the backward pass, then a send op as soon as each gradient is
    there; nothing waits for a send op. Parameters are spread over servers by least bytes so far, and each
    server has one channel in and one out; `transfer` is what one costs.
    """
    graph = profile.graph
    forward = np.array([bool(op.waits_for) for op in profile.ops])
    for number in graph.order:
        forward[number] |= any(forward[before] for before in graph.predecessors[number])
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    server_of = least_bytes_servers(sizes, servers)
    moving = transfer(sizes).tolist() if sizes else []
    names = [f"recv/{gradient.name}" for gradient in profile.gradients]
    durations = list(moving)
    resources = [1 + server for server in server_of]
    predecessors: list[tuple[int, ...]] = [()] * len(names)
    index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
    place: dict[int, int] = {}
    in_order = [op for op in graph.order if forward[op]] + [op for op in graph.order if not forward[op]]
    for op in in_order:
        before = [place[other] for other in graph.predecessors[op] if forward[other] == forward[op]]
        if forward[op]:
            before += [index[name] for name in profile.ops[op].waits_for]
        elif not before:
            # A backward pass starts from the loss: behind every forward op that nothing else follows.
            before = _without_followers(graph.predecessors, forward, place)
        place[op] = len(names)
        names.append(profile.ops[op].name)
        durations.append(profile.ops[op].duration_s)
        resources.append(0)
        predecessors.append(tuple(before))
    for number, gradient in enumerate(profile.gradients):
        names.append(f"send/{gradient.name}")
        durations.append(moving[number])
        resources.append(1 + servers + server_of[number])
        predecessors.append((place[profile.producers[number]],))
    return WorkerDag(
        names=tuple(names),
        duration_s=np.array(durations),
        resources=np.array(resources, dtype=np.int64),
        predecessors=tuple(predecessors),
        recvs=tuple(range(len(profile.gradients))),
    )


def _without_followers(
    predecessors: tuple[tuple[int, ...], ...], forward: BoolArray, place: dict[int, int]
) -> list[int]:
    followed = {before for op, several in enumerate(predecessors) if forward[op] for before in several}
    return [place[int(op)] for op in np.flatnonzero(forward) if int(op) not in followed]
