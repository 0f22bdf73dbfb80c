"""The parts ``training`` and ``nccl``: two ranks on one GPU train under DDP and PACE, through a limited link.

    python -m benchmarks.studies.gpu.training SPECIFICATION RANK

runs one rank, which captures, measures the link, schedules, and trains under both in turn. What it finds goes
to ``training.RANK.json`` as it comes. The link is a network namespace for each rank, else a limited loopback,
else an unlimited one. A rank enters its namespace before it imports torch, while it has one thread.
"""

import contextlib
import datetime
import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.network.hosts import INTERFACE, Host, Link, hosts
from benchmarks.harness.network.joining import enter
from benchmarks.harness.prerequisites import TestbedUnavailable
from benchmarks.studies.gpu.part import Findings, Setting

# Both ranks' traffic passes the one loopback device. Its queue must hold what TCP sends at once.
LIMIT = "ip link set lo up && tc qdisc add dev lo root tbf rate {twice}mbit burst 256kb latency 200ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How two ranks reach each other.

    Attributes
    ----------
    prefix
        What the command that starts both ranks begins with.
    hosts
        Hosts of the ranks, as JSON has them; empty where ranks share one network.
    rate_mbit_s
        In each direction; None where nothing limits it.
    """

    shown: str
    prefix: tuple[str, ...]
    interface: str
    address: str
    rate_mbit_s: float | None
    hosts: tuple[dict[str, Any], ...] = ()


@contextlib.contextmanager
def wire(rate_mbit_s: float) -> Iterator[Wire]:
    """Make the best link that this machine allows, and take it away again."""
    with contextlib.ExitStack() as made:
        try:
            on = made.enter_context(hosts([Link(rate_mbit_s=rate_mbit_s)] * 2))
        except (TestbedUnavailable, subprocess.CalledProcessError, OSError) as error:
            yield _loopback(rate_mbit_s, " ".join(str(error).split()))
            return
        yield Wire(
            shown=f"two network namespaces, joined at {rate_mbit_s:g} Mbit/s both ways by the kernel",
            prefix=(),
            interface=INTERFACE,
            address=on[0].address,
            rate_mbit_s=rate_mbit_s,
            hosts=tuple(asdict(host) for host in on),
        )


def _loopback(rate_mbit_s: float, why: str) -> Wire:
    limit = LIMIT.format(twice=round(2 * rate_mbit_s))
    for unshare in (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net")):
        prefix = (*unshare, "sh", "-ec", f'{limit} && exec "$@"', "sh")
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                shown = f"loopback limited to {2 * rate_mbit_s:g} Mbit/s for both ranks together ({why})"
                return Wire(
                    shown=shown, prefix=prefix, interface="lo", address="127.0.0.1", rate_mbit_s=rate_mbit_s
                )
    shown = f"loopback as fast as it is: this machine allows no limit ({why})"
    return Wire(shown=shown, prefix=(), interface="lo", address="127.0.0.1", rate_mbit_s=None)


DRY_RATE_MBIT_S = 200.0
LARGEST_DIFFERENCE = 0.05
"""Between weights trained under PACE and under DDP, relative to how far training moved them."""
PATIENCE_S = 130.0


def training(findings: Findings, setting: Setting) -> None:
    """Train over Gloo through a link that takes about as long as compute."""
    train(findings, setting, "gloo", rate_mbit_s=2000.0)


def train(
    findings: Findings,
    setting: Setting,
    backend: Literal["gloo", "nccl"],
    *,
    rate_mbit_s: float,
    samples: int | None = None,
) -> None:
    """Train in turn under DDP and PACE on both ranks; a dry run uses Gloo.

    Parameters
    ----------
    samples
        Samples a batch and rank (default: as many as make compute take as long as communication).
    """
    with wire(DRY_RATE_MBIT_S if setting.dry else rate_mbit_s) as link:
        findings.fact("link", link.shown)
        specification = setting.work / f"training.{backend}.json"
        specification.write_text(
            json.dumps(
                asdict(link)
                | {
                    "dry": setting.dry,
                    "work": str(setting.work),
                    "backend": "gloo" if setting.dry else backend,
                    "samples": samples,
                }
            )
        )
        for stale in setting.work.glob("training.[01].json"):
            stale.unlink()
        try:
            codes = start_ranks(link, str(specification))
            findings.check(codes == "0 0", f"the two ranks ended with {codes}")
        finally:
            keep(findings, setting)


def start_ranks(link: Wire, specification: str) -> str:
    """Run both ranks, in one shell because they share a limited loopback, and return how they ended."""
    rank = f'"{sys.executable}" -m benchmarks.studies.gpu.training "{specification}"'
    both = f"{rank} 0 & first=$!; {rank} 1 & second=$!; wait $first; a=$?; wait $second; echo ranks $a $?"
    ended = subprocess.run(
        [*link.prefix, "sh", "-c", both], stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
    )
    print(ended.stdout)
    return ended.stdout.rsplit("ranks ", 1)[-1].strip()


def keep(findings: Findings, setting: Setting) -> None:
    """Take over what the ranks have written so far, and judge the weights."""
    ranks = []
    for rank in range(2):
        path = setting.work / f"training.{rank}.json"
        ranks.append(json.loads(path.read_text()) if path.exists() else {"facts": {}, "runs": []})
    for name, value in ranks[0]["facts"].items():
        findings.fact(name, value)
    runs = list(zip(ranks[0]["runs"], ranks[1]["runs"], strict=False))
    findings.check(len(runs) >= 4, f"{len(runs)} of 4 runs were finished")
    noise = max((first["difference"] for first, _ in runs if first["contender"] == "DDP"), default=0.0)
    for first, second in runs:
        with findings.row(contender=first["contender"], round=first["round"]) as row:
            row["iteration ms"] = first["iteration_s"] * 1e3
            row["over predicted"] = first["iteration_s"] / first["predicted_s"]
            row["same bits on both ranks"] = first["sha256"] == second["sha256"]
            row["weights against the first DDP run"] = first["difference"]
            findings.check(row["same bits on both ranks"], f"{first['contender']}: the ranks' weights differ")
            findings.check(
                first["difference"] <= max(LARGEST_DIFFERENCE, 2 * noise),
                f"{first['contender']}: weights are {first['difference']:.2g} off DDP's (noise {noise:.2g})",
            )
    times = {
        name: [first["iteration_s"] for first, _ in runs if first["contender"] == name]
        for name in ("DDP", "PACE")
    }
    if all(times.values()):
        findings.fact("DDP over PACE, iteration times", min(times["DDP"]) / min(times["PACE"]))


NCCL_RATE_MBIT_S = 10_000.0
NCCL_SAMPLES = 64


def nccl(findings: Findings, setting: Setting) -> None:
    """Train over NCCL as if the two ranks were two hosts."""
    with contextlib.nullcontext(False) if setting.dry else side_by_side(setting.work) as shared:
        findings.fact("kernels of both ranks run side by side (MPS)", shared)
        train(findings, setting, "nccl", rate_mbit_s=NCCL_RATE_MBIT_S, samples=NCCL_SAMPLES)


@contextlib.contextmanager
def side_by_side(work: Path) -> Iterator[bool]:
    """Start NVIDIA's MPS, with which processes share the GPU as if each had one; yield whether it runs."""
    control = shutil.which("nvidia-cuda-mps-control")
    folders = {"CUDA_MPS_PIPE_DIRECTORY": str(work / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(work / "mps-log")}
    for folder in folders.values():
        Path(folder).mkdir(exist_ok=True)
    started = control is not None and (
        subprocess.run([control, "-d"], env=os.environ | folders, check=False).returncode == 0
    )
    if not started or control is None:
        yield False
        return
    os.environ.update(folders)
    try:
        yield True
    finally:
        subprocess.run([control], input="quit\n", text=True, check=False)
        for name in folders:
            del os.environ[name]


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
        host = specification["hosts"][rank]
        enter(Host(**(host | {"link": Link(**host["link"])})))
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
            self._fact("compute ms", sum(op.duration_s for op in profile.ops) * 1e3)
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


if __name__ == "__main__":
    main()
