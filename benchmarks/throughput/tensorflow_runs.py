"""TensorFlow with parameter servers on hosts of the testbed: started, watched, and read."""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.testbed.hosts import Host, Link, hosts

PROGRAM = Path(__file__).with_name("tensorflow_program.py")
PORT = 2222
# With this, a receiver lets every transfer through at once: the paper's "flow control disabled".
WINDOW_OFF = "grpc.http2.bdp_probe=0,grpc.http2.lookahead_bytes=2147483647"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedModel:
    """Layers of one model: bytes of each one's parameters, and seconds of its two passes."""

    name: str
    layers: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """When each worker started and its steps ended, on one clock; traces of the first worker."""

    started_s: tuple[float, ...]
    ends_s: tuple[tuple[float, ...], ...]
    cpu_s: tuple[float, ...]
    traces: tuple[dict[str, Any], ...] = ()


def run_tensorflow(
    python: Path,
    model: EmulatedModel,
    *,
    workers: int,
    servers: int,
    rate_mbit_s: float,
    steps: int,
    trace: bool = False,
    window_off: bool = True,
) -> TrainingRun:
    """Train on new hosts with `python`, an interpreter that has TensorFlow."""
    with (
        hosts([Link(rate_mbit_s=rate_mbit_s)] * (servers + workers)) as made,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        of_ps, of_workers = made[:servers], made[servers:]
        common = [
            *("--ps", *(f"{host.address}:{PORT}" for host in of_ps)),
            *("--workers", *(f"{host.address}:{PORT}" for host in of_workers)),
            *("--layers", *map(str, model.layers)),
            *("--forward-s", *map(str, model.forward_s)),
            *("--backward-s", *map(str, model.backward_s)),
            *("--steps", str(steps)),
        ]
        environment = os.environ | ({"TF_GRPC_DEFAULT_OPTIONS": WINDOW_OFF} if window_off else {})
        for task, host in enumerate(of_ps):
            stack.enter_context(
                _process(host, python, ["--job", "ps", "--task", str(task), *common], environment)
            )
        started = []
        for task, host in enumerate(of_workers):
            own = ["--job", "worker", "--task", str(task), "--output", f"{folder}/{task}.json"]
            if trace and task == 0:
                own += ["--trace", f"{folder}/trace.json"]
            started.append(stack.enter_context(_process(host, python, [*own, *common], environment)))
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise RuntimeError(f"a worker ended with {process.wait()} before it was ready")
        for process in started:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        for process in started:
            if process.wait() != 0:
                raise RuntimeError(f"a worker ended with {process.returncode}")
        results = [json.loads(Path(f"{folder}/{task}.json").read_text()) for task in range(workers)]
        recorded = Path(f"{folder}/trace.json")
        return TrainingRun(
            started_s=tuple(result["started_s"] for result in results),
            ends_s=tuple(tuple(result["ends_s"]) for result in results),
            cpu_s=tuple(result["cpu_s"] for result in results),
            traces=tuple(json.loads(recorded.read_text())) if recorded.exists() else (),
        )


@contextlib.contextmanager
def _process(
    host: Host, python: Path, arguments: Sequence[str], environment: dict[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    command = ["ip", "netns", "exec", host.namespace, str(python), str(PROGRAM), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
