"""``scripts/gpu-check`` without a GPU: the whole of it dry, and what it promises of failures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.studies.gpu.__main__ import PARTS, TOTAL_S, Part, page, run_part
from benchmarks.studies.gpu.models import WORKLOADS
from benchmarks.studies.gpu.one_rank import Outcomes
from benchmarks.studies.gpu.part import Findings
from tests.preloaded import ROOT, Programs

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.races_with_machine(reason="every part must end within its own limit")
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_dry_run_passes_every_part(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Small models on the CPU, the runtime over the simulated device, both results written."""
    command = [str(ROOT / "scripts" / "gpu-check"), "--dry-run", "--ranks", "3", "--out", str(tmp_path)]
    # Parts and ranks do not load torch each for itself.
    with Programs(tmp_path_factory.mktemp("programs")) as programs:
        environment = os.environ | programs.environment | {"PYTHON": str(programs.python)}
        ended = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=1480, check=False
        )
    shown = (tmp_path / "gpu-check.md").read_text()
    assert ended.returncode == 0, ended.stdout + ended.stderr + shown
    document = json.loads((tmp_path / "gpu-check.json").read_text())
    parts = document["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {part.name: "passed" for part in PARTS}
    assert all(f"## {part.name}\n" in shown for part in PARTS)
    assert "dry run: no GPU was used" in shown

    cuda_files = set(parts["cuda_tests"]["facts"]["files"])
    assert {"tests/runtime/test_cuda.py", "tests/runtime/capture/test_profiler.py"} <= cuda_files
    assert parts["cuda_tests"]["facts"]["skipped"] > 0
    captured = {(row["model"], row["precision"]) for row in parts["captures"]["rows"]}
    assert captured == {(model, precision) for model in WORKLOADS for precision in ("fp32", "bf16")}
    assert all(row["imported ops"] > 0 for row in parts["captures"]["rows"])
    compiled = {row["contender"]: row for row in parts["compiled"]["rows"]}
    assert list(compiled) == ["no pass", "Inductor's overlap pass", "PACE", "FSDP2, not compiled"]
    assert all(row["iteration ms"] > 0 and row["time to the first step s"] > 0 for row in compiled.values())
    assert max(row["weights against no pass"] for row in compiled.values()) <= 1e-2
    planned = compiled["PACE"]
    assert planned["predicted ms"] >= planned["bound ms"] > 0
    assert planned["predicted peak memory GiB"] > 0
    *runs, wraps, two = parts["nccl"]["rows"]
    contenders = ["DDP", "PACE", "PACE without a schedule", "DDP, clipped", "PACE, clipped"]
    contenders += ["HSDP", "PACE, HSDP"]
    assert [run["contender"] for run in runs] == contenders * 2
    assert parts["nccl"]["facts"]["DDP, clipped over PACE, clipped, iteration times"] > 0
    assert (wraps["contender"].split()[1:], two["contender"]) == (
        ["wraps", "one", "after", "another"],
        "two wrappers at once",
    )
    assert int(wraps["contender"].split()[0]) > 1
    assert all(run["same bits on all ranks"] for run in parts["nccl"]["rows"])
    # With three ranks, the order of sums depends on the plan; a ReLU may then turn.
    assert max(run["weights against the first DDP run"] for run in runs) <= 1e-2
    assert all(run["trial ms"] for run in runs if run["contender"] == "PACE without a schedule")
    assert "rank 2 " in parts["nccl"]["facts"]["said of the killed rank"]
    ways = ["plain", "DDP", "PACE, barrier", "PACE, overlap"]
    assert [row["training"] for row in parts["overhead"]["rows"]] == ways


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ranks", "1"), "expected at least 2"),
        (("--model", "GPT2"), "GPT-2 small"),
        (("--rate", "x"), "float"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(options: tuple[str, ...], says: str) -> None:
    """In a line that says what is right."""
    command = [str(ROOT / "scripts" / "gpu-check"), "--dry-run", *options]
    environment = ENVIRONMENT | {"PYTHON": sys.executable}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 2
    assert says in ended.stderr.splitlines()[-1]


def test_models_have_the_published_sizes() -> None:
    """Those of torchvision's ResNet-50, and of Hugging Face's GPT2LMHeadModel and BertForMaskedLM."""
    with torch.device("meta"):
        sizes = {
            name: sum(parameter.numel() for parameter in workload.build().parameters())
            for name, workload in WORKLOADS.items()
        }
    assert sizes == {"ResNet-50": 25_557_032, "GPT-2 small": 124_439_808, "BERT-base": 109_514_298}


def test_the_limits_leave_time_to_end() -> None:
    """Ten minutes for everything, a last part that has to be killed included."""
    assert TOTAL_S + 5 <= 10 * 60
    assert sum(part.limit_s for part in PARTS) <= TOTAL_S


def test_a_part_that_hangs_is_ended(tmp_path: Path) -> None:
    """Its limit passes while it still loads torch."""
    found = run_part(PARTS[0], work=tmp_path, setting={"dry": True}, limit_s=0.05, environment=ENVIRONMENT)
    assert found["status"] == "timed out"
    assert "its limit" in found["failures"][-1]


def test_a_part_that_dies_leaves_its_output(tmp_path: Path) -> None:
    """Here there is none of that name."""
    part = Part(name="no_such_part", module="no_such_module", shows="nothing", limit_s=60)
    found = run_part(part, work=tmp_path, setting={"dry": True}, limit_s=60, environment=ENVIRONMENT)
    assert found["status"] == "failed"
    assert "ModuleNotFoundError" in found["output"]
    document = {"dry_run": True, "date": "", "command": "", "python": "", "seconds": 1.0}
    assert "ModuleNotFoundError" in page(document | {"parts": {"no_such_part": found}})


def test_a_row_that_fails_hides_no_other(tmp_path: Path) -> None:
    """The row keeps what it had, the part fails, and what follows is found all the same."""
    findings = Findings(tmp_path / "part.json")
    with findings.row(model="first") as row:
        row["ops"] = 3
        row["ratio"] = row["ops"] / 0
    with findings.row(model="second") as row:
        row["ops"] = 4
    document = json.loads((tmp_path / "part.json").read_text())
    first = {"model": "first", "ops": 3, "error": "ZeroDivisionError: division by zero"}
    assert document["rows"] == [first, {"model": "second", "ops": 4}]
    assert len(document["failures"]) == 1


def test_a_test_that_fails_fails_its_part(tmp_path: Path) -> None:
    """With what pytest says of it."""
    findings = Findings(tmp_path / "part.json")
    outcomes = Outcomes(findings)
    for when, outcome, says in (("setup", "passed", None), ("call", "failed", "assert 1 == 2")):
        report = pytest.TestReport("t.py::test", ("t.py", 1, "test"), {}, outcome, says, when)  # type: ignore[arg-type]  # from a loop
        outcomes.pytest_runtest_logreport(report)
    document = json.loads((tmp_path / "part.json").read_text())
    assert [row["outcome"] for row in document["rows"]] == ["failed"]
    assert "assert 1 == 2" in document["failures"][0]
    assert outcomes.passed == 0
