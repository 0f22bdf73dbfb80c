"""What runs on a worker's and on a server's host of a contender over parameter servers."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.testbed.contenders import Contender
from benchmarks.testbed.exchange.contenders import ExchangeContender
from benchmarks.testbed.exchange.layouts import TOKEN, Layout
from benchmarks.testbed.exchange.policy_wire import PolicyTransport, server_type
from benchmarks.testbed.hosts import Host
from benchmarks.testbed.joining import PATIENCE_S, join_torch
from benchmarks.testbed.processes import Answer
from benchmarks.testbed.trainer import Trainer, Workload
from pace.documents.schedule import Schedule
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.parameter_server.options import read_options
from pace.runtime.parameter_server.server import Server
from pace.simulation.parameter_server.traffic import ExchangeTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanging:
    """How the ranks of a contender exchange gradients.

    Attributes
    ----------
    pacing_bytes_per_s
        Of every connection, both ways; None without pacing.
    port
        Of torch.distributed's store; servers of their own listen on the same number.
    """

    contender: ExchangeContender
    layout: Layout
    traffic: ExchangeTraffic
    schedule: Schedule
    pacing_bytes_per_s: float | None
    port: int


# What the trainer of all-reduces wants to know; there is no all-reduce.
_PLAIN = Contender(name="exchange", label="exchange", backend="torch", kind="pace")


class ExchangeTrainer(Trainer):
    """One worker; its public methods are the requests it answers."""

    def __init__(self, rank: int, on: Sequence[Host], workload: Workload, exchanging: Exchanging) -> None:
        self._exchanging = exchanging
        workers, _ = exchanging.layout.split(on)
        super().__init__(rank, workers, _PLAIN, workload, None, exchanging.port)
        self._all_hosts = on

    def join(self, port: int) -> None:
        """Join the other workers, link up with the servers, and wrap the optimizer."""
        join_torch(self._rank, self._on, port)
        exchanging = self._exchanging
        servers: str | list[str] = "colocated"
        if exchanging.layout.colocated:
            os.environ["PACE_PS_HOST"] = self._on[self._rank].address
        else:
            _, hosts = exchanging.layout.split(self._all_hosts)
            servers = [f"{host.address}:{exchanging.port}" for host in hosts]
        if exchanging.contender.family == "pace":
            import pace.runtime.torch

            self._optimizer = pace.runtime.torch.DistributedOptimizer(
                self._optimizer,
                self._replay,
                backend="ps",
                servers=servers,
                token=TOKEN,
                schedule=exchanging.schedule,
                order=exchanging.contender.order,
                mode="overlap",
                # Without a limit, rather than that of the plan.
                pacing_bytes_per_s=exchanging.pacing_bytes_per_s or math.inf,
                timeout_s=PATIENCE_S,
            )
        else:
            self._optimizer = _wrap(self._optimizer, self._replay, exchanging, servers)


def _wrap(
    optimizer: torch.optim.Optimizer, model: Any, exchanging: Exchanging, servers: str | list[str]
) -> WrappedOptimizer:
    """Wrap as ``DistributedOptimizer`` does, with a transport that keeps to a policy's rules."""
    transport = PolicyTransport(
        lambda: read_options(servers, TOKEN, pacing_bytes_per_s=exchanging.pacing_bytes_per_s or math.inf),
        rules=exchanging.traffic.rules,
        timeout_s=PATIENCE_S,
    )

    def prepare() -> tuple[WrapperOptions, PlanSource]:
        options = WrapperOptions(
            mode="overlap",
            order="overtake",  # everything that is ready goes to the transport, which chooses
            op="average",
            compression="none",
            backward_passes_per_step=1,
            credit_bytes=None,
            timeout_s=PATIENCE_S,
            broadcast_parameters=True,
        )
        return options, PlanSource(
            transport,
            schedule=exchanging.schedule,
            service=None,
            job=None,
            credit_bytes=None,
            timeout_s=PATIENCE_S,
        )

    with released_on_failure(transport):
        return WrappedOptimizer(optimizer, model, transport=transport, prepare=prepare)


def work(rank: int, on: Sequence[Host], workload: Workload, exchanging: Exchanging) -> Answer:
    """Run one worker; see ``processes.ranks``."""
    torch.set_num_threads(1)
    trainer = ExchangeTrainer(rank, on, workload, exchanging)

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(trainer, request)(*arguments)

    return answer


def serve(rank: int, on: Sequence[Host], exchanging: Exchanging) -> Answer:
    """Run one server on a host of its own: `on` are the servers' hosts."""
    torch.set_num_threads(1)
    kind = Server if exchanging.contender.family == "pace" else server_type(exchanging.traffic.rules)
    server = kind(on[rank].address, exchanging.port, workers=exchanging.layout.workers, token=TOKEN)
    return lambda _request, _arguments: server.port
