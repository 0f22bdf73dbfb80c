"""What communication costs on a layout's hosts, measured by the runtime's own tools."""

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.harness.contenders import Backend
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import PATIENCE_S, join, join_horovod, join_torch, serve
from benchmarks.harness.network.processes import Answer, answering, ranks
from pace.documents.collective_costs import SampledAllReduce, SampledHalf
from pace.runtime.capture.allreduce_cost import CollectiveName
from pace.runtime.capture.self_profile import TransportNetwork
from pace.runtime.profiler import (
    AllReduceMeasurement,
    horovod_network,
    measure_allreduce,
    torch_network,
)
from pace.runtime.transports.gloo import GlooTransport

_PORT = 19000
_LARGEST_BYTES = 4 << 20


def capture_cost(
    on: Sequence[Host], backend: Backend, *, largest_bytes: int = _LARGEST_BYTES, shards: int = 1
) -> SampledAllReduce:
    """Time all-reduces between these hosts and return what they cost.

    Beyond `largest_bytes` the cost goes on with its last slope, which is the network's rate. With `shards`,
    over torch, the hosts that hold the same shard all-reduce among them, those of all shards at once.
    """
    measured: AllReduceMeasurement = _measured(on, backend, "allreduce", largest_bytes, 1.5, shards)
    return measured.document


def capture_halves(on: Sequence[Host], backend: Backend) -> tuple[SampledHalf, SampledHalf]:
    """Time reduce-scatters and all-gathers as PACE's transports make them; return what they cost."""
    first, second = _measured(on, backend, "halves", _LARGEST_BYTES, 1.0)
    return first.half, second.half


def _measured(on: Sequence[Host], backend: Backend, request: str, *arguments: Any) -> Any:
    with ranks(f"{request} over {backend}", on, _main, on, backend) as group:
        port = next(port for port in group.ask("serve") if port)
        return group.ask(request, port, *arguments, timeout_s=600)[0]


class _MeasuringRank:
    """One rank that measures; its public methods are the requests it answers."""

    def __init__(self, rank: int, on: Sequence[Host], backend: Backend) -> None:
        self._rank, self._on, self._backend = rank, on, backend

    def serve(self) -> int:
        """Open what the others join, on rank 0; return its port."""
        return serve(self._rank, self._on, self._backend, _PORT)

    def allreduce(self, port: int, largest_bytes: int, seconds: float, shards: int) -> AllReduceMeasurement:
        """Measure all-reduces, one at a time: Horovod's fusion changes nothing but the wait for a cycle."""
        if self._backend == "torch":
            join_torch(self._rank, self._on, port)
            network = torch_network(self._same_shard(shards) if shards > 1 else None)
        else:
            import horovod.torch as hvd

            join_horovod(self._rank, self._on, port, hvd.init)
            network = horovod_network()
        return measure_allreduce(
            network, largest_bytes=largest_bytes, max_runs=20, max_seconds_per_size=seconds
        )

    def _same_shard(self, shards: int) -> Any:
        import torch.distributed as dist

        groups = [dist.new_group(list(range(first, len(self._on), shards))) for first in range(shards)]
        return groups[self._rank % shards]

    def halves(self, port: int, largest_bytes: int, seconds: float) -> list[AllReduceMeasurement]:
        """Measure reduce-scatters and all-gathers."""
        join(self._rank, self._on, self._backend, port)
        transport: Any
        if self._backend == "torch":
            transport = GlooTransport(timeout_s=PATIENCE_S)
        else:
            from pace.runtime.transports.horovod import HorovodTransport

            transport = HorovodTransport(timeout_s=PATIENCE_S)
        transport.open_halves()
        collectives: tuple[CollectiveName, ...] = ("reduce-scatter", "all-gather")
        found = [
            measure_allreduce(
                TransportNetwork(transport, torch.device("cpu"), timeout_s=PATIENCE_S, collective=collective),
                largest_bytes=largest_bytes,
                max_runs=20,
                max_seconds_per_size=seconds,
                pairs=False,
            )
            for collective in collectives
        ]
        transport.close(failed=False)
        return found


def _main(rank: int, on: Sequence[Host], backend: Backend) -> Answer:
    return answering(_MeasuringRank(rank, on, backend))
