"""One rank of ``training``: captures, measures the link, schedules, trains under DDP and PACE in turn.

    python -m benchmarks.studies.gpu.training_rank SPECIFICATION RANK

What it finds goes to ``training.RANK.json`` as it comes.
"""

import datetime
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.studies.gpu.two_ranks import become

PORT = 29431
ROUNDS = 2
MOST_SAMPLES = 256
BYTES_PER_SAMPLE = 250e6
"""Of the GPU's memory, which both ranks share: more than twice what ResNet-50 keeps of a sample."""


def main() -> None:
    """Join the other rank and train."""
    specification = json.loads(Path(sys.argv[1]).read_text())
    rank = int(sys.argv[2])
    if specification["hosts"]:
        become(specification["hosts"][rank])
    os.environ["GLOO_SOCKET_IFNAME"] = specification["interface"]
    if specification["backend"] == "nccl":
        # NCCL refuses two ranks of one host on one GPU, so each rank is a host of its own.
        os.environ |= {
            "NCCL_HOSTID": f"host{rank}",
            "NCCL_SOCKET_IFNAME": specification["interface"],
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_NET": "Socket",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_IB_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
        }
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    timeout = datetime.timedelta(seconds=100)
    port = PORT if specification["rate_mbit_s"] is not None else PORT + os.getppid() % 1000
    store = TCPStore(specification["address"], port, 2, rank == 0, timeout)
    dist.init_process_group(specification["backend"], store=store, rank=rank, world_size=2, timeout=timeout)
    Rank(rank, specification).train()
    dist.destroy_process_group()


