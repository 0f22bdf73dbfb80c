"""The parts ``compiled`` and ``nccl``: ranks on one GPU, each of which NCCL takes for a host.

    python -m benchmarks.studies.gpu.ranks SPECIFICATION RANK

runs one rank: it enters its host before it imports torch, while it has one thread, joins the other ranks, and
calls ``train`` of a module of this folder. It writes each finding to a file at once.
"""

import contextlib
import datetime
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.network.hosts import INTERFACE, Host, Link, hosts
from benchmarks.harness.network.joining import enter
from benchmarks.harness.prerequisites import TestbedUnavailable
from benchmarks.studies.compiled_sharding import LABELS
from benchmarks.studies.gpu.part import Findings, Setting

DRY_RATE_MBIT_S = 200.0
LARGEST_DIFFERENCE = 0.05
"""Between the weights of two contenders, relative to how far training moved them."""
LARGEST_DIFFERENCE_OF_SUMS = 0.15
"""With more than two ranks NCCL adds in an order that depends on a call's size."""
PATIENCE_S = 240.0
"""For all ranks to end; a part's own limit is shorter, except in a dry run."""

COMPILED_RATE_MBIT_S = 20_000.0
CONTENDERS = ("none", "inductor", "pace", "fsdp2")
LATEST_START_S = 115.0
"""FSDP2, which takes 25 s, is left out if it would start later than this after the part's start."""

NUM_RUNS = 16
LOST_S = 10.0
"""The wrapper's time-out when a rank is killed."""

# All ranks' traffic passes the one loopback device. Its queue must hold what TCP sends at once.
LIMIT = "ip link set lo up && tc qdisc add dev lo root tbf rate {rate}mbit burst 256kb latency 200ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How ranks reach each other.

    Attributes
    ----------
    prefix
        What the command that starts the ranks begins with.
    hosts
        Hosts of the ranks, as JSON has them; empty where ranks share one network.
    """

    shown: str
    prefix: tuple[str, ...] = ()
    interface: str = "lo"
    address: str = "127.0.0.1"
    hosts: tuple[dict[str, Any], ...] = ()


@contextlib.contextmanager
def wire(ranks: int, rate_mbit_s: float) -> Iterator[Wire]:
    """Make the best link that this machine allows, and take it away again."""
    with contextlib.ExitStack() as made:
        try:
            on = made.enter_context(hosts([Link(rate_mbit_s=rate_mbit_s)] * ranks))
        except (TestbedUnavailable, subprocess.CalledProcessError, OSError) as error:
            yield _loopback(ranks * rate_mbit_s, " ".join(str(error).split()))
            return
        yield Wire(
            shown=f"{ranks} network namespaces, joined at {rate_mbit_s:g} Mbit/s both ways by the kernel",
            interface=INTERFACE,
            address=on[0].address,
            hosts=tuple(asdict(host) for host in on),
        )


def _loopback(rate_mbit_s: float, why: str) -> Wire:
    limit = LIMIT.format(rate=round(rate_mbit_s))
    for unshare in (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net")):
        prefix = (*unshare, "sh", "-ec", f'{limit} && exec "$@"', "sh")
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                shown = f"loopback limited to {rate_mbit_s:g} Mbit/s for all ranks together ({why})"
                return Wire(shown=shown, prefix=prefix)
    return Wire(shown=f"loopback as fast as it is: this machine allows no limit ({why})")


MPS_END_S = 10.0


@contextlib.contextmanager
def side_by_side(work: Path) -> Iterator[bool]:
    """Start NVIDIA's MPS, with which processes share the GPU as if each had one; yield whether it runs."""
    control = shutil.which("nvidia-cuda-mps-control")
    # New ones each time: an earlier daemon may not have ended.
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    folders = {name: tempfile.mkdtemp(prefix="mps-", dir=work) for name in names}
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
        # It may not answer after a rank was killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([control], input="quit\n", text=True, check=False, timeout=MPS_END_S)
        for name in names:
            del os.environ[name]


def compiled(findings: Findings, setting: Setting) -> None:
    """Train a sharded transformer: compiled without a pass, with Inductor's and with PACE's; under FSDP2."""
    started = time.monotonic()
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        findings.check(False, "torch.compile needs a C++ compiler: install g++")
        return
    findings.fact("an iteration", "a forward and a backward pass")
    with joined(findings, setting, 2, COMPILED_RATE_MBIT_S) as link:
        for name in CONTENDERS:
            if name == "fsdp2" and not setting.dry and time.monotonic() - started > LATEST_START_S:
                findings.fact("left out, as time was short", LABELS[name])
                continue
            with findings.row(contender=LABELS[name]) as row:
                codes = run(setting, link, 2, "compiled_rank", name)
                row |= records(setting, 2, name)[0]["facts"]
                difference = row.get("weights against no pass", 0.0)
                findings.check(codes == "0 0", f"{LABELS[name]}: the two ranks ended with {codes}")
                findings.check(
                    difference <= LARGEST_DIFFERENCE,
                    f"{LABELS[name]}: weights are {difference:.2g} off those of no pass",
                )


def nccl(findings: Findings, setting: Setting) -> None:
    """Train under DDP and PACE, wrap often, and lose a rank."""
    with joined(findings, setting, setting.ranks, setting.rate_mbit_s) as link:
        try:
            codes = run(setting, link, setting.ranks, "nccl_rank", "nccl")
            # The last one is killed.
            expected = ["0"] * (setting.ranks - 1)
            findings.check(codes.split()[:-1] == expected, f"the ranks ended with {codes}")
        finally:
            judge(findings, records(setting, setting.ranks, "nccl"))


