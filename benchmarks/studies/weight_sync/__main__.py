"""The pause of new weights for rollout engines: by a plan, by torch broadcasts, and the bound.

python -m benchmarks weight_sync --megabytes 500 --receivers 4 --mbit 100

Needs root and iproute2. Every host has a link of `--mbit`; all contenders run in turn on the same hosts.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.studies.weight_sync.rank import model_state
from pace.documents.sync.sync_plan import SyncPlan
from pace.documents.sync.weight_sync import SyncHost, SyncReceiver, WeightSync, WorkRate
from pace.runtime.weight_sync import sync_tensors
from pace.sync.plan import plan_sync

PROGRAM = [sys.executable, "-m", "benchmarks.studies.weight_sync.rank"]
# What TCP carries of a full frame of 1,514 bytes.
PAYLOAD = 1448 / 1514


def main() -> None:
    """Measure all contenders, one after the other."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument("--megabytes", type=int, default=500, help="size of the model (default: %(default)s)")
    parser.add_argument("--receivers", type=int, default=4, help="rollout engines (default: %(default)s)")
    parser.add_argument("--mbit", type=float, default=100.0, help="of every link (default: %(default)s)")
    parser.add_argument("--bucket-mib", type=int, default=64, help="of fixed buckets (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (default: %(default)s)")
    arguments = parser.parse_args()
    plan = planned(arguments.megabytes, arguments.receivers, arguments.mbit)
    found: dict[str, Any] = {"bound_s": plan.bound.bound_s, "predicted_s": plan.predicted.pause_s}
    common = (arguments.megabytes, arguments.rounds)
    with hosts([Link(rate_mbit_s=arguments.mbit)] * (arguments.receivers + 1)) as made:
        found["pace_s"] = by_plan(list(made), plan, *common)
        found["tensors_s"] = by_broadcast(list(made), 0, *common)
        found["buckets_s"] = by_broadcast(list(made), arguments.bucket_mib << 20, *common)
    pace = median(found["pace_s"])
    print(f"bound {plan.bound.bound_s:.3g} s, plan predicted {plan.predicted.pause_s:.3g} s")
    print(f"pace {pace:.3g} s: {pace / plan.bound.bound_s:.3f} x the bound")
    for name in ("tensors_s", "buckets_s"):
        print(f"{name} {median(found[name]):.3g} s: pace takes {pace / median(found[name]):.2f} of it")
    write_json(arguments.json, found)


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


def by_plan(made: list[Host], plan: SyncPlan, megabytes: int, rounds: int) -> list[float]:
    """Return the seconds of each round of ``pace.runtime.weight_sync``, until the last host has finished."""
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
            seconds = []
            for _ in range(rounds):
                _expect(sender, "ready")
                assert sender.stdin is not None
                sender.stdin.write("\n")
                sender.stdin.flush()
                seconds.append(float(_line(sender)))
                for process in started[:-1]:
                    _expect(process, "equal")
            return seconds
        finally:
            _stop(started)


def by_broadcast(made: list[Host], bucket_bytes: int, megabytes: int, rounds: int) -> list[float]:
    """Return the seconds of each round of torch broadcasts over Gloo, until the last rank has copied."""
    started = []
    try:
        for rank, host in enumerate(made):
            options = (rank, len(made), made[0].address, bucket_bytes, rounds)
            started.append(_start(host, "broadcast", megabytes, *options))
        return [float(_line(started[0])) for _ in range(rounds)]
    finally:
        _stop(started)


def _start(host: Host, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["ip", "netns", "exec", host.namespace, *PROGRAM, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": os.getcwd()},
    )


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
