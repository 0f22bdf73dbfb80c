"""What runs in one rank of a contender: the training loop a user would write, timed."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks.harness.contenders import (
    DDP_FIRST_MIB,
    DDP_MIB,
    HOROVOD_THRESHOLD_BYTES,
    Contender,
    live_search,
)
from benchmarks.harness.layouts import Layout
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import PATIENCE_S, join_horovod, join_torch, serve
from benchmarks.harness.network.processes import Answer, answering
from benchmarks.harness.training.framework_loop import FrameworkLoop, enter, launched
from benchmarks.harness.workload.real import RealModel
from benchmarks.harness.workload.replay import LEARNING_RATE, FloatArray, Replay, scale_of, sha256
from benchmarks.harness.workload.replicas import shard
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.runtime.engine.buffers import local_part
from pace.runtime.options import AllReduce, Plan

if TYPE_CHECKING:
    from pace_servers.simulation.traffic import ServersRules

# Kinds that train on our engine.
_OURS = ("pace", "bytescheduler", "hsdp", "hsdp-fifo", "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What all contenders of a setting train.

    Attributes
    ----------
    size_factor
        Factor by which gradients were scaled. Peers' sizes in bytes are scaled alike.
    real
        The model with real compute to train instead of a replay of the profile.
    max_norm
        What gradients are clipped to by their global norm; None where they are not.
    """

    profile: Profile
    size_factor: float
    real: str | None = None
    max_norm: float | None = None

    def model(self, rank: int) -> Replay | RealModel:
        """Build what a rank trains; its forward takes an iteration's scale and returns the loss."""
        return RealModel(self.real, rank=rank) if self.real else Replay(self.profile, rank=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the ranks of one contender train, where and how.

    Attributes
    ----------
    on
        All hosts of the layout.
    schedule
        For contenders that follow one.
    port
        Port of torch.distributed's store, and of servers on hosts of their own.
    rules, pacing_bytes_per_s
        Over servers: the policy's rules, and the rate of every connection, both ways (None without pacing).
    """

    on: Sequence[Host]
    layout: Layout
    contender: Contender
    workload: Workload
    schedule: Schedule | None = None
    port: int = 0
    rules: "ServersRules | None" = None
    pacing_bytes_per_s: float | None = None

    @property
    def workers(self) -> Sequence[Host]:
        """The hosts that train."""
        return self.layout.split(self.on)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCheck:
    """A rank's weights: their hash, and how far the farthest is from what it should be."""

    sha256: str
    largest_error: float


class Trainer:
    """One rank of one contender; its public methods are the requests it answers."""

    def __init__(self, rank: int, job: Job) -> None:
        self._rank = rank
        self._job = job
        self._on = job.workers
        self._contender = job.contender
        self._workload = job.workload
        self._schedule = job.schedule
        self._iteration = 0
        self._replay = job.workload.model(rank)
        self._initial = [parameter.detach().clone() for parameter in self._replay.parameters()]
        self._model: nn.Module = self._replay
        self._optimizer: Any = self._plain_optimizer()
        self._framework: FrameworkLoop | None = None

    def _plain_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self._replay.parameters(), lr=LEARNING_RATE)

    def serve(self) -> int:
        """Open what the others join, on rank 0; return its port."""
        return serve(self._rank, self._on, self._contender.backend, self._job.port)

    def join(self, port: int) -> None:
        """Join the other ranks and wrap model and optimizer."""
        if self._contender.backend != "horovod":
            join_torch(self._rank, self._on, port)
        if self._contender.framework is not None:
            self._enter_framework(port)
        elif self._contender.backend == "servers":
            from benchmarks.harness.training import over_servers

            self._optimizer = over_servers.wrap(self._rank, self._job, self._optimizer, self._replay)
        else:
            self._wrappers[self._contender.kind](self, port)

    def _train_alone(self, _port: int) -> None:
        """Send nothing."""

    def _wrap_ddp(self, _port: int) -> None:
        factor = self._workload.size_factor
        self._model = _ddp(self._replay, [DDP_FIRST_MIB * factor, DDP_MIB * factor])

    def use_bucket_size(self, mib: float) -> None:
        """Wrap the model in DDP anew with this ``bucket_cap_mb``, as an unscaled model would have it."""
        self._model = self._replay
        gc.collect()  # the old reducer takes its hooks along
        self._model = _ddp(self._replay, [mib * self._workload.size_factor])
        self._optimizer = self._plain_optimizer()

    def _wrap_horovod(self, port: int) -> None:
        import os

        import horovod.torch as hvd

        threshold = max(round(HOROVOD_THRESHOLD_BYTES * self._workload.size_factor), 1)
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(threshold))
        join_horovod(self._rank, self._on, port, hvd.init)
        hvd.broadcast_parameters(self._replay.state_dict(), root_rank=0)
        self._optimizer = hvd.DistributedOptimizer(
            self._optimizer, named_parameters=self._replay.named_parameters()
        )

    def _enter_framework(self, port: int) -> None:
        """Leave wrapping and the loop to the framework; it joins what has been joined."""
        assert self._contender.framework is not None
        launched(self._rank, self._on, port)
        self._framework = enter(
            self._contender.framework,
            self._replay,
            self._optimizer,
            workers=len(self._on),
            size_factor=self._workload.size_factor,
            options=self._follow() if self._contender.kind == "pace" else None,
        )
        self._optimizer = self._framework.pace or self._optimizer

    def _follow(self) -> dict[str, Any]:
        return {
            "plan": live_search()
            if self._contender.tune
            else Plan(schedule=self._schedule, order=self._contender.order),
            "mode": self._contender.mode,
            "timeout_s": PATIENCE_S,
        }

    def _wrap_pace(self, port: int) -> None:
        follow = self._follow()
        if self._contender.attached:
            import pace.runtime.ddp

            self._wrap_ddp(port)
            self._optimizer = pace.runtime.ddp.attach(self._model, self._optimizer, **follow)
            return
        follow["max_grad_norm"] = self._workload.max_norm
        follow["communication"] = AllReduce(sharding="on" if self._contender.sharded else "off")
        if self._contender.backend == "torch":
            import pace.runtime.torch

            self._optimizer = pace.runtime.torch.DistributedOptimizer(self._optimizer, self._replay, **follow)
            return
        import pace.runtime.horovod

        join_horovod(self._rank, self._on, port, pace.runtime.horovod.init)
        self._optimizer = pace.runtime.horovod.DistributedOptimizer(
            self._optimizer, model=self._replay, **follow
        )

    def _wrap_hsdp(self, _port: int) -> None:
        import pace.runtime.fsdp

        assert isinstance(self._replay, Replay)
        assert self._schedule is None or isinstance(self._schedule, Schedule)
        shard(self._replay, self._rank, self._on, self._job.layout.shards)
        self._initial = [local_part(parameter).detach().clone() for parameter in self._replay.parameters()]
        self._optimizer = pace.runtime.fsdp.attach(
            self._replay,
            self._plain_optimizer(),
            plan=Plan(schedule=self._schedule, order=self._contender.order),
            mode=self._contender.mode,
            timeout_s=PATIENCE_S,
        )

    _wrappers: dict[str, Callable[["Trainer", int], None]] = {  # noqa: RUF012  # never changed
        "ddp": _wrap_ddp,
        "ddp-sweep": _wrap_ddp,
        "plain": _train_alone,
        "horovod": _wrap_horovod,
        "pace": _wrap_pace,
        "bytescheduler": _wrap_pace,
        "hsdp": _wrap_hsdp,
        "hsdp-fifo": _wrap_hsdp,
    }

    def train(self, iterations: int) -> list[float]:
        """Train on and return the moments at which each iteration's window began (its backward pass).

        In seconds of a clock that all hosts share. Nothing is in flight when this returns.
        """
        scales = [scale_of(self._iteration + number) for number in range(iterations)]
        self._iteration += iterations
        gc.disable()  # a collection would hit one contender or another by chance
        starts = self._loop(scales) if self._framework is None else self._framework.train(scales)
        self._finish()
        gc.enable()
        return starts

    def _loop(self, scales: Sequence[float]) -> list[float]:
        starts = []
        for each in scales:
            scale = torch.tensor([each])
            self._optimizer.zero_grad()
            loss = self._model(scale)
            starts.append(time.perf_counter())
            loss.backward()
            self._step()
        return starts

    def _step(self) -> None:
        """Clip, where that is asked for, as each one's documentation says, and update."""
        max_norm, kind = self._workload.max_norm, self._contender.kind
        if max_norm is None or kind in _OURS:
            self._optimizer.step()
        elif kind == "horovod":
            self._optimizer.synchronize()
            nn.utils.clip_grad_norm_(self._replay.parameters(), max_norm)
            with self._optimizer.skip_synchronize():
                self._optimizer.step()
        else:
            nn.utils.clip_grad_norm_(self._replay.parameters(), max_norm)
            self._optimizer.step()

    def _finish(self) -> None:
        if self._contender.kind in _OURS:
            self._optimizer.synchronize()

    def restart(self) -> None:
        """Go back to the initial weights and the first iteration."""
        self._finish()
        self._iteration = 0
        with torch.no_grad():
            for parameter, initial in zip(self._replay.parameters(), self._initial, strict=True):
                local_part(parameter).copy_(initial)

    def check_weights(self, expected: FloatArray) -> WeightCheck:
        """Compare the weights with what they should be by now."""
        self._finish()
        own = dict(self._replay.named_parameters())
        names = self._replay.names
        gradients = self._workload.profile.gradients
        weights = torch.cat([_whole(own[names[gradient.name]]).detach().flatten() for gradient in gradients])
        error = (weights.double() - torch.from_numpy(expected)).abs().max()
        return WeightCheck(sha256=sha256(weights), largest_error=float(error))


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return whole


def _ddp(model: nn.Module, caps_mib: list[float]) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb_list=caps_mib)  # type: ignore[arg-type]  # fractions work


def main(rank: int, job: Job) -> Answer:
    """Run one rank of a contender; see ``processes.ranks``."""
    torch.set_num_threads(1)
    return answering(Trainer(rank, job))
