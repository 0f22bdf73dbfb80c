"""The machine: its GPU, torch, and whether every package that PACE needs is there."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import tomllib
from pathlib import Path

import torch

from benchmarks.studies.gpu.part import Findings, Setting

PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
ALSO = ("httpx", "structlog", "tenacity", "pytest", "pytest-timeout", "pytest-xdist")


def machine(findings: Findings, setting: Setting) -> None:
    """Fail for every package that is missing, and say what the GPU is."""
    findings.fact("platform", platform.platform())
    findings.fact("cpus", os.cpu_count())
    findings.fact("torch", torch.__version__)
    findings.fact("cuda", torch.version.cuda)
    for name in (*_dependencies(), *ALSO):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
            findings.check(name == "pytest-xdist", f"{name} is not installed: install it with pip")
        findings.fact(name, version)
    if setting.dry:
        return
    findings.check(torch.cuda.is_available(), "torch sees no CUDA device")
    if (program := shutil.which("nvidia-smi")) is not None:
        query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        asked = subprocess.run(query, capture_output=True, text=True, check=False, timeout=15)
        findings.fact("nvidia-smi", asked.stdout.strip())
    gpu = torch.cuda.get_device_properties(0)
    findings.fact("gpu", gpu.name)
    findings.fact("gpu memory in GB", gpu.total_memory / 1e9)
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    findings.fact("nccl", ".".join(str(number) for number in version))


def _dependencies() -> list[str]:
    project = tomllib.loads(PROJECT.read_text())["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["solver"]
    return [requirement.split(">")[0].split("=")[0] for requirement in needed]
