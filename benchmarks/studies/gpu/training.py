"""Two ranks on one GPU train under DDP and under PACE, through a limited link."""

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Literal

from benchmarks.studies.gpu.findings import Findings, Setting
from benchmarks.studies.gpu.links import Wire, wire

DRY_RATE_MBIT_S = 200.0
LARGEST_DIFFERENCE = 0.05
"""Between weights trained under PACE and under DDP, relative to how far training moved them."""
PATIENCE_S = 130.0


def run(findings: Findings, setting: Setting) -> None:
    """See ``parts``."""
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
    rank = f'"{sys.executable}" -m benchmarks.studies.gpu.training_rank "{specification}"'
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
