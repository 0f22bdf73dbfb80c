"""What communication costs on a layout's hosts, measured by the runtime's own tools."""

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.harness.contenders import Backend
from benchmarks.harness.layouts import Layout
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import PATIENCE_S, join_horovod, join_torch, serve_horovod
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.harness.training.over_servers import TOKEN
from pace.documents.cluster import Cluster
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.half_costs import SampledHalf
from pace.documents.push_pull import PushPull
from pace.runtime.capture.allreduce_cost import Collective
from pace.runtime.capture.self_profile import TransportNetwork
from pace.runtime.parameter_server.measure import measure_links
from pace.runtime.parameter_server.options import read_options
from pace.runtime.parameter_server.server import Server
from pace.runtime.profiler import AllReduceMeasurement, measure_allreduce

_PORT = 19000
_SERVERS_PORT = 19100


def capture_cost(
    on: Sequence[Host], backend: Backend, *, largest_bytes: int = 4 << 20, seconds_per_size: float = 1.5
) -> SampledAllReduce:
    """Time all-reduces between these hosts and return what they cost.

    Beyond `largest_bytes` the cost goes on with its last slope, which is the network's rate.
    """
    with ranks(f"cost over {backend}", on, _main, on, backend) as group:
        port = next(port for port in group.ask("serve") if port)
        measured: list[AllReduceMeasurement] = group.ask(
            "measure", port, largest_bytes, seconds_per_size, timeout_s=600
        )
    return measured[0].document


def capture_halves(
    on: Sequence[Host], backend: Backend, *, largest_bytes: int = 4 << 20, seconds_per_size: float = 1.0
) -> tuple[SampledHalf, SampledHalf]:
    """Time reduce-scatters and all-gathers as PACE's transports make them; return what they cost."""
    with ranks(f"halves over {backend}", on, _main, on, backend) as group:
        port = next(port for port in group.ask("serve") if port)
        measured: list[list[AllReduceMeasurement]] = group.ask(
            "measure_halves", port, largest_bytes, seconds_per_size, timeout_s=600
        )
    first, second = (each.half for each in measured[0])
    return first, second


def _measure_halves(
    rank: int, on: Sequence[Host], backend: Backend, port: int, largest_bytes: int, seconds: float
) -> list[AllReduceMeasurement]:
    transport: Any
    if backend == "torch":
        from pace.runtime.transports.gloo import GlooTransport

        join_torch(rank, on, port)
        transport = GlooTransport(timeout_s=PATIENCE_S)
    else:
        import pace.runtime.horovod
        from pace.runtime.transports.horovod import HorovodTransport

        join_horovod(rank, on, port, pace.runtime.horovod.init)
        transport = HorovodTransport(timeout_s=PATIENCE_S)
    transport.open_halves()
    collectives: tuple[Collective, ...] = ("reduce-scatter", "all-gather")
    found = []
    for collective in collectives:
        network = TransportNetwork(
            transport, torch.device("cpu"), timeout_s=PATIENCE_S, collective=collective
        )
        found.append(
            measure_allreduce(
                network, largest_bytes=largest_bytes, max_runs=20, max_seconds_per_size=seconds, pairs=False
            )
        )
    transport.close(failed=False)
    return found


def _main(rank: int, on: Sequence[Host], backend: Backend) -> Answer:
    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "serve":
            if backend == "torch":
                return _PORT
            return serve_horovod(on) if rank == 0 else 0
        if request == "measure_halves":
            return _measure_halves(rank, on, backend, *arguments)
        port, largest_bytes, seconds = arguments
        if backend == "torch":
            from pace.runtime.profiler import torch_network

            join_torch(rank, on, port)
            network = torch_network()
        else:
            import horovod.torch as hvd

            from pace.runtime.profiler import horovod_network

            # One size at a time is in flight, so fusion and cycles change nothing but the wait for a cycle.
            join_horovod(rank, on, port, hvd.init)
            network = horovod_network()
        return measure_allreduce(
            network, largest_bytes=largest_bytes, max_runs=20, max_seconds_per_size=seconds
        )

    return answer


def measure_cluster(on: Sequence[Host], layout: Layout) -> Cluster:
    """Measure links from the first worker alone, against all servers that are on other hosts."""
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
    server = Server(others[rank].address, _SERVERS_PORT, token=TOKEN)
    return lambda _request, _arguments: server.port


def _measuring(_rank: int, others: Sequence[Host]) -> Answer:
    options = read_options([f"{host.address}:{_SERVERS_PORT}" for host in others], TOKEN)
    return lambda _request, _arguments: measure_links(options, size_bytes=4 << 20, repeats=5)
