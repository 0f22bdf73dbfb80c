"""One part of the check, in a process of its own: its setting, what it finds, and the part ``machine``.

python -m benchmarks.studies.gpu.part MODULE NAME RESULT WORK SETTING
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Arguments that every part gets.

    Attributes
    ----------
    dry
        Small models on the CPU, the runtime over a simulated device.
    work
        A folder for what one part leaves to another.
    ranks, model, samples, rate_mbit_s
        Of the part ``nccl``: ranks, and what they train, over links of this rate; None for the model's own
        number of samples.
    mps
        Whether kernels of several ranks may run side by side.
    """

    dry: bool
    work: Path
    ranks: int
    model: str
    samples: int | None
    rate_mbit_s: float
    mps: bool

    @property
    def device(self) -> str:
        """Torch's name of the device to use."""
        return "cpu" if self.dry else "cuda"


class Findings:
    """A part's results, kept in `path` as they come: a process that is killed loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._document: dict[str, Any] = {"facts": {}, "rows": [], "failures": []}
        self._write()

    def fact(self, name: str, value: Any) -> None:
        """Keep one thing that holds for the whole part."""
        self._document["facts"][name] = value
        self._write()

    def check(self, holds: bool, message: str) -> None:
        """Fail the part, with this message, unless something holds."""
        if not holds:
            self._document["failures"].append(message)
            self._write()

    @contextlib.contextmanager
    def row(self, **named: Any) -> Iterator[dict[str, Any]]:
        """Fill in one row; an exception becomes the row's and the part's failure, and the part goes on."""
        row: dict[str, Any] = dict(named)
        label = " ".join(str(value) for value in named.values())
        try:
            yield row
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:300]
            self._document["failures"].append(f"{label}: {traceback.format_exc()[-3000:]}")
        self._document["rows"].append(row)
        self._write()

    def _write(self) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(self._document))
        os.replace(written, self._path)


PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
ALSO = ("httpx", "structlog", "tenacity", "pytest", "pytest-timeout", "pytest-xdist")


def machine(findings: Findings, setting: Setting) -> None:
    """Fail for every package that is missing, and say what the GPU is."""
    import torch

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


def main() -> None:
    """Run the part; its exceptions end the process and are found in what it printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="module of the part to run")
    parser.add_argument("name", help="name of the part, and of its function in the module")
    parser.add_argument("result", type=Path, help="file for the result (JSON)")
    parser.add_argument("work", type=Path, help="folder for files of the run")
    parser.add_argument("setting", type=json.loads, help="what else is in Setting (JSON)")
    arguments = parser.parse_args()
    findings = Findings(arguments.result)
    module = importlib.import_module(f"benchmarks.studies.gpu.{arguments.module}")
    part = getattr(module, arguments.name)
    part(findings, Setting(work=arguments.work, **arguments.setting))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
