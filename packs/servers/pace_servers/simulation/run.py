"""Runs windows of all workers under a policy, in any consistency."""

from dataclasses import dataclass

import numpy as np

from pace.counted import counted
from pace.documents.cluster import Cluster, Consistency
from pace.documents.profile import Profile
from pace.errors import InvalidCluster, InvalidOptions
from pace.jitter import jittered_durations
from pace.solver.arrays import FloatArray
from pace_servers.planning.problem import ServersProblem
from pace_servers.simulation.inputs import ServerLinks, ServerParts, WindowDag
from pace_servers.simulation.state import new_state
from pace_servers.simulation.traffic import ServersPolicy, ServersTraffic

# A worker that may be this many windows ahead never waits for others.
UNBOUNDED = 1 << 40
# Messages and ops take microseconds each, and everything takes memory.
MOST_SIMULATED = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersSimulation:
    """The times of simulated windows.

    Attributes
    ----------
    window_ends_s : array of shape (windows, workers)
        When each worker ended each of its windows, in seconds from the start of the first.
    push_starts_s, push_ends_s, pull_starts_s, pull_ends_s : arrays of shape (windows, workers, parts)
        When the push and the pull of each partition started and ended, in seconds.
    traffic
        The partitions.
    consistency
        The simulated consistency.
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
        """Seconds between the ends of successive windows on the slowest worker; of shape (windows,)."""
        return np.diff(self.window_ends_s.max(axis=1), prepend=0.0)

    @property
    def iteration_s(self) -> float:
        """Mean time of a window in seconds.

        In sync mode it is that of the slowest worker, for which the others wait. In async mode it is the
        inverse of the mean rate of all workers.
        """
        windows, workers = self.window_ends_s.shape
        last = self.window_ends_s[-1]
        if self.consistency == "sync":
            # A worker on the host of a server with many bytes gets sums first, but is not faster in the long
            # run.
            return float(last.max() / windows)
        return float(workers / (windows / last).sum()) if last.all() else 0.0

    @property
    def straggler_share(self) -> float:
        """TicTac's straggler effect: the longest wait for the slowest worker, as a share of the window."""
        waits = self.window_ends_s.max(axis=1) - self.window_ends_s.min(axis=1)
        return float((waits / self.iterations_s).mean())

    @property
    def lead(self) -> int:
        """The most windows by which a worker was ahead of the slowest."""
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
    """Simulate `iterations` windows of all workers, one after another without a pause.

    Parameters
    ----------
    iterations
        Number of windows.
    jitter
        Relative standard deviation of op durations. Durations are lognormal, drawn for every worker and
        window.
    seed
        The same seed gives the same windows, for all policies.
    consistency
        "sync": a pull waits for the pushes of all workers. "async": a server answers every push at once.
    staleness
        A pull of a worker in its window k waits until the slowest worker has pushed in window k - staleness.
        0 is the same as "sync" without it.

    Raises
    ------
    InvalidOptions
        If a number is out of range, or the options do not fit one another.
    InvalidCluster
        If the cluster does not fit the profile.
    """
    if iterations < 1:
        raise InvalidOptions(f"iterations is {iterations}: expected at least 1")
    if not 0 <= jitter <= 10:
        raise InvalidOptions(f"jitter is {jitter}: expected 0 to 10")
    if staleness is not None and (staleness < 0 or consistency != "sync"):
        raise InvalidOptions(
            f"staleness is {staleness} with consistency {consistency}: expected at least 0, and "
            "consistency sync"
        )
    servers = cluster.exchange.servers
    parts_at_most = servers * len(profile.gradients)
    if parts_at_most > MOST_SIMULATED:
        raise InvalidOptions(
            f"{counted(servers, 'server')} with {counted(len(profile.gradients), 'gradient')} make up to "
            f"{parts_at_most:,} parts, at most {MOST_SIMULATED:,} are simulated: choose fewer servers"
        )
    traffic = policy.traffic(profile, cluster)
    rules = traffic.rules
    behind = UNBOUNDED if consistency == "async" else staleness or 0
    if rules.step_barrier and behind:
        raise InvalidOptions(
            "a policy with a barrier at every step has no stale pulls: "
            "choose another policy, or let workers wait for one another"
        )
    workers = profile.workers
    parts = ServerParts.of(ServersProblem.of(profile, cluster), traffic, cluster.exchange.servers)
    work = iterations * workers * (len(traffic.server) + len(profile.ops)) + workers * servers
    if work > MOST_SIMULATED:
        raise InvalidOptions(
            f"{counted(iterations, 'iteration')} of {counted(workers, 'worker')} with "
            f"{counted(servers, 'server')} make {work:,} messages, ops and connections, at most "
            f"{MOST_SIMULATED:,} are simulated: choose fewer iterations, workers or servers, or larger parts"
        )
    window_ends = np.zeros((iterations, workers))
    times = np.zeros((iterations, workers, len(traffic.server), 4))
    if traffic.shuffled:
        random = np.random.default_rng(seed + 1)
        keys = random.random((iterations, workers, len(traffic.server))).argsort(axis=2)
        parts = parts._replace(pull_rank=keys.argsort(axis=2).astype(np.int64))
    from pace_servers.simulation import kernel

    durations = _durations(profile, jitter, iterations, seed)
    dag, links = WindowDag.of(profile, traffic), ServerLinks.of(cluster, workers, rules.streams)
    rules = rules._replace(credit_bytes=float(rules.credit_bytes))
    state = new_state((iterations, workers, len(profile.ops)), dag, parts, links, rules)
    done = kernel.run(durations, dag, parts, links, rules, behind, state, window_ends, times)
    if done < iterations:
        raise InvalidCluster("the simulated workers wait for one another forever: change the cluster")
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
