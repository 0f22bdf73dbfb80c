"""What an all-reduce costs on the testbed itself, over each backend, measured by the runtime's own tool."""

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.harness.contenders import Backend
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import PATIENCE_S, join_horovod, join_torch, serve_horovod
from benchmarks.harness.network.processes import Answer, ranks
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.half_costs import SampledHalf
from pace.runtime.capture.allreduce_cost import Collective
from pace.runtime.capture.self_profile import TransportNetwork
from pace.runtime.profiler import AllReduceMeasurement, measure_allreduce

_PORT = 19000


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
