"""Reads the traces of the part ``captures`` through the importer; compares with what was measured."""

import json

from benchmarks.studies.gpu.findings import Findings, Setting
from pace.documents.collective_costs import AffineAllReduce
from pace.formats.kineto import read_kineto

LARGEST_ERROR = 0.1
ALLREDUCE = AffineAllReduce(latency_s=1e-4, seconds_per_byte=1e-9)


def run(findings: Findings, setting: Setting) -> None:
    """See ``parts``."""
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
