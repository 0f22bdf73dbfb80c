"""Where workers and servers are: so many hosts, each with a worker, a server, a shard, or both."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.network.hosts import Host


@dataclass(frozen=True, slots=True)
class Layout:
    """Workers, and servers on hosts of their own or on the workers' hosts.

    Attributes
    ----------
    servers
        0 where gradients are all-reduced.
    colocated
        Whether a server runs on every worker's host.
    shards
        How many neighboring workers hold one replica of the model; they are joined directly.
    """

    workers: int
    servers: int = 0
    colocated: bool = False
    shards: int = 1

    def __str__(self) -> str:
        if self.shards > 1:
            return f"{self.workers // self.shards} replicas of {self.shards} shards"
        if self.colocated:
            return f"{self.workers} colocated"
        return f"{self.workers}+{self.servers}" if self.servers else f"{self.workers} workers"

    @property
    def num_hosts(self) -> int:
        """Number of hosts that the layout needs."""
        return self.workers if self.colocated else self.workers + self.servers

    @property
    def plain(self) -> bool:
        """Whether all hosts are workers with whole models."""
        return self.servers == 0 and self.shards == 1

    def split(self, on: Sequence[Host]) -> tuple[Sequence[Host], Sequence[Host]]:
        """Return the hosts of workers and of servers."""
        return (on, on) if self.colocated else (on[: self.workers], on[self.workers :])


def parse_layout(text: str) -> Layout:
    """Read "4", "4+1", "4c" or "2x4"; raises ValueError for anything else."""
    if text.endswith("c"):
        layout = Layout(int(text[:-1]), int(text[:-1]), colocated=True)
    elif "x" in text:
        replicas, shards = map(int, text.split("x"))
        layout = Layout(replicas * shards, shards=shards)
    else:
        workers, plus, servers = text.partition("+")
        layout = Layout(int(workers), int(servers) if plus else 0)
        if plus and layout.servers < 1:
            raise ValueError(f'"{text}": expected at least one server')
    if layout.shards < 1 or layout.workers < 2 * layout.shards:
        raise ValueError(f'"{text}": expected at least two workers, and at least two replicas')
    return layout
