"""What runs on a worker's and on a server's host of a contender over parameter servers."""

import math
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness.contenders import RANDOM_ORDER, live_search
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import PATIENCE_S
from benchmarks.harness.network.processes import Answer
from benchmarks.harness.training.policy_wire import PolicyTransport, server_type
from pace.runtime.entry_point import TrainingOptions, complete_servers, prepare
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.options import ParameterServers, Plan
from pace.runtime.servers.server import Server

if TYPE_CHECKING:
    from benchmarks.harness.training.trainer import Job

TOKEN = "testbed"


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