def judge(findings: Findings, ranks: list[dict[str, Any]]) -> None:
    """Take over what the ranks have found so far, and judge the weights."""
    first = ranks[0]
    for name, value in first["facts"].items():
        findings.fact(name, value)
    runs = list(zip(*(rank["rows"] for rank in ranks), strict=False))
    findings.check(len(runs) == NUM_RUNS, f"{len(runs)} of {NUM_RUNS} runs were finished")
    off = "weights against the first DDP run"
    noise = max((own.get(off, 0.0) for own, *_ in runs if own["contender"].startswith("DDP")), default=0.0)
    largest = LARGEST_DIFFERENCE if len(ranks) == 2 else LARGEST_DIFFERENCE_OF_SUMS
    for own, *others in runs:
        equal = all(own["sha256"] == other["sha256"] for other in others)
        del own["sha256"]
        with findings.row(**own) as row:
            row["same bits on all ranks"] = equal
        findings.check(equal, f"{own['contender']}: the ranks' weights differ")
        findings.check(
            own.get(off, 0.0) <= max(largest, 2 * noise),
            f"{own['contender']}: weights are {own.get(off)} off DDP's (noise {noise:.2g})",
        )
    times: dict[str, list[float]] = {}
    for own, *_ in runs:
        if "iteration ms" in own:
            times.setdefault(own["contender"], []).append(own["iteration ms"])
    for name in sorted(name for name in times if name.startswith("PACE")):
        ddp = {"PACE, clipped": "DDP, clipped", "PACE, HSDP": "HSDP"}.get(name, "DDP")
        findings.fact(f"{ddp} over {name}, iteration times", min(times[ddp]) / min(times[name]))
    killed = len(ranks) - 1
    said = first["facts"].get("said of the killed rank", "nothing")
    named_s = first["facts"].get("killed rank named after s", float("inf"))
    findings.check(
        f"rank {killed} " in said and named_s <= LOST_S,
        f"{named_s:.1f} s after rank {killed} was killed, with a time-out of {LOST_S:g} s, rank 0 said:"
        f" {said}",
    )


@contextlib.contextmanager
def joined(findings: Findings, setting: Setting, ranks: int, rate_mbit_s: float) -> Iterator[Wire]:
    """Join hosts by links of this rate; let their kernels run side by side if that is possible."""
    shared = side_by_side(setting.work) if setting.mps and not setting.dry else contextlib.nullcontext(False)
    with shared as side, wire(ranks, DRY_RATE_MBIT_S if setting.dry else rate_mbit_s) as link:
        findings.fact("kernels of all ranks run side by side (MPS)", side)
        findings.fact("link", link.shown)
        yield link


def run(setting: Setting, link: Wire, ranks: int, module: str, name: str) -> str:
    """Run the ranks and return their exit statuses; a dry run uses Gloo."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    specification = setting.work / f"{name}.ranks.json"
    own = {"ranks": ranks, "module": module, "name": name, "port": port}
    stated = asdict(setting) | {"work": str(setting.work)}
    specification.write_text(json.dumps({"link": asdict(link), "setting": stated} | own))
    rank = f'"{sys.executable}" -m benchmarks.studies.gpu.ranks "{specification}"'
    # In one shell, because they share a limited loopback.
    started = " ".join(f'{rank} {number} & all="$all $!";' for number in range(ranks))
    waited = 'codes=; for each in $all; do wait $each; codes="$codes $?"; done; echo "ranks$codes"'
    ended = subprocess.run(
        [*link.prefix, "sh", "-c", f"all=; {started} {waited}"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    print(ended.stdout)
    return ended.stdout.rsplit("ranks", 1)[-1].strip()


def records(setting: Setting, ranks: int, name: str) -> list[dict[str, Any]]:
    """Return what the ranks have found so far."""
    paths = [setting.work / f"{name}.rank{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) if path.exists() else {"facts": {}, "rows": []} for path in paths]


def main() -> None:
    """Join the other ranks and train."""
    specification = json.loads(Path(sys.argv[1]).read_text())
    rank, ranks = int(sys.argv[2]), specification["ranks"]
    link, stated = Wire(**specification["link"]), specification["setting"]
    if link.hosts:
        host = link.hosts[rank]
        enter(Host(**(host | {"link": Link(**host["link"])})))
    setting = Setting(**(stated | {"work": Path(stated["work"])}))
    name, work, dry = specification["name"], setting.work, setting.dry
    # Each rank compiles for itself. In a dry run, they share what they compile, to save time.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(work / ("compiled" if dry else f"{name}.rank{rank}.compiled"))
    os.environ["GLOO_SOCKET_IFNAME"] = link.interface
    if not dry:
        # NCCL refuses ranks of one host on one GPU, so each rank is a host of its own.
        os.environ |= {
            "NCCL_HOSTID": f"host{rank}",
            "NCCL_SOCKET_IFNAME": link.interface,
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_NET": "Socket",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_IB_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    if not dry:
        torch.cuda.set_device(0)
    timeout = datetime.timedelta(seconds=100)
    store = TCPStore(link.address, specification["port"], ranks, rank == 0, timeout)
    backend = "gloo" if dry else "nccl"
    device = None if dry else torch.device("cuda:0")
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=ranks, timeout=timeout, device_id=device
    )
    module = importlib.import_module(f"benchmarks.studies.gpu.{specification['module']}")
    module.train(Findings(work / f"{name}.rank{rank}.json"), setting, rank, name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
