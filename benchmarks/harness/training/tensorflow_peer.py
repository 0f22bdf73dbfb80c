"""An unmodified peer: TensorFlow with its own servers and gRPC on a setting's hosts, layers and sleeps.

What differs from our contenders: TensorFlow pulls every variable at the start of a step, in an order of its
own, and pushes whole gradients as they become ready; variables go to servers in turn, whatever their size;
updates run on the servers; gRPC multiplexes whole tensors over one connection, with its own flow control and
without pacing. Nothing of its configuration is changed.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.exchange.results import UnmodifiedRun
from benchmarks.harness.layouts import Layout
from benchmarks.harness.measure import windows_of
from benchmarks.harness.network.enter import run_undisturbed
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.workload.replay import plan_replay
from pace.documents.profile import Profile

PROGRAM = Path(__file__).with_name("tensorflow_program.py")
LEARNING_RATE = 2.0**-10

_PORT = 2222
_SKIPPED = 3
_START_TIMEOUT_S = 180.0

Waiting = Literal["sync", "async"]


def model_document(profile: Profile) -> dict[str, Any]:
    """Return the layers and times that the replay has, as the program reads them."""
    plan = plan_replay(profile)
    return {
        "forward_before_s": plan.forward_before_s,
        "backward_after_s": plan.backward_after_s,
        "stages": [
            {
                "sizes": [gradient.size_bytes for gradient in stage.gradients],
                "forward_s": stage.forward_s,
                "backward_s": stage.backward_s,
            }
            for stage in plan.stages
        ],
    }


def run_unmodified(
    python: Path, on: Sequence[Host], layout: Layout, profile: Profile, steps: int
) -> list[UnmodifiedRun]:
    """Train with `python`, which has TensorFlow: with a queue of tokens, and without waiting."""
    runs = []
    modes: tuple[Waiting, ...] = ("sync", "async")
    for waiting in modes:
        label = "TensorFlow, " + {"sync": "queue of tokens", "async": "asynchronous"}[waiting]
        windows: list[float] = []
        failed = None
        try:
            windows = _train(python, on, layout, profile, steps, waiting)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            failed = str(error)
            print(f"testbed: {label}: {failed}", file=sys.stderr, flush=True)
        runs.append(
            UnmodifiedRun(name=f"tensorflow-{waiting}", label=label, windows_s=windows, failed=failed)
        )
    return runs


def _train(
    python: Path, on: Sequence[Host], layout: Layout, profile: Profile, steps: int, waiting: Waiting
) -> list[float]:
    workers, servers = layout.split(on)
    own_port = _PORT + 1  # servers may be on the same hosts
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = Path(folder) / "model.json"
        model.write_text(json.dumps(model_document(profile)))
        common = [
            *("--ps", *(f"{host.address}:{_PORT}" for host in servers)),
            *("--workers", *(f"{host.address}:{own_port}" for host in workers)),
            *("--model", str(model), "--steps", str(steps + _SKIPPED)),
            *(["--sync"] if waiting == "sync" else []),
        ]
        for task, host in enumerate(servers):
            stack.enter_context(_process(host, python, ["--job", "ps", "--task", str(task), *common]))
        started = [
            stack.enter_context(
                _process(
                    host,
                    python,
                    ["--job", "worker", "--task", str(task), "--output", f"{folder}/{task}.json", *common],
                )
            )
            for task, host in enumerate(workers)
        ]
        _expect(started, b"ready", _START_TIMEOUT_S)
        for process in started:
            _tell(process)
        _expect(started, b"done", _START_TIMEOUT_S + 10 * steps)
        results = [json.loads(Path(f"{folder}/{task}.json").read_text()) for task in range(len(workers))]
    if waiting == "sync":
        # After as many steps, every weight has been updated so often with the mean of equal gradients.
        due = -LEARNING_RATE * (steps + _SKIPPED)
        wrong = [result["weight"] for result in results if abs(result["weight"] / due - 1) > 1e-6]
        if wrong:
            raise RuntimeError(f"TensorFlow's weights are {wrong} where {due} is due")
        return windows_of([result["ends_s"][_SKIPPED - 1 :] for result in results])
    return [
        later - earlier for result in results for earlier, later in pairwise(result["ends_s"][_SKIPPED - 1 :])
    ]


def _expect(processes: Sequence["subprocess.Popen[bytes]"], line: bytes, within_s: float) -> None:
    """Wait until every worker has said this line."""
    deadline = time.monotonic() + within_s
    with selectors.DefaultSelector() as selector:
        for task, process in enumerate(processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, (task, process))
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise RuntimeError(f"no worker said {line.decode()} within {within_s:g} s")
            for key, _ in ready:
                task, process = key.data
                selector.unregister(key.fileobj)
                assert process.stdout is not None
                if process.stdout.readline().strip() != line:
                    raise RuntimeError(f"worker {task} ended with {process.wait(10)}: {_last_words(process)}")


def _tell(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


def _last_words(process: "subprocess.Popen[bytes]") -> str:
    assert process.stderr is not None
    process.stderr.seek(0)
    lines = process.stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def _process(host: Host, python: Path, arguments: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    command = ["ip", "netns", "exec", host.namespace, str(python), str(PROGRAM), *arguments]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            preexec_fn=run_undisturbed,
        )
        process.stderr = errors  # for what it says last
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()
