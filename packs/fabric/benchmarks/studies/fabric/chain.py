"""Sending weights to many hosts: a chain of hosts that forward blocks, compared with one sender.

python -m benchmarks fabric.chain --hosts 8 --mbit 100 --mebibytes 12
python -m benchmarks fabric.chain --hosts 2 --mebibytes 1000 --loopback --only chain

Needs root and iproute2; with `--loopback` all processes are on one host, without links, and no root is
needed. Prints both times and their ratio. Fails if a host does not receive all weights.
"""

import contextlib
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.prerequisites import require_network

PACE = [sys.executable, "-c", "from pace.cli.main import app; app()", "fabric"]
PORT = 7090
WRITTEN_WITHIN_S = 60.0
WAYS = {"chain": "chain", "direct": "one sender"}


def main() -> None:
    """Run both ways in turn, `--rounds` times."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_number("--hosts", 8, "number of hosts that receive")
    parser.add_number("--mbit", 100.0, "bandwidth of every link in Mbit/s, each way")
    parser.add_number("--mebibytes", 12.0, "size of the weights in MiB")
    parser.add_number("--rounds", 3, "number of measured rounds")
    parser.add_argument("--only", choices=WAYS, help="measure only this way (default: both)")
    parser.add_argument(
        "--loopback", action="store_true", help="run all processes on this host, with unlimited links"
    )
    arguments = parser.parse_args()
    if not arguments.loopback:
        require_network()
    link = Link(rate_mbit_s=arguments.mbit)
    size_bytes = round(arguments.mebibytes * (1 << 20))
    ways = [arguments.only] if arguments.only else list(WAYS)
    with contextlib.ExitStack() as stack:
        if arguments.loopback:
            made: Sequence[Host] = [
                Host(namespace="", name=f"host{number}", address=f"127.0.0.{number + 1}", link=link)
                for number in range(arguments.hosts + 1)
            ]
        else:
            made = stack.enter_context(hosts([link] * (arguments.hosts + 1)))
        found = measure(made, size_bytes, arguments.rounds, ways)
    least = {way: min(found[f"{way}_s"]) for way in ways}
    print(", ".join(f"{WAYS[way]} {seconds:.3g} s" for way, seconds in least.items()))
    if len(least) == 2:
        print(f"the chain is {least['direct'] / least['chain']:.2f} x as fast")
    write_json(arguments.json, {"mbit_s": None if arguments.loopback else arguments.mbit} | found)


def measure(made: Sequence[Host], size_bytes: int, rounds: int, ways: Sequence[str]) -> dict[str, Any]:
    """Return seconds of each way, and the bytes that each host sent; the first host sends to all others."""
    with tempfile.TemporaryDirectory() as folder:
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
            found: dict[str, Any] = {"size_bytes": size_bytes} | {f"{way}_s": [] for way in ways}
            to = ",".join(f"{host.address}:{PORT}" for host in receiving)
            for _ in range(rounds):
                for way in ways:
                    _write_new(weights, size_bytes)  # what a host holds is not sent to it again
                    report = _distribute(sender, token, weights, to, ["--direct"] if way == "direct" else [])
                    found[f"{way}_s"].append(report["seconds"])
                    found[f"{way}_sent_bytes"] = report["sent_bytes"]
                    for host in receiving:
                        _wait_until_equal(Path(folder) / host.name, weights)
            return found
        finally:
            for process in started:
                process.kill()
                process.wait()
                if process.stderr is not None:
                    process.stderr.close()


def _wait_until_equal(received: Path, weights: Path) -> None:
    """Wait until a receiver has put its file in place."""
    end = time.monotonic() + WRITTEN_WITHIN_S
    while not received.exists() or not filecmp.cmp(received, weights, shallow=False):
        if time.monotonic() > end:
            raise RuntimeError(f"{received.name} has other weights than were sent")
        time.sleep(0.1)


def _write_new(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        for begin in range(0, size_bytes, 1 << 24):
            file.write(os.urandom(min(1 << 24, size_bytes - begin)))


def _on(host: Host) -> list[str]:
    return ["ip", "netns", "exec", host.namespace] if host.namespace else []


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
