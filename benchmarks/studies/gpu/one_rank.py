"""The parts of one process: tests, captures and traces, and what the runtime costs.

``overhead`` is a job of one rank, which sends nothing: over NCCL on a GPU, over Gloo on the simulated device.
"""

import contextlib
import gc
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.studies.gpu.models import PRECISIONS, Workload, device_seconds, training_step, workloads
from benchmarks.studies.gpu.part import Findings, Setting
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile
from pace.formats.kineto import read_kineto
from pace.runtime.profiler import Capture
from pace.runtime.torch import DistributedOptimizer

ROOT = Path(__file__).resolve().parents[3]
# The project's own options ask for plugins that may be missing, and make every warning an error.
OPTIONS = """[pytest]
pythonpath = {root}
markers =
    cuda: needs a CUDA device
    slow: takes more than a few seconds
    netns: makes network namespaces
    horovod: needs Horovod
    races_with_machine: depends on when the machine runs which process
"""
PROCESSES = 4


class Outcomes:
    """A pytest plugin that keeps every test's outcome as soon as it is known."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.passed = 0
        self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test, or of a set-up or clean-up that did not pass."""
        if report.when != "call" and report.passed:
            return
        with self._findings.row(test=report.nodeid) as row:
            row["outcome"] = report.outcome
            row["seconds"] = report.duration
            if report.skipped and isinstance(report.longrepr, tuple | list):
                row["reason"] = report.longrepr[2]
        self.passed += report.when == "call" and report.passed
        self.skipped += report.skipped
        self._findings.check(
            not report.failed, f"{report.nodeid} ({report.when}):\n{report.longreprtext[-2500:]}"
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be loaded fails the part."""
        self._findings.check(not report.failed, f"{report.nodeid}:\n{report.longreprtext[-2500:]}")


def cuda_tests(findings: Findings, setting: Setting) -> None:
    """Run the tests marked ``cuda``, and fail for each that fails; without a GPU all are skipped."""
    options = setting.work / "pytest.ini"
    options.write_text(OPTIONS.format(root=ROOT))
    files = sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.cuda" in path.read_text(encoding="utf-8")
        and not path.is_relative_to(ROOT / "tests" / "scripts")
    )
    findings.fact("files", files)
    command = ["-c", str(options), "--rootdir", str(ROOT), "--import-mode=importlib", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
    if not setting.dry and importlib.util.find_spec("xdist") is not None:
        command += ["--numprocesses", str(PROCESSES)]
    outcomes = Outcomes(findings)
    code = pytest.main([*command, "-m", "cuda", *files], [outcomes])
    findings.fact("passed", outcomes.passed)
    findings.fact("skipped", outcomes.skipped)
    findings.check(code == 0, f"pytest ended with {code}")
    findings.check(setting.dry or outcomes.passed > 0, "no test passed")
    findings.check(setting.dry or outcomes.skipped == 0, f"{outcomes.skipped} tests were skipped on a GPU")


LARGEST_ERROR = 0.10
"""Above it capture itself warns; how exact a busy machine's numbers are is no reason to fail a dry run."""
ALLREDUCE = AffineAllReduce(latency_s=1e-4, seconds_per_byte=1e-9)
TRACED_STEPS = 3


def captures(findings: Findings, setting: Setting) -> None:
    """Capture real models and import traces of the same training; compare both with plain steps."""
    findings.fact("TF32 in convolutions", torch.backends.cudnn.allow_tf32)
    findings.fact("TF32 in matrix products", torch.backends.cuda.matmul.allow_tf32)
    findings.fact("bf16", "autocast; weights and gradients stay float32")
    for name, workload in workloads(dry=setting.dry).items():
        for precision in PRECISIONS:
            with findings.row(model=name, precision=precision) as row:
                capture_model(row, findings, setting, name, workload, precision)
            gc.collect()
            if not setting.dry:
                torch.cuda.empty_cache()


def capture_model(
    row: dict[str, Any],
    findings: Findings,
    setting: Setting,
    name: str,
    workload: Workload,
    precision: str,
) -> None:
    """Capture one model in one precision, then record and import its trace."""
    iterations = 2 if setting.dry else 10
    model = workload.model(setting.device)
    row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    row["batch"] = workload.batch_size
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    step = training_step(model, optimizer, workload.batch(setting.device), precision)
    with Capture(model, optimizer, iterations=iterations) as capture:
        while not capture.finished:
            step()
            capture.step()
    report = capture.report
    captured = capture.profile(name, workers=2, allreduce=ALLREDUCE)
    plain_s = device_seconds(model, step, iterations)
    row |= {
        "ops": len(captured.ops),
        "gradients": len(captured.gradients),
        "plain iteration ms": report.plain_iteration_s * 1e3,
        "predicted ms": report.profile_s * 1e3,
        "error": report.error,
        "capture costs": report.overhead,
        "plain iteration without capture ms": plain_s * 1e3,
        "left out": report.num_dropped,
    }
    what = f"{name} {precision}"
    sent = 4 * row["parameters"]
    findings.check(_sent(captured) == sent, f"{what}: the profile's gradients have {_sent(captured)} bytes")
    findings.check(setting.dry or abs(report.error) <= LARGEST_ERROR, f"{what}: error {report.error:+.1%}")

    trace = setting.work / f"{what}.trace.json".replace(" ", "-")
    cuda = [] if setting.dry else [ProfilerActivity.CUDA]
    with profile(
        activities=[ProfilerActivity.CPU, *cuda],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=TRACED_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
    ) as recorded:
        for _ in range(1 + TRACED_STEPS):
            step()
            recorded.step()
    imported = read_kineto([trace], workers=2, allreduce=ALLREDUCE, name=name)
    about = imported.metadata
    error = about["compute_s"] / about["step_wall_s"] - 1
    row |= {
        "trace MB": trace.stat().st_size / 1e6,
        "clock": about["clock"],
        "imported ops": len(imported.ops),
        "imported compute ms": about["compute_s"] * 1e3,
        "recorded step ms": about["step_wall_s"] * 1e3,
        "import error": error,
        "recording costs": about["step_wall_s"] / plain_s - 1,
        "busy share": about["busy_share"],
    }
    findings.check(
        len(imported.gradients) == row["gradients"] and _sent(imported) == sent,
        f"{what}: the trace has {len(imported.gradients)} gradients of {_sent(imported)} bytes,"
        f" the model {row['gradients']} of {sent}",
    )
    findings.check(
        setting.dry or abs(error) <= LARGEST_ERROR,
        f"{what}: imported compute is {error:+.1%} off the step",
    )
    findings.check(setting.dry or about["clock"] in ("device", "hybrid"), f"{what}: the trace has no kernels")


def _sent(profile: Profile) -> int:
    return sum(gradient.size_bytes for gradient in profile.gradients)


WAYS = ("plain", "DDP", "PACE, barrier", "PACE, overlap")


@contextlib.contextmanager
def one_rank(setting: Setting) -> Iterator[None]:
    """Join a process group of this process alone."""
    backend = "gloo" if setting.dry else "nccl"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if setting.dry:
        from tests.runtime.engine.queued_device import simulate_gpu

        simulate_gpu(0)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def trained(way: str, model: nn.Module, workload: Workload, device: str) -> Iterator[Callable[[], None]]:
    """Wrap a model in one of ``WAYS``; yields what trains a step."""
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
    wrapped = model
    if way == "DDP":
        wrapped = DistributedDataParallel(model)
    elif way != "plain":
        optimizer = DistributedOptimizer(
            optimizer, model, mode="barrier" if "barrier" in way else "overlap", timeout_s=30.0
        )
    step = training_step(wrapped, optimizer, workload.batch(device))
    try:
        yield step
        getattr(optimizer, "synchronize", lambda: None)()
    finally:
        getattr(optimizer, "close", lambda: None)()
        del wrapped, step, optimizer
        gc.collect()  # DDP's hooks go with it


ROUNDS = 3
OVERHEAD_MODEL = "GPT-2 small"


def overhead(findings: Findings, setting: Setting) -> None:
    """What the runtime costs an iteration in which nothing has to be sent: time and peak memory."""
    workload = workloads(dry=setting.dry)[OVERHEAD_MODEL]
    findings.fact("model", f"{OVERHEAD_MODEL}, fp32, AdamW, {workload.batch_size} samples a batch, one rank")
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with one_rank(setting):
        for number in range(1 if setting.dry else ROUNDS):
            for way in WAYS:
                with findings.row(training=way, round=number) as row:
                    row |= measure(way, workload, setting)
                    found[way].append(row["iteration ms"])
                gc.collect()
                if not setting.dry:
                    torch.cuda.empty_cache()
    if found["plain"]:
        plain_ms = median(found["plain"])
        over = {way: median(times) / plain_ms for way, times in found.items() if times}
        findings.fact("iteration time over plain", over)


def measure(way: str, workload: Workload, setting: Setting) -> dict[str, float]:
    """Return an iteration's milliseconds on the device's clock and, on a GPU, what it adds to memory."""
    before_mb = 0.0 if setting.dry else torch.cuda.memory_allocated() / 1e6  # DDP leaves its buckets behind
    model = workload.model(setting.device)
    with trained(way, model, workload, setting.device) as step:
        if not setting.dry:
            torch.cuda.reset_peak_memory_stats()
        found = {"iteration ms": device_seconds(model, step, 3 if setting.dry else 10) * 1e3}
    if not setting.dry:
        found["peak MB"] = torch.cuda.max_memory_allocated() / 1e6 - before_mb
    return found
