"""A whole fabric on shaped network namespaces: workers that push, a server, a replica, and what the logs say.

python -m benchmarks fabric.commits --workers 8 --mbit 100 --update-megabytes 5 --seconds 60

Every worker sleeps for its computation and pushes random numbers. Needs root and iproute2. Prints violations
of the bound, whether a replay gives the model, bytes at the server beside the plan, and how far transfers
were from their planned ends. Measured rates unless --oracle.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.network.rates import PAYLOAD
from pace.runtime.fabric.commit_log import LoggedCommit, Vector, read_log, replay, violations

STUDY = [sys.executable, "-m", "benchmarks", "fabric.commits"]
PACE = [sys.executable, "-c", "from pace.cli.main import app; app()", "fabric"]


def main() -> None:
    """Run once and print what the logs say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--update-megabytes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--compute", type=float, default=0.5, help="seconds of each computation")
    parser.add_argument("--delay-bound", type=int, default=30)
    parser.add_argument("--replica-updates", type=int, help="keep a replica within so many updates")
    parser.add_argument("--oracle", action="store_true", help="believe the links' rates, not receivers")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return
    found = measure(arguments)
    print(f"{platform.node()}: {' '.join(sys.argv)}")
    print(json.dumps(found, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def random_update(worker: str, number: int, numbers: int) -> Vector:
    """Return an update that a replay can draw again."""
    seed = [int(worker.removeprefix("w")), number]
    update: Vector = np.random.default_rng(seed).standard_normal(numbers, dtype=np.float32)
    return update


def work(arguments: argparse.Namespace) -> None:
    """Pull, sleep and push until the time is up; one worker."""
    from pace.runtime.addresses import parse_address
    from pace.runtime.fabric.client import FabricClient

    place, name, token, numbers = arguments.worker
    end = time.monotonic() + arguments.seconds
    with FabricClient(parse_address(place, "the daemon"), worker=name, token=token) as fabric:
        number, version = 0, 0
        while time.monotonic() < end:
            model = fabric.get(at_least=version)
            time.sleep(arguments.compute)
            number += 1
            ended = fabric.push(random_update(name, number, int(numbers)), model.version).wait()
            version = ended.version or 0


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the logs of one run say."""
    numbers = round(arguments.update_megabytes * 1e6 / 4)
    replicas = int(arguments.replica_updates is not None)
    links = [Link(rate_mbit_s=arguments.mbit)] * (2 + replicas + arguments.workers)
    with tempfile.TemporaryDirectory() as name, hosts(links) as made:
        folder = Path(name)
        (folder / "token").write_text("secret")
        first = np.zeros(numbers, dtype=np.float32)
        np.save(folder / "model.npy", first)
        started: list[subprocess.Popen[str]] = []
        try:
            _start_all(made, replicas, arguments, folder, started)
            status = f"{made[0].address}:7080"
            deadline = time.monotonic() + 300
            while len(_status(made[0], status, folder)["hosts"]) < len(links) - 1:
                if time.monotonic() > deadline:
                    raise TimeoutError("not all hosts are registered")
                time.sleep(0.2)
            began = time.monotonic()
            workers = [
                subprocess.Popen(_worker(host, number, arguments, numbers))
                for number, host in enumerate(made[2 + replicas :])
            ]
            for worker in workers:
                worker.wait()
            seconds = time.monotonic() - began
            final = _status(made[0], status, folder)
        finally:
            for process in started:
                process.kill()
                process.wait()
                if process.stderr is not None:
                    process.stderr.close()
        return judged(folder, first, arguments.delay_bound, final, seconds)


def _start_all(
    made: list[Host],
    replicas: int,
    arguments: argparse.Namespace,
    folder: Path,
    started: list["subprocess.Popen[str]"],
) -> None:
    bound = ["--delay-bound", str(arguments.delay_bound), "--transfer-log", str(folder / "transfers.jsonl")]
    if replicas:
        bound += ["--divergence-updates", str(arguments.replica_updates)]
    names = ["server", *(["replica"] * replicas), *(f"h{n}" for n in range(arguments.workers))]
    if arguments.oracle:
        rate = arguments.mbit * 1e6 / 8 * PAYLOAD
        network = {
            "hosts": [{"name": n, "up_bytes_per_s": rate, "down_bytes_per_s": rate} for n in names],
            "server": "server",
        }
        (folder / "network.json").write_text(json.dumps(network))
        bound += ["--network", str(folder / "network.json"), "--oracle-lag-s", "0"]
    started.append(_process(made[0], folder, "scheduler", "--bind", f"{made[0].address}:7080", *bound))
    for host, name in zip(made[1:], names, strict=True):
        place = ["--name", name, "--scheduler", f"{made[0].address}:7080", "--bind", f"{host.address}:7081"]
        if name.startswith("h"):
            started.append(_process(host, folder, "daemon", *place))
        else:
            files = ["--model", str(folder / "model.npy"), "--log", str(folder / f"{name}.jsonl")]
            part = ["--replica"] if name == "replica" else []
            started.append(_process(host, folder, "serve", *place, *files, *part))


def _process(host: Host, folder: Path, *command: str) -> "subprocess.Popen[str]":
    entered = ["ip", "netns", "exec", host.namespace]
    made = subprocess.Popen(
        [*entered, *PACE, *command, "--token-file", str(folder / "token")], stderr=subprocess.PIPE, text=True
    )
    assert made.stderr is not None
    for line in made.stderr:
        if line.startswith("listening"):
            return made
    raise RuntimeError(f"{command[0]} did not start")


def _worker(host: Host, number: int, arguments: argparse.Namespace, numbers: int) -> list[str]:
    entered = ["ip", "netns", "exec", host.namespace, *STUDY]
    options = ["--seconds", str(arguments.seconds), "--compute", str(arguments.compute)]
    return [*entered, *options, "--worker", f"{host.address}:7081", f"w{number}", "secret", str(numbers)]


def _status(host: Host, place: str, folder: Path) -> dict[str, Any]:
    command = [*PACE, "status", "--scheduler", place, "--token-file", str(folder / "token"), "--json"]
    done = subprocess.run(
        ["ip", "netns", "exec", host.namespace, *command], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judged(folder: Path, first: Vector, bound: int, status: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return what the commit log and the transfer log in a folder say of a run."""
    lines = list(read_log(folder / "server.jsonl"))
    commits = [line for line in lines if isinstance(line, LoggedCommit)]

    def update(name: str) -> Vector:
        worker, _, number = name.rpartition("-")
        return random_update(worker, int(number), len(first))

    model, _ = replay(first, lines, update)
    transfers = [json.loads(line) for line in (folder / "transfers.jsonl").read_text().splitlines()]
    long = [t for t in transfers if t["arrived_s"] - t["began_s"] >= 0.1 and t["purpose"] == "update"]
    off = [abs(t["arrived_s"] - t["planned_s"]) / (t["arrived_s"] - t["began_s"]) for t in long]
    received = status["hosts"]["server"]["received_wire_bytes"]
    planned = status["planned_server_bytes"]
    return {
        "network_state": status["network_state"],
        "violations": violations(lines, bound),
        "updates": sum(len(line.members) for line in commits),
        "commits": len(commits),
        "updates_per_s": sum(len(line.members) for line in commits) / seconds,
        "greatest_delay": max((delay for line in commits for delay in line.delays), default=0),
        "dropped": status["dropped"],
        "server_bytes_over_plan": received / planned if planned else None,
        "median_off_plan": float(np.median(off)) if off else None,
        "replayed_norm": float(np.linalg.norm(model.astype(np.float64))),
        "greatest_lead": status["greatest_lead"],
    }
