"""The parts ``captures`` and ``kineto``: profiles of real models, captured and read from traces."""

import gc
import json

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.studies.gpu.models import PRECISIONS, Workload, device_seconds, training_step, workloads
from benchmarks.studies.gpu.part import Findings, Setting
from pace.documents.collective_costs import AffineAllReduce
from pace.runtime.profiler import Capture

LARGEST_ERROR = 0.10
"""Above it capture itself warns; how exact a busy machine's numbers are is no reason to fail a dry run."""
ALLREDUCE = AffineAllReduce(latency_s=1e-4, seconds_per_byte=1e-9)
TRACED_STEPS = 3


def captures(findings: Findings, setting: Setting) -> None:
    """Capture real models' profiles; leave a trace of the same training for the part ``kineto``."""
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


def kineto(findings: Findings, setting: Setting) -> None:
    """Read the traces of the part ``captures`` through the importer; compare with what was measured."""
    from pace.formats.kineto import read_kineto  # which needs packages that captures do not need

    runs = sorted(setting.work.glob("*.run.json"))
    findings.check(bool(runs), "there is no trace: the part captures left none")
    for path in runs:
        run = json.loads(path.read_text())
        with findings.row(model=run["model"], precision=run["precision"]) as row:
            trace = path.with_name(path.name.replace(".run.json", ".trace.json"))
            row["trace MB"] = trace.stat().st_size / 1e6
            profile = read_kineto([trace], workers=2, allreduce=ALLREDUCE, name=run["model"])
            about = profile.metadata
            row |= {
                "clock": about["clock"],
                "ops": len(profile.ops),
                "gradients": len(profile.gradients),
                "imported compute ms": about["compute_s"] * 1e3,
                "recorded step ms": about["step_wall_s"] * 1e3,
                "error": about["compute_s"] / about["step_wall_s"] - 1,
                "plain iteration ms": run["plain_s"] * 1e3,
                "recording costs": about["step_wall_s"] / run["plain_s"] - 1,
                "captured profile ms": run["predicted_s"] * 1e3,
                "busy share": about["busy_share"],
            }
            found = (len(profile.gradients), sum(gradient.size_bytes for gradient in profile.gradients))
            expected = (run["gradients"], run["bytes"])
            findings.check(
                found == expected,
                f"{run['model']} {run['precision']}: (gradients, bytes) {found}, the model has {expected}",
            )
            findings.check(
                setting.dry or abs(row["error"]) <= LARGEST_ERROR,
                f"{run['model']} {run['precision']}: compute is {row['error']:+.1%} of the recorded step off",
            )
            findings.check(
                setting.dry or about["clock"] in ("device", "hybrid"),
                f"{run['model']} {run['precision']}: the trace has no kernels",
            )
