"""Weights to many hosts: a chain that passes blocks on, compared with one sender.

python -m benchmarks fabric.chain --hosts 8 --mbit 100 --mebibytes 12

Needs root and iproute2. Prints both times, their ratio, and the bytes that every host sent.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts

PACE = [sys.executable, "-c", "from pace.cli.main import app; app()", "fabric"]
PORT = 7090


def main() -> None:
    """Run both ways in turn, `--rounds` times."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument("--hosts", type=int, default=8, help="that receive")
    parser.add_argument("--mbit", type=float, default=100.0, help="of every link, each way")
    parser.add_argument(
        "--mebibytes", type=float, default=12.0, help="size of the weights in MiB (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of measured rounds (default: %(default)s)"
    )
    arguments = parser.parse_args()
    found = measure(arguments.hosts, arguments.mbit, round(arguments.mebibytes * (1 << 20)), arguments.rounds)
    chain, direct = min(found["chain_s"]), min(found["direct_s"])
    print(f"chain {chain:.3g} s, one sender {direct:.3g} s: {direct / chain:.2f} x")
    write_json(arguments.json, found)


def measure(num_hosts: int, mbit: float, size_bytes: int, rounds: int) -> dict[str, Any]:
    """Return seconds of both ways, and the bytes that each host sent along the chain."""
    with tempfile.TemporaryDirectory() as folder, hosts([Link(rate_mbit_s=mbit)] * (num_hosts + 1)) as made:
        weights = Path(folder) / "weights"
        token = Path(folder) / "token"
        token.write_text("secret")
        sender, receiving = made[0], made[1:]
        started = [_receive(host, token, Path(folder) / host.name) for host in receiving]
        try:
            for process in started:
                assert process.stderr is not None
                if not any(line.startswith("listening") for line in process.stderr):
                    raise RuntimeError("a receiver did not start")
            found: dict[str, Any] = {"size_bytes": size_bytes, "mbit_s": mbit, "chain_s": [], "direct_s": []}
            to = ",".join(f"{host.address}:{PORT}" for host in receiving)
            for _ in range(rounds):
                for way, options in (("chain", []), ("direct", ["--direct"])):
                    weights.write_bytes(os.urandom(size_bytes))  # what a host holds is not sent to it again
                    report = _distribute(sender, token, weights, to, options)
                    found[f"{way}_s"].append(report["seconds"])
                    found[f"{way}_sent_bytes"] = report["sent_bytes"]
            found["arrived"] = [
                (Path(folder) / host.name).read_bytes() == weights.read_bytes() for host in receiving
            ]
            return found
        finally:
            for process in started:
                process.kill()
                process.wait()
                if process.stderr is not None:
                    process.stderr.close()


def _on(host: Host) -> list[str]:
    return ["ip", "netns", "exec", host.namespace]


def _receive(host: Host, token: Path, output: Path) -> "subprocess.Popen[str]":
    options = ["--bind", f"{host.address}:{PORT}", "--token-file", str(token), "--output", str(output)]
    command = [*_on(host), *PACE, "receive", *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _distribute(host: Host, token: Path, weights: Path, to: str, options: list[str]) -> dict[str, Any]:
    command = [
        *_on(host),
        *PACE,
        "distribute",
        str(weights),
        "--to",
        to,
        "--token-file",
        str(token),
        "--json",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report
