"""The pause of new weights for rollout engines: by a plan, by torch broadcasts, and the bound.

python -m benchmarks weight_sync --megabytes 500 --receivers 4 --mbit 100
python -m benchmarks weight_sync --loopback --megabytes 500 --receivers 1 --verl FOLDER

Needs root and iproute2. Every host has a link of `--mbit` Mbit/s. All contenders run in turn, on the same
hosts.
With `--loopback` all processes are on one host, without links, and no root is needed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.prerequisites import require_network
from benchmarks.studies.weight_sync.states import model_state
from pace_sync.documents.sync_plan import SyncPlan
from pace_sync.documents.weight_sync import SyncHost, SyncReceiver, WeightSync, WorkRate
from pace_sync.planning.plan import plan_sync
from pace_sync.weight_sync import sync_tensors

# Tensor by tensor, in buckets, and slime's loop over the same buckets.
BROADCASTS = ("tensors", "buckets", "slime")
# What a plan for loopback assumes.
LOOPBACK_MBIT = 8000.0
PROGRAM = [sys.executable, "-m", "benchmarks.studies.weight_sync.rank"]
# What TCP carries of a full frame of 1,514 bytes.
PAYLOAD = 1448 / 1514


@dataclass(frozen=True)
class LocalHost:
    """An address of this host; its processes may import from a folder, too."""

    address: str
    folder: Path | None = None


def main() -> None:
    """Measure all contenders, one after the other."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_number("--megabytes", 500, "size of the model in MB")
    parser.add_number("--receivers", 4, "number of rollout engines")
    parser.add_number("--mbit", 100.0, "bandwidth of every link in Mbit/s")
    parser.add_number("--bucket-mib", 64, "size of fixed buckets in MiB")
    parser.add_number("--rounds", 3, "number of measured rounds")
    parser.add_argument(
        "--loopback", action="store_true", help="run all processes on this host, with unlimited links"
    )
    parser.add_argument(
        "--verl",
        help="with --loopback: measure verl's BucketedWeightSender too. Folder that `pip install --no-deps "
        "--target FOLDER verl pyzmq` made",
    )
    arguments = parser.parse_args()
    if arguments.loopback:
        on_loopback(arguments)
        return
    require_network()
    plan = planned(arguments.megabytes, arguments.receivers, arguments.mbit)
    found: dict[str, Any] = {"bound_s": plan.bound.bound_s, "predicted_s": plan.predicted.pause_s}
    common = (arguments.megabytes, arguments.rounds)
    with hosts([Link(rate_mbit_s=arguments.mbit)] * (arguments.receivers + 1)) as made:
        found["pace_s"] = by_plan(list(made), plan, *common)
        for how in BROADCASTS:
            found[f"{how}_s"] = by_broadcast(list(made), how, arguments.bucket_mib << 20, *common)
    pace = median(found["pace_s"])
    print(f"bound {plan.bound.bound_s:.3g} s, plan predicted {plan.predicted.pause_s:.3g} s")
    print(f"pace {pace:.3g} s: {pace / plan.bound.bound_s:.3f} x the bound")
    _compare(found, arguments.json)


def on_loopback(arguments: argparse.Namespace) -> None:
    """Measure all contenders between processes of this host; there is no bound without links."""
    plan = planned(arguments.megabytes, arguments.receivers, LOOPBACK_MBIT)
    common = (arguments.megabytes, arguments.rounds)
    here = [LocalHost(f"127.0.0.{number + 1}") for number in range(arguments.receivers + 1)]
    found: dict[str, Any] = {"pace_s": by_plan(here, plan, *common)}
    for how in BROADCASTS:
        found[f"{how}_s"] = by_broadcast(here, how, arguments.bucket_mib << 20, *common)
    if arguments.verl is not None:
        found["verl_s"] = by_shared_memory(Path(arguments.verl), 512, *common)
    print(f"pace {median(found['pace_s']):.3g} s")
    _compare(found, arguments.json)


