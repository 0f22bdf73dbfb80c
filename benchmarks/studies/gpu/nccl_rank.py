"""One rank of the part ``nccl``: schedules and trains under DDP and PACE, wraps often, and is killed."""

import gc
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.studies.gpu.models import Bottleneck, settled, training_step, workloads
from benchmarks.studies.gpu.part import Findings, Setting
from benchmarks.studies.gpu.ranks import LOST_S
from pace.documents.schedule import Schedule, parse_schedule
from pace.errors import CommunicationFailed
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.planning.sharded.optimize import optimize_sharded
from pace.runtime import fsdp
from pace.runtime.profiler import (
    Capture,
    gradient_bytes,
    measure_allreduce,
    measure_contention,
    torch_network,
)
from pace.runtime.torch import AllReduce, DistributedOptimizer, Plan
from pace.simulation import make_policy
from pace.simulation.run import run_policy

WRAPS, WRAPS_S = 50, 20.0
"""So many wraps, or as many as begin in so many seconds."""
ROUNDS = 2
WARM_UP = 26
"""Steps before measuring: the trial of ``mode="auto"`` takes 20."""
LOST_STEPS = 1000
"""At most, until the rank that is left raises."""
MAX_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to train: what wraps the model, what its plan predicts, and whether gradients are clipped."""

    wrap: Callable[[], tuple[Any, Any]]
    predicted_s: float | None = None
    clips: bool = False


def train(findings: Findings, setting: Setting, rank: int, _name: str) -> None:
    """Run the whole part; the last rank kills itself at the end."""
    if setting.dry:
        from tests.runtime.engine.queued_device import simulate_gpu

        simulate_gpu(rank)
    own = Rank(findings, setting, rank)
    own.compare()
    own.wrap_often()
    own.lose_rank()


class Rank:
    """One rank's model, batch and record."""

    def __init__(self, findings: Findings, setting: Setting, rank: int) -> None:
        self._findings = findings
        self._rank = rank
        self._dry = setting.dry
        self._device = setting.device
        self._name = setting.model
        workload = workloads(dry=setting.dry)[setting.model]
        self._workload = replace(workload, batch_size=setting.samples or workload.batch_size)
        self._model = self._workload.model(self._device)
        self._initial = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        self._batch = self._workload.batch(self._device, seed=rank)
        self._references: dict[bool, torch.Tensor] = {}  # DDP's weights, clipped or not
        findings.fact("model", self._name)
        findings.fact("ranks", dist.get_world_size())
        findings.fact("samples a batch and rank", self._workload.batch_size)

    def compare(self) -> None:
        """Train in turn under DDP, PACE, and PACE without a schedule, and clipped, from the same weights."""
        schedule, sharded, ddp_s = self._schedules()
        contenders = {
            "DDP": Contender(wrap=self._under_ddp, predicted_s=ddp_s),
            "PACE": Contender(
                wrap=lambda: self._under_pace(plan=Plan(schedule=schedule, order="static"), mode="overlap"),
                predicted_s=schedule.predicted.iteration_s,
            ),
            "PACE without a schedule": Contender(wrap=self._under_pace),
            "DDP, clipped": Contender(wrap=self._under_ddp, clips=True),
            "PACE, clipped": Contender(
                wrap=lambda: self._under_pace(
                    plan=Plan(schedule=sharded, order="static"),
                    mode="overlap",
                    communication=AllReduce(sharding="on"),
                ),
                predicted_s=sharded.predicted.iteration_s,
                clips=True,
            ),
            "HSDP": Contender(wrap=self._under_hsdp),
            "PACE, HSDP": Contender(wrap=lambda: self._under_hsdp(mode="overlap")),
        }
        for number in range(ROUNDS):
            for name, contender in contenders.items():
                found = self._measure(contender)
                with self._findings.row(contender=name, round=number) as row:
                    row |= found
                    if contender.predicted_s is not None:
                        row["over predicted"] = found["iteration ms"] * 1e-3 / contender.predicted_s

    def wrap_often(self) -> None:
        """Wrap, train and close, again and again; then train two models at once."""
        sums: list[list[str]] = []
        started = time.monotonic()
        more = True
        while more:
            self._reset()
            sums.append(self._trained(self._model))
            shared = [len(sums) < WRAPS and time.monotonic() - started < WRAPS_S]
            dist.broadcast_object_list(shared)
            more = shared[0]
        with self._findings.row(contender=f"{len(sums)} wraps one after another") as row:
            row["sha256"] = sums
        self._reset()
        with self._findings.row(contender="two wrappers at once") as row:
            row["sha256"] = self._trained(self._model, self._workload.model(self._device))

    def lose_rank(self) -> None:
        """Kill the last rank and note what the others say, and when."""
        model, optimizer = self._under_pace(mode="overlap", timeout_s=LOST_S)
        step = training_step(model, optimizer, self._batch)
        for _ in range(3):
            step()
        optimizer.synchronize()
        dist.barrier()
        if self._rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        try:
            for _ in range(LOST_STEPS):
                step()
        except CommunicationFailed as error:
            self._findings.fact("killed rank named after s", time.monotonic() - started)
            self._findings.fact("said of the killed rank", str(error))
        os._exit(0)  # what waits for the lost rank may never end

    def _schedules(self) -> tuple[Schedule, Schedule, float]:
        """Capture and measure on both ranks at once; return rank 0's schedules and prediction for DDP.

        The second schedule is of sharded updates behind a norm.
        """
        optimizer = self._sgd(self._model)
        step = training_step(self._model, optimizer, self._batch)
        with Capture(self._model, optimizer, iterations=2 if self._dry else 6, warmup=2) as capture:
            while not capture.finished:
                step()
                capture.step()
        network = torch_network()
        network.device = torch.device(self._device)  # where gradients lie
        measured = measure_allreduce(
            network,
            largest_bytes=gradient_bytes(self._model),
            max_runs=3,
            max_seconds_per_size=0.1 if self._dry else 1.0,
            pairs=False,
        )
        beside = measure_contention(
            step, network, size_bytes=gradient_bytes(self._model), pairs=3 if self._dry else 10
        )
        shared: list[Any] = [None]
        if self._rank == 0:
            profile = capture.profile(
                self._name,
                workers=dist.get_world_size(),
                allreduce=measured.document,
                compute_slowdown=beside.compute_slowdown,
                load=beside.load,
            )
            schedule = optimize_allreduce(profile)
            sharded = optimize_sharded(profile.replace(update="global-norm"))
            ddp = run_policy(profile, make_policy("ddp"))
            shared = [(schedule.to_json(), sharded.to_json(), ddp.iteration_s)]
            largest = measured.sizes[-1]
            for name, value in {
                "calls take longer during compute by ms": [[size, s * 1e3] for size, s in beside.added_s],
                "compute slowdown during calls": profile.compute_slowdown,
                "compute ms": sum(op.duration_s for op in profile.ops) * 1e3,
                "error of the captured profile": capture.report.error,
                "measured link Mbit/s": largest.size_bytes * 8e-6 / largest.duration_s,
                "predicted under DDP ms": ddp.iteration_s * 1e3,
                "predicted under PACE ms": schedule.predicted.iteration_s * 1e3,
                "bound ms": (schedule.predicted.lower_bound_s or 0.0) * 1e3,
                "groups": len(schedule.groups),
                "calls": len(schedule.transfers),
                "clipped: predicted under PACE ms": sharded.predicted.iteration_s * 1e3,
                "clipped: bound ms": (sharded.predicted.lower_bound_s or 0.0) * 1e3,
                "clipped: calls": len(sharded.transfers),
            }.items():
                self._findings.fact(name, value)
        dist.broadcast_object_list(shared)
        whole, halves, ddp_s = shared[0]
        return parse_schedule(whole), parse_schedule(halves), ddp_s

    def _sgd(self, model: torch.nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def _under_ddp(self) -> tuple[Any, Any]:
        return DistributedDataParallel(self._model), self._sgd(self._model)

    def _under_pace(self, **options: Any) -> tuple[Any, Any]:
        options = {"timeout_s": 60.0} | options
        return self._model, DistributedOptimizer(self._sgd(self._model), self._model, **options)

    def _under_hsdp(self, **options: Any) -> tuple[Any, Any]:
        """Shard a model of its own within each of two or more replicas; with options, under PACE."""
        ranks = dist.get_world_size()
        replicas = 2 if ranks % 2 == 0 else ranks
        kind = torch.device(self._device).type
        mesh = init_device_mesh(kind, (replicas, ranks // replicas), mesh_dim_names=("replicas", "shards"))
        model = self._workload.model(self._device)
        for module in list(model.modules()):
            if isinstance(module, Bottleneck | nn.TransformerEncoderLayer):
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = self._sgd(model)
        return model, fsdp.attach(model, optimizer, timeout_s=60.0, **options) if options else optimizer

    def _reset(self) -> None:
        self._model.load_state_dict(self._initial)
        self._model.zero_grad()

    def _measure(self, contender: Contender) -> dict[str, Any]:
        """Train from the initial weights; time an iteration and say where the weights have got to."""
        iterations = 3 if self._dry else 8
        self._reset()
        model, optimizer = contender.wrap()
        step = training_step(model, optimizer, self._batch, max_norm=MAX_NORM if contender.clips else None)
        finish = getattr(optimizer, "synchronize", lambda: None)
        for _ in range(WARM_UP):
            step()
        finish()
        settled(self._device)
        dist.barrier()
        started = settled(self._device)
        for _ in range(iterations):
            step()
        finish()
        found: dict[str, Any] = {"iteration ms": (settled(self._device) - started) / iterations * 1e3}
        if hasattr(optimizer, "report"):
            report = optimizer.report()
            found["mode"] = report.mode
            found["trial ms"] = {mode: seconds * 1e3 for mode, seconds in report.trial_s.items()}
            optimizer.close()
        whole = model if isinstance(next(model.parameters()), DTensor) else self._model
        trained = _flat(whole.parameters())
        del model, optimizer, step, finish, whole
        gc.collect()  # DDP's hooks go with it
        reference = self._references.setdefault(contender.clips, trained)
        initial = _flat(self._initial[name] for name, _ in self._model.named_parameters())
        moved = float((reference - initial).norm())
        return found | {
            "weights against the first DDP run": float((trained - reference).norm()) / moved,
            "sha256": _sha256(trained),
        }

    def _trained(self, *models: torch.nn.Module) -> list[str]:
        """Train models at once, a wrapper each, for three steps; return the hashes of their weights."""
        optimizers = [
            DistributedOptimizer(self._sgd(model), model, mode="overlap", timeout_s=60.0) for model in models
        ]
        steps = [training_step(*each, self._batch) for each in zip(models, optimizers, strict=True)]
        for _ in range(3):
            for step in steps:
                step()
        for optimizer in optimizers:
            optimizer.close()
        return [_sha256(_flat(model.parameters())) for model in models]


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    whole = (each.full_tensor() if isinstance(each, DTensor) else each for each in tensors)
    return torch.cat([tensor.detach().flatten() for tensor in whole]).cpu()


def _sha256(weights: torch.Tensor) -> str:
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()
