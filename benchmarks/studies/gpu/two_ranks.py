"""The parts ``compiled`` and ``nccl``: two ranks on one GPU, which NCCL takes for two hosts.

    python -m benchmarks.studies.gpu.two_ranks SPECIFICATION RANK

runs one rank: it enters its host before it imports torch, while it has one thread, joins the other rank, and
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
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.network.hosts import Host, Link
from benchmarks.harness.network.joining import enter
from benchmarks.studies.compiled_sharding import LABELS
from benchmarks.studies.gpu.link import Wire, side_by_side, wire
from benchmarks.studies.gpu.part import Findings, Setting

DRY_RATE_MBIT_S = 200.0
LARGEST_DIFFERENCE = 0.05
"""Between the weights of two contenders, relative to how far training moved them."""
PATIENCE_S = 240.0
"""For both ranks to end; a part's own limit is shorter, except in a dry run."""

COMPILED_RATE_MBIT_S = 20_000.0
CONTENDERS = ("none", "inductor", "pace", "fsdp2")
LATEST_START_S = 115.0
"""FSDP2, which takes 25 s, is left out if it would start later than this after the part's start."""

NCCL_RATE_MBIT_S = 10_000.0
NUM_RUNS = 8
LOST_S = 10.0
"""The wrapper's time-out when a rank is killed."""


def compiled(findings: Findings, setting: Setting) -> None:
    """Train a sharded transformer: compiled without a pass, with Inductor's and with PACE's; under FSDP2."""
    started = time.monotonic()
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        findings.check(False, "torch.compile needs a C++ compiler: install g++")
        return
    findings.fact("an iteration", "a forward and a backward pass")
    with two_hosts(findings, setting, COMPILED_RATE_MBIT_S) as link:
        for name in CONTENDERS:
            if name == "fsdp2" and not setting.dry and time.monotonic() - started > LATEST_START_S:
                findings.fact("left out, as time was short", LABELS[name])
                continue
            with findings.row(contender=LABELS[name]) as row:
                codes = run(setting, link, "compiled_rank", name)
                row |= records(setting, name)[0]["facts"]
                difference = row.get("weights against no pass", 0.0)
                findings.check(codes == "0 0", f"{LABELS[name]}: the two ranks ended with {codes}")
                findings.check(
                    difference <= LARGEST_DIFFERENCE,
                    f"{LABELS[name]}: weights are {difference:.2g} off those of no pass",
                )


def nccl(findings: Findings, setting: Setting) -> None:
    """Train under DDP and PACE, wrap often, and lose a rank."""
    with two_hosts(findings, setting, NCCL_RATE_MBIT_S) as link:
        try:
            codes = run(setting, link, "nccl_rank", "nccl")
            # The second one is killed.
            findings.check(codes.startswith("0 "), f"the two ranks ended with {codes}")
        finally:
            judge(findings, *records(setting, "nccl"))


def judge(findings: Findings, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Take over what the ranks have found so far, and judge the weights."""
    for name, value in first["facts"].items():
        findings.fact(name, value)
    runs = list(zip(first["rows"], second["rows"], strict=False))
    findings.check(len(runs) == NUM_RUNS, f"{len(runs)} of {NUM_RUNS} runs were finished")
    off = "weights against the first DDP run"
    noise = max((own.get(off, 0.0) for own, _ in runs if own["contender"] == "DDP"), default=0.0)
    for own, other in runs:
        equal = own.pop("sha256") == other["sha256"]
        with findings.row(**own) as row:
            row["same bits on both ranks"] = equal
        findings.check(equal, f"{own['contender']}: the ranks' weights differ")
        findings.check(
            own.get(off, 0.0) <= max(LARGEST_DIFFERENCE, 2 * noise),
            f"{own['contender']}: weights are {own.get(off)} off DDP's (noise {noise:.2g})",
        )
    times = {
        name: [own["iteration ms"] for own, _ in runs if own["contender"] == name] for name in ("DDP", "PACE")
    }
    if all(times.values()):
        findings.fact("DDP over PACE, iteration times", min(times["DDP"]) / min(times["PACE"]))
    said = first["facts"].get("said of the killed rank", "nothing")
    named_s = first["facts"].get("killed rank named after s", float("inf"))
    findings.check(
        "rank 1 " in said and named_s <= LOST_S,
        f"{named_s:.1f} s after rank 1 was killed, with a time-out of {LOST_S:g} s, rank 0 said: {said}",
    )


@contextlib.contextmanager
def two_hosts(findings: Findings, setting: Setting, rate_mbit_s: float) -> Iterator[Wire]:
    """Join two hosts by a link of this rate; let kernels of both run side by side if that is possible."""
    shared = contextlib.nullcontext(False) if setting.dry else side_by_side(setting.work)
    with shared as side, wire(DRY_RATE_MBIT_S if setting.dry else rate_mbit_s) as link:
        findings.fact("kernels of both ranks run side by side (MPS)", side)
        findings.fact("link", link.shown)
        yield link


def run(setting: Setting, link: Wire, module: str, name: str) -> str:
    """Run both ranks and return their exit statuses; a dry run uses Gloo."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    specification = setting.work / f"{name}.ranks.json"
    own = {"dry": setting.dry, "work": str(setting.work), "module": module, "name": name, "port": port}
    specification.write_text(json.dumps(asdict(link) | own))
    rank = f'"{sys.executable}" -m benchmarks.studies.gpu.two_ranks "{specification}"'
    # In one shell, because they share a limited loopback.
    both = f"{rank} 0 & first=$!; {rank} 1 & second=$!; wait $first; a=$?; wait $second; echo ranks $a $?"
    ended = subprocess.run(
        [*link.prefix, "sh", "-c", both], stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
    )
    print(ended.stdout)
    return ended.stdout.rsplit("ranks ", 1)[-1].strip()


def records(setting: Setting, name: str) -> list[dict[str, Any]]:
    """Return what both ranks have found so far."""
    paths = [setting.work / f"{name}.rank{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text()) if path.exists() else {"facts": {}, "rows": []} for path in paths]


def main() -> None:
    """Join the other rank and train."""
    specification = json.loads(Path(sys.argv[1]).read_text())
    rank = int(sys.argv[2])
    if specification["hosts"]:
        host = specification["hosts"][rank]
        enter(Host(**(host | {"link": Link(**host["link"])})))
    name, work, dry = specification["name"], Path(specification["work"]), specification["dry"]
    # Each rank compiles for itself. In a dry run, they share what they compile, to save time.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(work / ("compiled" if dry else f"{name}.rank{rank}.compiled"))
    os.environ["GLOO_SOCKET_IFNAME"] = specification["interface"]
    if not dry:
        # NCCL refuses two ranks of one host on one GPU, so each rank is a host of its own.
        os.environ |= {
            "NCCL_HOSTID": f"host{rank}",
            "NCCL_SOCKET_IFNAME": specification["interface"],
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
    store = TCPStore(specification["address"], specification["port"], 2, rank == 0, timeout)
    backend = "gloo" if dry else "nccl"
    device = None if dry else torch.device("cuda:0")
    dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=timeout, device_id=device)
    module = importlib.import_module(f"benchmarks.studies.gpu.{specification['module']}")
    module.train(Findings(work / f"{name}.rank{rank}.json"), Setting(dry=dry, work=work), rank, name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
