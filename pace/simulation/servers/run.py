"""Runs windows of all workers under a policy, in any consistency."""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from pace.documents.cluster import Cluster, Consistency
from pace.documents.profile import Profile
from pace.errors import InvalidCluster, InvalidOptions
from pace.jitter import jittered_durations
from pace.planning.servers.problem import ServersProblem
from pace.simulation.servers.traffic import ServersPolicy, ServersTraffic, gates, ranks
from pace.solver.arrays import FloatArray, IntArray

# A worker that may be so many windows ahead waits for nobody.
UNBOUNDED = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersSimulation:
    """What simulated windows took.

    Attributes
    ----------
    window_ends_s : array of shape (windows, workers)
        When each worker ended each of its windows, in seconds from the start of the first.
    push_starts_s, push_ends_s, pull_starts_s, pull_ends_s : arrays of shape (windows, workers, parts)
        When each partition was on its way.
    traffic
        The partitions.
    consistency
        As it was simulated.
    """

    window_ends_s: FloatArray
    push_starts_s: FloatArray
    push_ends_s: FloatArray
    pull_starts_s: FloatArray
    pull_ends_s: FloatArray
    traffic: ServersTraffic
    consistency: Consistency = "sync"

    @property
    def iterations_s(self) -> FloatArray:
        """Time from one window's end on the slowest worker to the next one's."""
        return np.diff(self.window_ends_s.max(axis=1), prepend=0.0)

    @property
    def iteration_s(self) -> float:
        """Mean time of a window: of the slowest worker, which the others wait for, or of all if none waits.

        In async mode: the inverse of the mean rate of all workers.
        """
        windows, workers = self.window_ends_s.shape
        last = self.window_ends_s[-1]
        if self.consistency == "sync":
            # A worker beside a server that holds much has its sums first, but is not faster in the long run.
            return float(last.max() / windows)
        return float(workers / (windows / last).sum()) if last.all() else 0.0

    @property
    def straggler_share(self) -> float:
        """TicTac's straggler effect: the longest wait of any worker for the slowest, over the window."""
        waits = self.window_ends_s.max(axis=1) - self.window_ends_s.min(axis=1)
        return float((waits / self.iterations_s).mean())

    @property
    def lead(self) -> int:
        """Most windows by which a worker had gone ahead of the slowest."""
        ahead = 0
        for number, ends in enumerate(self.window_ends_s):
            for worker in range(self.window_ends_s.shape[1]):
                done = (self.window_ends_s <= ends[worker]).sum(axis=0)
                ahead = max(ahead, number + 1 - int(done.min()))
        return ahead


def run_server_policy(
    profile: Profile,
    cluster: Cluster,
    policy: ServersPolicy,
    *,
    iterations: int = 1,
    jitter: float = 0.0,
    seed: int = 0,
    consistency: Consistency = "sync",
    staleness: int | None = None,
) -> ServersSimulation:
    """Simulate `iterations` windows of all workers, one after another without a pause between.

    Parameters
    ----------
    jitter
        Relative standard deviation of op durations, drawn anew for every worker and window; lognormal.
    seed
        Same seed, same windows. Policies that are compared under one seed see the same durations.
    consistency
        "sync": a pull waits for all workers' pushes. "async": a server answers every push at once.
    staleness
        A pull at a worker's clock k waits until the slowest worker has pushed at clock k - staleness; 0 is
        "sync".

    Raises
    ------
    InvalidOptions, InvalidCluster
        If a number is out of range, or the cluster does not fit the profile.
    """
    if iterations < 1:
        raise InvalidOptions(f"iterations is {iterations}: expected at least 1")
    if not 0 <= jitter <= 10:
        raise InvalidOptions(f"jitter is {jitter}: expected 0 to 10")
    if staleness is not None and (staleness < 0 or consistency != "sync"):
        raise InvalidOptions(
            f"staleness {staleness} in {consistency} mode: expected at least 0, in sync mode"
        )
    traffic = policy.traffic(profile, cluster)
    rules = traffic.rules
    behind = UNBOUNDED if consistency == "async" else staleness or 0
    if rules.step_barrier and behind:
        raise InvalidOptions("a policy with a barrier at every step has no stale pulls: use sync mode")
    problem = ServersProblem.of(profile, cluster)
    dag = WindowDag.of(profile, traffic)
    push_work, pull_work = _work(problem, traffic)
    exchange = cluster.exchange
    workers, servers = profile.workers, exchange.servers
    parts = len(traffic.server)
    window_ends = np.zeros((iterations, workers))
    times = np.zeros((iterations, workers, parts, 4))
    pull_rank = ranks(traffic.pull_priority)[None, None]
    if traffic.shuffled:
        random = np.random.default_rng(seed + 1)
        keys = random.random((iterations, workers, parts)).argsort(axis=2)
        pull_rank = keys.argsort(axis=2).astype(np.int64)
    from pace.simulation.servers import kernel

    done = kernel.run(
        _durations(profile, jitter, iterations, seed),
        dag.successors,
        dag.first_successor,
        dag.num_predecessors,
        dag.op_groups,
        dag.first_op_group,
        dag.group_producers,
        dag.waiters,
        dag.first_waiter,
        dag.first_part,
        traffic.server,
        traffic.sizes,
        push_work,
        pull_work,
        ranks(traffic.push_priority)[None, None],
        pull_rank,
        gates(traffic.push_priority, traffic.server),
        gates(traffic.pull_priority, traffic.server),
        _capacities(cluster, workers),
        servers,
        exchange.colocated,
        float(rules.credit_bytes),
        rules.overshoots,
        rules.per_connection,
        exchange.round_trip_s if rules.acknowledged else 0.0,
        rules.until_pulled,
        rules.led,
        rules.push_in_order,
        rules.pull_in_order,
        rules.arrival_pushes,
        rules.arrival_pulls,
        rules.streams,
        rules.step_barrier,
        behind,
        exchange.round_trip_s,
        exchange.pace_bytes_per_s(workers) if rules.paced else np.inf,
        window_ends,
        times,
    )
    if done < iterations:
        raise InvalidCluster("the simulated workers wait for one another for ever")
    return ServersSimulation(
        window_ends_s=window_ends,
        push_starts_s=times[..., 0],
        push_ends_s=times[..., 1],
        pull_starts_s=times[..., 2],
        pull_ends_s=times[..., 3],
        traffic=traffic,
        consistency=consistency,
    )


def _durations(profile: Profile, jitter: float, iterations: int, seed: int) -> FloatArray:
    shape = (iterations, profile.workers, len(profile.ops))
    if jitter == 0:
        return np.broadcast_to(profile.graph.durations_s, shape).copy()
    drawn = jittered_durations(profile, jitter=jitter, count=iterations * profile.workers, seed=seed)
    return drawn.reshape(shape)


def _work(problem: ServersProblem, traffic: ServersTraffic) -> tuple[FloatArray, FloatArray]:
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


def _capacities(cluster: Cluster, workers: int) -> FloatArray:
    """Return the links' rates: workers up, workers down, and dedicated servers in, servers out."""
    exchange = cluster.exchange
    own = [exchange.worker_bytes_per_s] * (2 * workers)
    if exchange.colocated:
        return np.array(own)
    return np.array(
        own + [exchange.server_bytes_per_s or exchange.worker_bytes_per_s] * (2 * exchange.servers)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDag:
    """One worker's window in the form that the compiled loop takes: ranges of flat lists.

    Ops and groups are numbered as in the profile and the traffic; `first_part` gives each group's partitions.
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
