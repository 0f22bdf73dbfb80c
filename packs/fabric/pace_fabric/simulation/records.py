"""Results of a simulated run: its commit log, and the traffic."""

from dataclasses import dataclass, field

import numpy as np

from pace.solver.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """One update in the commit log.

    Attributes
    ----------
    version
        Version of the model just before the commit.
    from_version
        Version that the update was computed from.
    num_updates
        How many workers' updates it stands for.
    planned_s, at_s
        When it was to be committed, and when it was.
    weight
        Factor on the update.
    """

    worker: int
    version: int
    from_version: int
    num_updates: int
    planned_s: float
    at_s: float
    weight: float = 1.0

    @property
    def delay(self) -> int:
        """Versions between the model it was computed from and its commit."""
        return self.version - self.from_version


@dataclass(kw_only=True)
class FabricRun:
    """A simulated run.

    Attributes
    ----------
    computed
        How many workers' updates were computed, dropped ones included.
    dropped
        Number of dropped workers' updates of each sender.
    rounds_s
        Ends of iterations, for policies that have some.
    messages, slow_messages
        Transfers of updates, and how many of them went to a host whose way down was slow then.
    server_bytes, replica_bytes
        Received by the server, and by the replica.
    """

    policy: str
    duration_s: float
    num_workers: int
    commits: list[CommitRecord] = field(default_factory=list)
    computed: int = 0
    dropped: dict[int, int] = field(default_factory=dict)
    rounds_s: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    messages: int = 0
    slow_messages: int = 0
    server_bytes: float = 0.0
    replica_bytes: float = 0.0

    @property
    def num_committed(self) -> int:
        """How many workers' updates were committed."""
        return sum(commit.num_updates for commit in self.commits)

    @property
    def num_dropped(self) -> int:
        """How many workers' updates were dropped."""
        return sum(self.dropped.values())

    @property
    def iteration_s(self) -> float:
        """Seconds for as many commits as there are workers; infinity if there are none."""
        return self.num_workers * self.duration_s / self.num_committed if self.num_committed else np.inf

    @property
    def computed_iteration_s(self) -> float:
        """Seconds for as many computed updates as there are workers, whatever becomes of them."""
        return self.num_workers * self.duration_s / self.computed if self.computed else np.inf

    @property
    def drop_rate(self) -> float:
        """Share of the committed and dropped updates that was dropped."""
        both = self.num_dropped + self.num_committed
        return self.num_dropped / both if both else 0.0

    @property
    def delays(self) -> FloatArray:
        """Delay of every commit."""
        return np.array([commit.delay for commit in self.commits], dtype=float)

    def to_document(self) -> dict[str, float | int | str]:
        """Return the run's numbers as JSON."""
        delays = self.delays
        return {
            "policy": self.policy,
            "duration_s": self.duration_s,
            "commits": self.num_committed,
            "commits_per_s": self.num_committed / self.duration_s,
            "iteration_s": self.iteration_s if self.num_committed else -1.0,
            "dropped": self.num_dropped,
            "drop_rate": self.drop_rate,
            "mean_delay": float(delays.mean()) if len(delays) else 0.0,
            "max_delay": int(delays.max()) if len(delays) else 0,
            "server_bytes": self.server_bytes,
            "replica_bytes": self.replica_bytes,
            "mean_batch": float(np.mean(self.batch_sizes)) if self.batch_sizes else 0.0,
        }