def _compare(found: dict[str, Any], path: Path | None) -> None:
    pace = median(found["pace_s"])
    for name in found:
        if name in ("tensors_s", "buckets_s", "slime_s", "verl_s"):
            print(f"{name} {median(found[name]):.3g} s: pace takes {pace / median(found[name]):.2f} of it")
    write_json(path, found)


def planned(megabytes: int, receivers: int, mbit: float) -> SyncPlan:
    """Return the plan for hosts with links of this rate; a receiver copies at 1 GB/s or faster."""
    rate = mbit * 1e6 / 8 * PAYLOAD
    work = (WorkRate(kind="copy", seconds_per_byte=1e-9),)
    return plan_sync(
        WeightSync(
            name="study",
            tensors=sync_tensors(model_state(megabytes, 0)),
            sender=SyncHost(bytes_per_s=rate),
            receivers=tuple(
                SyncReceiver(name=f"receiver {number}", bytes_per_s=rate, work=work, bucket_s=1e-3)
                for number in range(receivers)
            ),
            message_s=1e-3,
        )
    )


def by_plan(made: Sequence[Host | LocalHost], plan: SyncPlan, megabytes: int, rounds: int) -> list[float]:
    """Return the seconds of each round of ``pace_sync.weight_sync``, until the last host has finished."""
    started: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_bytes(plan.to_json())
        try:
            started += [_start(host, "receive", megabytes, host.address, rounds) for host in made[1:]]
            for process in started:
                _expect(process, "ready")
            sender = _start(made[0], "send", megabytes, path, rounds, *(host.address for host in made[1:]))
            started.append(sender)
            return [_round_s(sender, started[:-1]) for _ in range(rounds)]
        finally:
            _stop(started)


def by_broadcast(
    made: Sequence[Host | LocalHost], how: str, bucket_bytes: int, megabytes: int, rounds: int
) -> list[float]:
    """Return the seconds of each round of torch broadcasts over Gloo, until the last rank has copied."""
    started = []
    try:
        for rank, host in enumerate(made):
            options = (rank, len(made), made[0].address, bucket_bytes, rounds)
            started.append(_start(host, how, megabytes, *options))
        return [float(_line(started[0])) for _ in range(rounds)]
    finally:
        _stop(started)


def by_shared_memory(folder: Path, bucket_mib: int, megabytes: int, rounds: int) -> list[float]:
    """Return the seconds of each round of verl's sender to one receiver, until it has copied."""
    here, started = LocalHost("127.0.0.1", folder=folder), []
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "weights.sock"
        try:
            receiver = _start(here, "verl-receive", megabytes, place, rounds)
            sender = _start(here, "verl-send", megabytes, place, bucket_mib, rounds)
            started += [receiver, sender]
            _expect(receiver, "ready")
            return [_round_s(sender, [receiver]) for _ in range(rounds)]
        finally:
            _stop(started)


def _start(host: Host | LocalHost, *arguments: object) -> "subprocess.Popen[str]":
    folders, inside, device = [os.environ.get("PYTHONPATH", os.getcwd())], list[str](), "lo"
    if isinstance(host, Host):
        inside, device = ["ip", "netns", "exec", host.namespace], "eth0"
    elif host.folder is not None:
        folders.append(str(host.folder))
    return subprocess.Popen(
        [*inside, *PROGRAM, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": device, "PYTHONPATH": os.pathsep.join(folders)},
    )


def _round_s(sender: "subprocess.Popen[str]", receivers: "list[subprocess.Popen[str]]") -> float:
    _expect(sender, "ready")
    assert sender.stdin is not None
    sender.stdin.write("\n")
    sender.stdin.flush()
    seconds = float(_line(sender))
    for receiver in receivers:
        _expect(receiver, "equal")
    return seconds


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _expect(process: "subprocess.Popen[str]", line: str) -> None:
    said = _line(process)
    if said != line:
        raise RuntimeError(f"a process said {said!r}, {line!r} was expected")


def _stop(started: "list[subprocess.Popen[str]]") -> None:
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
