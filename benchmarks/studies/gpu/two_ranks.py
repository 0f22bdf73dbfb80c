"""The parts ``training`` and ``nccl``: two ranks on one GPU train under DDP and PACE, through a limited link.

The link is a network namespace for each rank, else a limited loopback, else an unlimited one. Every rank
loads this module before torch: entering a namespace is for a process with one thread.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
        What ``become`` takes, for each rank; empty where ranks share one network.
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


def become(host: dict[str, Any]) -> None:
    """Move this process to a host's network; before it starts any thread."""
    enter(Host(**(host | {"link": Link(**host["link"])})))


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
