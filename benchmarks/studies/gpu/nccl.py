"""Two ranks on one GPU train over NCCL as if they were two hosts."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.studies.gpu.findings import Findings, Setting
from benchmarks.studies.gpu.training import train

RATE_MBIT_S = 10_000.0
SAMPLES = 64


def run(findings: Findings, setting: Setting) -> None:
    """See ``parts``."""
    with contextlib.nullcontext(False) if setting.dry else side_by_side(setting.work) as shared:
        findings.fact("kernels of both ranks run side by side (MPS)", shared)
        train(findings, setting, "nccl", rate_mbit_s=RATE_MBIT_S, samples=SAMPLES)


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
