"""Captures real models' profiles and leaves, for the part ``kineto``, a trace of the same training."""

import gc
import json

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.studies.gpu.findings import Findings, Setting
from benchmarks.studies.gpu.loops import PRECISIONS, device_seconds, training_step
from benchmarks.studies.gpu.models import Workload, workloads
from pace.documents.collective_costs import AffineAllReduce
from pace.runtime.profiler import Capture

LARGEST_ERROR = 0.10
"""Above it capture itself warns; how exact a busy machine's numbers are is no reason to fail a dry run."""
ALLREDUCE = AffineAllReduce(latency_s=1e-4, seconds_per_byte=1e-9)
TRACED_STEPS = 3


def run(findings: Findings, setting: Setting) -> None:
    """See ``parts``."""
    findings.fact("TF32 in convolutions", torch.backends.cudnn.allow_tf32)
    findings.fact("TF32 in matrix products", torch.backends.cuda.matmul.allow_tf32)
    findings.fact("bf16", "autocast; weights and gradients stay float32")
    for name, workload in workloads(dry=setting.dry).items():
        for precision in PRECISIONS:
            capture_model(findings, setting, name, workload, precision)
            gc.collect()
            if not setting.dry:
                torch.cuda.empty_cache()


def capture_model(
    findings: Findings, setting: Setting, name: str, workload: Workload, precision: str
) -> None:
    """Capture one model in one precision, then record its trace."""
    iterations = 2 if setting.dry else 10
    with findings.row(model=name, precision=precision) as row:
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
        sent = sum(gradient.size_bytes for gradient in captured.gradients)
        assert sent == 4 * row["parameters"], f"the profile's gradients have {sent} bytes"
        findings.check(
            setting.dry or abs(report.error) <= LARGEST_ERROR,
            f"{name} {precision}: error {report.error:+.1%}",
        )
        stem = f"{name}-{precision}".replace(" ", "-")
        cuda = [] if setting.dry else [ProfilerActivity.CUDA]
        with profile(
            activities=[ProfilerActivity.CPU, *cuda],
            record_shapes=True,
            schedule=schedule(wait=0, warmup=1, active=TRACED_STEPS, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(setting.work / f"{stem}.trace.json")),
        ) as recorded:
            for _ in range(1 + TRACED_STEPS):
                step()
                recorded.step()
        about = {"model": name, "precision": precision, "plain_s": plain_s, "predicted_s": report.profile_s}
        about |= {"gradients": len(captured.gradients), "bytes": sent}
        (setting.work / f"{stem}.run.json").write_text(json.dumps(about))
