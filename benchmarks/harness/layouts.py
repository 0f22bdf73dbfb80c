"""Where workers and servers are, and what the links between them can do, by the runtime's tool."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.processes import Answer, ranks
from pace.documents.cluster import Cluster
from pace.documents.push_pull import PushPull
from pace.runtime.parameter_server.measure import measure_links
from pace.runtime.parameter_server.options import read_options
from pace.runtime.parameter_server.server import Server

TOKEN = "testbed"
MEASURING_PORT = 19100


@dataclass(frozen=True, slots=True)
class Layout:
    """So many workers and servers, on hosts of their own or with a server on every worker's host."""

    workers: int
    servers: int
    colocated: bool = False

    def __str__(self) -> str:
        return f"{self.workers} colocated" if self.colocated else f"{self.workers}+{self.servers}"

    @property
    def num_hosts(self) -> int:
        """How many hosts it needs."""
        return self.workers if self.colocated else self.workers + self.servers

    def split(self, on: Sequence[Host]) -> tuple[Sequence[Host], Sequence[Host]]:
        """Return the hosts of workers and of servers."""
        return (on, on) if self.colocated else (on[: self.workers], on[self.workers :])

    def pacing(self, cost: PushPull) -> float:
        """Return the rate of a paced connection in bytes per second."""
        return cost.pace_bytes_per_s(self.workers)


def parse_layout(text: str) -> Layout:
    """Read "4+1" or "4c"; raises ValueError for anything else."""
    if text.endswith("c"):
        workers = servers = int(text[:-1])
    else:
        workers, servers = map(int, text.split("+"))
    if workers < 2 or servers < 1:
        raise ValueError(f'"{text}": at least two workers and a server are needed')
    return Layout(workers, servers, text.endswith("c"))


def measure_cluster(on: Sequence[Host], layout: Layout) -> Cluster:
    """Measure from the first worker alone, against as many servers as there are on other hosts."""
    others = on[1:] if layout.colocated else layout.split(on)[1]
    with (
        ranks("servers", others, _serving, others) as servers,
        ranks("measuring", on[:1], _measuring, others) as worker,
        servers.awake(),
    ):
        (measured,) = worker.ask("measure")
    cost: PushPull = measured.cost()
    return Cluster(
        name=f"testbed, {layout}",
        exchange=cost.model_copy(update={"servers": layout.servers, "colocated": layout.colocated}),
    )


def _serving(rank: int, others: Sequence[Host]) -> Answer:
    server = Server(others[rank].address, MEASURING_PORT, token=TOKEN)
    return lambda _request, _arguments: server.port


def _measuring(_rank: int, others: Sequence[Host]) -> Answer:
    options = read_options([f"{host.address}:{MEASURING_PORT}" for host in others], TOKEN)
    return lambda _request, _arguments: measure_links(options, size_bytes=4 << 20, repeats=5)
