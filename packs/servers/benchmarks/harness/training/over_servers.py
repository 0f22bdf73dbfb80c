"""Contenders over parameter servers: what their hosts run, and what links between them cost."""

import math
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness.contenders import RANDOM_ORDER, live_search
from benchmarks.harness.layouts import Layout
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import PATIENCE_S
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.harness.training.policy_wire import PolicyTransport, server_type
from pace.documents.cluster import Cluster
from pace.documents.push_pull import PushPull
from pace.runtime.entry_point import TrainingOptions, prepare
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.options import Plan
from pace_servers.runtime.measure import measure_links
from pace_servers.runtime.options import ParameterServers, complete_servers
from pace_servers.runtime.server import Server

if TYPE_CHECKING:
    from benchmarks.harness.training.trainer import Job

TOKEN = "testbed"
_SERVERS_PORT = 19100


def wrap(rank: int, job: "Job", optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Any:
    """Link a worker up with the servers and wrap its optimizer."""
    workers, hosts = job.layout.split(job.on)
    servers: Any = [f"{host.address}:{job.port}" for host in hosts]
    if job.layout.colocated:
        os.environ["PACE_SERVERS_HOST"] = workers[rank].address
        servers = "colocated"
    over = ParameterServers(
        servers=servers,
        token=TOKEN,
        pacing_bytes_per_s=job.pacing_bytes_per_s or math.inf,  # without a limit, rather than the plan's
    )
    if job.contender.kind == "policy":
        return _wrap_policy(optimizer, model, job, over)
    import pace.runtime.torch

    order: Any = job.contender.order
    return pace.runtime.torch.DistributedOptimizer(
        optimizer,
        model,
        plan=live_search() if job.contender.tune else Plan(schedule=job.schedule, order=order),
        communication=over,
        mode="overlap",
        timeout_s=PATIENCE_S,
    )


def _wrap_policy(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    job: "Job",
    over: ParameterServers,
) -> WrappedOptimizer:
    """Wrap as ``DistributedOptimizer`` does, with a transport that keeps to a policy's rules."""
    assert job.rules is not None
    transport = PolicyTransport(
        partial(complete_servers, over),
        rules=job.rules,
        timeout_s=PATIENCE_S,
        shuffled=job.contender.policy == RANDOM_ORDER,
    )
    # Everything that is ready goes to the transport, which chooses.
    plan = Plan(schedule=job.schedule, order="overtake")
    training: TrainingOptions = {
        "plan": plan,
        "communication": over,
        "mode": "overlap",
        "timeout_s": PATIENCE_S,
    }
    with released_on_failure(transport):
        return WrappedOptimizer(
            optimizer, model, transport=transport, prepare=partial(prepare, transport, training)
        )


def serve(rank: int, on: Sequence[Host], job: "Job") -> Answer:
    """Run one server on a host of its own: `on` are the servers' hosts."""
    torch.set_num_threads(1)
    assert job.rules is not None
    shuffled = job.contender.policy == RANDOM_ORDER
    kind = server_type(job.rules, shuffled=shuffled) if job.contender.kind == "policy" else Server
    server = kind(on[rank].address, job.port, workers=job.layout.workers, token=TOKEN)
    return lambda _request, _arguments: server.port


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
    options = ParameterServers(servers=[f"{host.address}:{_SERVERS_PORT}" for host in others], token=TOKEN)
    return lambda _request, _arguments: measure_links(options, size_bytes=4 << 20, repeats=5)