class Rank:
    """One rank's model, batch and record."""

    def __init__(self, rank: int, specification: dict[str, Any]) -> None:
        from benchmarks.studies.gpu.models import workloads

        self._rank = rank
        self._dry: bool = specification["dry"]
        self._rate: float | None = specification["rate_mbit_s"]
        self._given: int | None = specification["samples"]
        self._device = "cpu" if self._dry else "cuda"
        self._path = Path(specification["work"], f"training.{rank}.json")
        self._record: dict[str, Any] = {"facts": {}, "runs": []}
        self._workload = workloads(dry=self._dry)["ResNet-50"]
        self._model = self._workload.model(self._device)
        self._initial = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        self._reference: Any = None
        if self._dry:
            from tests.runtime.engine.queued_device import simulate_gpu

            simulate_gpu(rank)

    def train(self) -> None:
        """Run the whole part."""
        self._batch = self._workload.batch(self._device, seed=self._rank, size=self._samples())
        schedule, ddp_s = self._schedule()
        contenders = {
            "DDP": (self._under_ddp, ddp_s),
            "PACE": (lambda: self._under_pace(schedule), schedule.predicted.iteration_s),
        }
        for number in range(ROUNDS):
            for name, (wrap, predicted_s) in contenders.items():
                found = self._measure(wrap) | {"contender": name, "round": number, "predicted_s": predicted_s}
                self._record["runs"].append(found)
                self._write()

    def _samples(self) -> int:
        """As many samples a batch as given, or as make compute last as long as sending all gradients."""
        import torch
        import torch.distributed as dist

        from benchmarks.studies.gpu.models import settled, training_step
        from pace.runtime.profiler import gradient_bytes

        if self._given is not None and not self._dry:
            self._fact("samples a batch and rank", self._given)
            return self._given
        size = self._workload.batch_size
        step = training_step(self._model, self._sgd(), self._workload.batch(self._device, seed=self._rank))
        for _ in range(3):
            step()
        dist.barrier()
        started = settled(self._device)
        for _ in range(3):
            step()
        seconds = torch.tensor([(settled(self._device) - started) / 3])
        dist.all_reduce(seconds)
        compute_s = float(seconds) / 2
        sending_s = gradient_bytes(self._model) * 8e-6 / self._rate if self._rate else compute_s
        if not self._dry:
            memory = torch.cuda.get_device_properties(0).total_memory
            most = min(MOST_SAMPLES, round(memory / BYTES_PER_SAMPLE))
            size = max(8, min(round(size * sending_s / compute_s), most))
        self._fact("samples a batch and rank", size)
        self._fact("sending all gradients at the link's rate ms", sending_s * 1e3 if self._rate else None)
        return size

    def _schedule(self) -> tuple[Any, float]:
        """Capture and measure on both ranks at once; rank 0's schedule, and what it predicts for DDP."""
        import torch
        import torch.distributed as dist

        from benchmarks.studies.gpu.models import training_step
        from pace.documents.schedule import parse_schedule
        from pace.runtime.profiler import (
            Capture,
            Contention,
            gradient_bytes,
            measure_allreduce,
            measure_contention,
            torch_network,
        )

        optimizer = self._sgd()
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
        beside = Contention()
        if self._dry or network.clock.runs_behind:  # Gloo's sums of a GPU's tensors pass through the host
            beside = measure_contention(
                step, network, size_bytes=gradient_bytes(self._model), pairs=3 if self._dry else 10
            )
        shared: list[Any] = [None]
        if self._rank == 0:
            from pace.planning.allreduce.optimize import optimize_allreduce
            from pace.simulation import make_policy
            from pace.simulation.run import run_policy

            profile = capture.profile(
                "ResNet-50",
                workers=2,
                allreduce=measured.document,
                compute_slowdown=beside.compute_slowdown,
                load=beside.load,
            )
            self._fact(
                "calls take longer during compute by ms",
                [[size, seconds * 1e3] for size, seconds in beside.added_s],
            )
            self._fact("compute slowdown during calls", profile.compute_slowdown)
            schedule = optimize_allreduce(profile)
            ddp = run_policy(profile, make_policy("ddp"))
            shared = [(schedule.to_json(), ddp.iteration_s)]
            self._fact("compute ms", profile_ms(profile))
            self._fact("error of the captured profile", capture.report.error)
            largest = measured.sizes[-1]
            self._fact("measured link Mbit/s", largest.size_bytes * 8e-6 / largest.duration_s)
            self._fact("predicted under DDP ms", ddp.iteration_s * 1e3)
            self._fact("predicted under PACE ms", schedule.predicted.iteration_s * 1e3)
            self._fact("bound ms", schedule.predicted.lower_bound_s * 1e3)
            self._fact("groups", len(schedule.groups))
            self._fact("calls", len(schedule.transfers))
        dist.broadcast_object_list(shared)
        content, ddp_s = shared[0]
        return parse_schedule(content), ddp_s

    def _sgd(self) -> Any:
        import torch

        return torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)

    def _under_ddp(self) -> tuple[Any, Any]:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(self._model), self._sgd()

    def _under_pace(self, schedule: Any) -> tuple[Any, Any]:
        from pace.runtime.torch import DistributedOptimizer, Plan

        optimizer = DistributedOptimizer(
            self._sgd(),
            self._model,
            plan=Plan(schedule=schedule, order="static"),
            mode="overlap",
            timeout_s=60.0,
        )
        return self._model, optimizer

    def _measure(self, wrap: Callable[[], tuple[Any, Any]]) -> dict[str, Any]:
        """Train from the initial weights; time an iteration and say where the weights have got to."""
        import gc

        import torch
        import torch.distributed as dist

        from benchmarks.studies.gpu.models import settled, training_step

        warmup, iterations = (2, 3) if self._dry else (2, 8)
        self._model.load_state_dict(self._initial)
        self._model.zero_grad()
        model, optimizer = wrap()
        step = training_step(model, optimizer, self._batch)
        finish = getattr(optimizer, "synchronize", lambda: None)
        for _ in range(warmup):
            step()
        finish()
        settled(self._device)
        dist.barrier()
        started = settled(self._device)
        for _ in range(iterations):
            step()
        finish()
        seconds = (settled(self._device) - started) / iterations
        trained = torch.cat([parameter.detach().flatten() for parameter in self._model.parameters()]).cpu()
        getattr(optimizer, "close", lambda: None)()
        del model, optimizer, step, finish
        gc.collect()  # DDP's hooks go with it
        if self._reference is None:
            self._reference = trained
        initial = torch.cat(
            [self._initial[name].flatten() for name, _ in self._model.named_parameters()]
        ).cpu()
        moved = float((self._reference - initial).norm())
        return {
            "iteration_s": seconds,
            "sha256": hashlib.sha256(trained.numpy().tobytes()).hexdigest(),
            "difference": float((trained - self._reference).norm()) / moved,
        }

    def _fact(self, name: str, value: Any) -> None:
        self._record["facts"][name] = value
        self._write()

    def _write(self) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(self._record))
        os.replace(written, self._path)


def profile_ms(profile: Any) -> float:
    """Return the compute time of a profile with one stream."""
    return float(sum(op.duration_s for op in profile.ops)) * 1e3


if __name__ == "__main__":
    main()
