"""DistributedOptimizer for jobs that use torch.distributed."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from pace.documents.cluster import Consistency
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions
from pace.runtime.control.options import (
    Mode,
    Reduction,
    ShardingChoice,
    WrapperOptions,
    connecting_timeout_s,
    require_one_of,
    require_whole,
)
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.optimizer.asynchronous_optimizer import AsynchronousOptimizer
from pace.runtime.optimizer.start import Prepare, released_on_failure
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.replanning import Replanning
from pace.runtime.servers.options import (
    ServerOptions,
    Servers,
    Stale,
    pushed_gradients,
    read_options,
)
from pace.runtime.servers.transport.push_pull import MixedTransport, PushPullTransport
from pace.runtime.transports.compression import Compression
from pace.runtime.transports.cuda import CudaTransport
from pace.runtime.transports.device import device_of
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import Order
from pace.wire.streams import NOTSENT_BYTES

__all__ = ["AsynchronousOptimizer", "DistributedOptimizer", "Stale"]

Backend = Literal["allreduce", "servers", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperArguments:
    """What ``DistributedOptimizer`` was given, besides the optimizer and the model.

    Attributes
    ----------
    own_buffers
        See ``WrapperOptions``; for models that DistributedDataParallel carries.
    """

    schedule: Schedule | str | Path | None = None
    service: str | None = None
    job: str | None = None
    api_key: str | None = None
    credit_bytes: int | None = None
    backward_passes_per_step: int = 1
    op: Reduction = "average"
    compression: Compression = "none"
    mode: Mode = "auto"
    order: Order = "auto"
    timeout_s: float = 300.0
    replanning: Replanning | None = None
    process_group: dist.ProcessGroup | None = None
    broadcast_parameters: bool = True
    backend: Backend = "allreduce"
    servers: Servers | None = None
    consistency: Consistency | Stale = "sync"
    token: str | None = None
    deterministic: bool = False
    pacing_bytes_per_s: float | None = None
    ssl_context: ssl.SSLContext | None = None
    pushed: Sequence[str] | None = None
    max_grad_norm: float | None = None
    sharding: ShardingChoice = "off"
    own_buffers: bool = False

    def connect(self, model: nn.Module) -> GlooTransport:
        """Open the transport; every rank alike."""
        device = device_of(model)
        waiting_s = connecting_timeout_s(self.timeout_s)
        if self.backend in ("servers", "mixed"):
            return self.connect_to_servers(model)
        if device is None:
            return GlooTransport(timeout_s=waiting_s, process_group=self.process_group)
        return CudaTransport(device, timeout_s=waiting_s, process_group=self.process_group)

    def connect_to_servers(self, model: nn.Module) -> PushPullTransport:
        """Open a transport to parameter servers; every rank alike."""
        credit = self.credit_bytes
        kind = MixedTransport if self.backend == "mixed" else PushPullTransport
        return kind(
            lambda: self._exchange_options(model),
            timeout_s=connecting_timeout_s(self.timeout_s),
            process_group=self.process_group,
            notsent_bytes=credit if type(credit) is int and 0 < credit < 1 << 31 else NOTSENT_BYTES,
        )

    def _exchange_options(self, model: nn.Module) -> ServerOptions:
        self._check_backend()
        if self.consistency not in ("sync", "async") and not isinstance(self.consistency, Stale):
            raise InvalidOptions(
                f"consistency is {self.consistency!r}; 'sync', 'async' or Stale(k) is needed"
            )
        if self.backend == "mixed" and self.consistency != "sync":
            raise InvalidOptions(
                "backend is 'mixed', where all-reduces wait for all: consistency must be 'sync'"
            )
        if self.consistency != "sync" and self.max_grad_norm is not None:
            raise InvalidOptions(
                "max_grad_norm: with consistency other than 'sync' no rank has all gradients of a step; clip"
                " each rank's own in the loop"
            )
        if device_of(model) is not None:
            raise InvalidOptions(
                f"backend is {self.backend!r} and the model is on a GPU: parameter servers sum in the host's"
                " memory"
            )
        if self.credit_bytes is not None:
            require_whole("credit_bytes", self.credit_bytes, least=1)
        return read_options(
            self.servers,
            self.token,
            deterministic=self.deterministic,
            pacing_bytes_per_s=self.pacing_bytes_per_s,
            ssl_context=self.ssl_context,
            pushed=pushed_gradients(model, self.pushed) if self.backend == "mixed" else None,
        )

    def _check_backend(self) -> None:
        require_one_of("backend", self.backend, ("allreduce", "servers", "mixed"))
        if self.backend == "allreduce":
            self._refuse_for_allreduce()
        if self.backend != "mixed" and self.pushed is not None:
            raise InvalidOptions("pushed: give backend='mixed' as well")

    def _refuse_for_allreduce(self) -> None:
        given = {
            "servers": self.servers is not None,
            "consistency": self.consistency != "sync",
            "token": self.token is not None,
            "deterministic": self.deterministic is not False,
            "pacing_bytes_per_s": self.pacing_bytes_per_s is not None,
            "ssl_context": self.ssl_context is not None,
        }
        if any(given.values()):
            names = ", ".join(name for name, is_given in given.items() if is_given)
            raise InvalidOptions(f"{names}: only parameter servers know it: give backend='servers' as well")

    def preparation(self, transport: GlooTransport) -> Prepare:
        """Return what checks the arguments that all transports have."""

        def prepare() -> tuple[WrapperOptions, PlanSource]:
            self._check_backend()
            options = WrapperOptions(
                mode=self.mode,
                order=self.order,
                op=self.op,
                compression=self.compression,
                backward_passes_per_step=self.backward_passes_per_step,
                credit_bytes=self.credit_bytes,
                timeout_s=self.timeout_s,
                broadcast_parameters=self.broadcast_parameters,
                max_grad_norm=self.max_grad_norm,
                sharding=self.sharding,
                own_buffers=self.own_buffers,
            )
            return options, PlanSource(
                transport,
                schedule=self.schedule,
                service=self.service,
                job=self.job,
                credit_bytes=self.credit_bytes,
                api_key=self.api_key,
                timeout_s=self.timeout_s,
                replanning=self.replanning,
                sharding=self.sharding,
            )

        return prepare


class DistributedOptimizer(WrappedOptimizer):
    """Wraps a torch optimizer: all-reduces its gradients by a schedule, without a barrier.

    Wrap the optimizer after the model is on its device and ``init_process_group`` was called; do not
    wrap the model in DistributedDataParallel. Every rank must do so alike.

    Parameters
    ----------
    optimizer, model
        The user's optimizer, and the module whose parameters it updates.
    schedule
        A schedule or the path of one; with parameter servers one for push and pull too, whose placement
        is kept. Without it and without `service`, a simple plan is computed here.
    service, job
        Where rank 0 asks for the newest schedule of the job for this model.
    credit_bytes
        How many bytes may be in flight at once, instead of what the schedule says.
    backward_passes_per_step
        Gradients of so many backward passes are summed before they are sent.
    op
        "average" divides by the number of ranks, "sum" does not.
    compression
        "fp16" or "bf16" halve what is sent and round what is summed.
    mode
        "overlap": no barrier, updates are applied when a parameter is about to be used. "barrier":
        ``step()`` waits for all gradients. "auto": plain operation, barrier and overlap are timed for a
        few iterations each and all ranks keep the fastest.
    order
        "static": segments go out as planned. "adaptive": as planned, but rank 0 lets others overtake one that
        is late. "priority": rank 0 picks what is needed first among all that is ready. "overtake": what the
        plan has first among all that is ready. "auto": "static" over torch.distributed; over Horovod
        "adaptive" with a schedule and "priority" without; over parameter servers, where every rank decides
        for itself, "overtake" with a schedule and "priority" without.
    timeout_s
        A peer that does not answer for so long is an error.
    replanning
        When a job with a service profiles itself; by default what PACE_PROFILE_ITERATIONS, PACE_DRIFT_RATIO,
        PACE_DRIFT_ITERATIONS and PACE_REPLAN_INTERVAL_S say.
    process_group
        The ranks that train together; all by default.
    broadcast_parameters
        Whether rank 0's parameters and buffers replace those of other ranks where they differ, once, as in
        DistributedDataParallel; otherwise a difference is an error.
    backend
        "allreduce": ranks sum gradients among themselves. "servers": parameter servers do. "mixed": parameter
        servers sum those that `pushed` names, and the others are all-reduced.
    servers
        "colocated" runs a parameter server in every rank; else HOST:PORT of each, where
        ``pace servers serve`` listens. PACE_SERVERS by default, and "colocated" without it.
    consistency
        "sync": the weights of plain synchronous training. "async" and ``Stale(k)``: each rank steps by its
        own gradients and does not wait for others, or only while it is k steps ahead. Servers hold the
        weights, and what is returned is an ``AsynchronousOptimizer``, which says what holds then.
    token
        What ranks and servers must both know; PACE_SERVERS_TOKEN by default. Servers on other machines
        need one.
    deterministic
        Servers add in the order of ranks, so that repeated runs have equal bits. Costs memory on servers.
    pacing_bytes_per_s
        How fast either end of a connection to a server sends; best the smaller one of a worker's rate
        divided by the number of servers and a server's divided by the number of workers. By default what a
        schedule of push and pull says; ``math.inf`` for no limit.
    ssl_context
        TLS for connections to servers that are not colocated.
    pushed
        With "mixed": names of gradients, or patterns as in "embedding.*"; the weights of all ``nn.Embedding``
        by default.
    max_grad_norm
        Clip all gradients together to this norm in every ``step()``; a step whose norm is not finite changes
        nothing.
    sharding
        "on": every rank keeps the optimizer's state of a shard only, updates it and gathers the parameters of
        the others. "auto": where that can be done, ``mode="auto"`` tries it, too. "off": every rank updates
        all.

    Raises
    ------
    ScheduleMismatch
        When the schedule was made for another model or world, or the ranks differ.
    InvalidOptions, InvalidUse
        When the arguments or the optimizer do not fit, or weights differ that are not to be overwritten.
    """

    def __new__(cls, optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> Any:
        """Make the wrapper that the consistency asks for."""
        consistency = options.get("consistency", "sync")
        if consistency != "async" and not isinstance(consistency, Stale):
            return super().__new__(cls)
        arguments = WrapperArguments(**options)
        transport = arguments.connect_to_servers(model)
        with released_on_failure(transport):
            return AsynchronousOptimizer(
                optimizer,
                model,
                transport=transport,
                prepare=arguments.preparation(transport),
                staleness=consistency.clocks if isinstance(consistency, Stale) else None,
            )

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        schedule: Schedule | str | Path | None = None,
        service: str | None = None,
        job: str | None = None,
        api_key: str | None = None,
        credit_bytes: int | None = None,
        backward_passes_per_step: int = 1,
        op: Reduction = "average",
        compression: Compression = "none",
        mode: Mode = "auto",
        order: Order = "auto",
        timeout_s: float = 300.0,
        replanning: Replanning | None = None,
        process_group: dist.ProcessGroup | None = None,
        broadcast_parameters: bool = True,
        backend: Backend = "allreduce",
        servers: Servers | None = None,
        consistency: Consistency | Stale = "sync",
        token: str | None = None,
        deterministic: bool = False,
        pacing_bytes_per_s: float | None = None,
        ssl_context: ssl.SSLContext | None = None,
        pushed: Sequence[str] | None = None,
        max_grad_norm: float | None = None,
        sharding: ShardingChoice = "off",
    ) -> None:
        arguments = WrapperArguments(
            schedule=schedule,
            service=service,
            job=job,
            api_key=api_key,
            credit_bytes=credit_bytes,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            compression=compression,
            mode=mode,
            order=order,
            timeout_s=timeout_s,
            replanning=replanning,
            process_group=process_group,
            broadcast_parameters=broadcast_parameters,
            backend=backend,
            servers=servers,
            consistency=consistency,
            token=token,
            deterministic=deterministic,
            pacing_bytes_per_s=pacing_bytes_per_s,
            ssl_context=ssl_context,
            pushed=pushed,
            max_grad_norm=max_grad_norm,
            sharding=sharding,
        )
        transport = arguments.connect(model)
        with released_on_failure(transport):
            super().__init__(optimizer, model, transport=transport, prepare=arguments.preparation(transport))
