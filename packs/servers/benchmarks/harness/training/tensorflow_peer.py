"""An unmodified peer: TensorFlow with its own servers and gRPC on the same hosts, layers and sleeps.

What differs from the contenders: TensorFlow pulls every variable at the start of a step, in an order of its
own, and pushes whole gradients as they become ready; variables go to servers in turn, whatever their size;
updates run on the servers; gRPC multiplexes whole tensors over one connection, with its own flow control and
without pacing.
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
from typing import Any

from benchmarks.harness.layouts import Layout
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import run_undisturbed
from benchmarks.harness.results import MeasuredWindows, windows_of
from benchmarks.harness.workload.replay import plan_replay
from pace.documents.profile import Profile

PROGRAM = Path(__file__).with_name("tensorflow_program.py")
LEARNING_RATE = 2.0**-10

# TensorFlow takes seconds of a processor to start: below other runs that are being measured meanwhile.
START_NICE = 10

_PORT = 2222
_SKIPPED = 3
_START_TIMEOUT_S = 180.0


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
) -> list[MeasuredWindows]:
    """Train with `python`, which has TensorFlow: with a queue of tokens, and without waiting."""
    runs = []
    for waiting, label in (("sync", "queue of tokens"), ("async", "asynchronous")):
        windows: list[float] = []
        failed = None
        try:
            windows = _windows(python, on, layout, profile, steps, sync=waiting == "sync")
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            failed = str(error)
            print(f"testbed: TensorFlow, {label}: {failed}", file=sys.stderr, flush=True)
        runs.append(
            MeasuredWindows(
                name=f"tensorflow-{waiting}",
                label=f"TensorFlow, {label}",
                rounds_s=[windows] if windows else [],
                disqualified=failed,
            )
        )
    return runs


def _windows(
    python: Path, on: Sequence[Host], layout: Layout, profile: Profile, steps: int, *, sync: bool
) -> list[float]:
    workers, servers = layout.split(on)
    results = train_tensorflow(
        python, servers, workers, model_document(profile), steps=steps + _SKIPPED, sync=sync
    )
    ends = [result["ends_s"][_SKIPPED - 1 :] for result in results]
    if not sync:
        return [later - earlier for own in ends for earlier, later in pairwise(own)]
    # After as many steps, every weight has been updated so often with the mean of equal gradients.
    due = -LEARNING_RATE * (steps + _SKIPPED)
    wrong = [result["weight"] for result in results if abs(result["weight"] / due - 1) > 1e-6]
    if wrong:
        raise RuntimeError(f"TensorFlow's weights are {wrong} where {due} is due")
    return windows_of(ends)


def train_tensorflow(
    python: Path,
    servers: Sequence[Host],
    workers: Sequence[Host],
    model: dict[str, Any],
    *,
    steps: int,
    sync: bool = False,
    trace: bool = False,
    warm_up: int = 0,
    slack_s: float = 1e-3,
    undisturbed: bool = True,
    environment: dict[str, str] | None = None,
    order: str = "none",
    hold: str = "received",
) -> list[dict[str, Any]]:
    """Train on these hosts and return what each worker wrote; see the program.

    Parameters
    ----------
    undisturbed
        Whether processes go before other programs of the machine. Else they start below them, and have this
        process's priority from the first counted step on.
    environment
        Set for TensorFlow's processes besides this one's.
    order, hold
        In which servers hand parameters over, and how long they hold one back; see the program.

    Raises
    ------
    RuntimeError
        When a worker ends early or is late; the message holds what it said last.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "model.json"
        path.write_text(json.dumps(model))
        options = [
            *("--ps", *(f"{host.address}:{_PORT}" for host in servers)),
            *("--workers", *(f"{host.address}:{_PORT + 1}" for host in workers)),
            *("--model", str(path), "--steps", str(steps), "--warm-up", str(warm_up)),
            *(
                "--slack-s",
                str(slack_s),
                "--order",
                order,
                "--hold",
                hold,
                *["--sync"] * sync,
                *["--trace"] * trace,
            ),
        ]

        def start(host: Host, job: str, task: int) -> "subprocess.Popen[bytes]":
            own = ["--job", job, "--task", str(task), "--output", f"{folder}/{task}.json"]
            return stack.enter_context(
                _process(host, python, [*own, *options], undisturbed, environment or {})
            )

        serving = [start(host, "ps", task) for task, host in enumerate(servers)]
        started = [start(host, "worker", task) for task, host in enumerate(workers)]
        _expect(started, b"ready", _START_TIMEOUT_S)
        if not undisturbed:
            for process in (*serving, *started):
                run_as_this_process(process)
        for process in started:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        _expect(started, b"done", _START_TIMEOUT_S + 10 * steps)
        return [json.loads(Path(f"{folder}/{task}.json").read_text()) for task in range(len(workers))]


def run_as_this_process(process: "subprocess.Popen[bytes]") -> None:
    """Give every thread of a process this one's priority; later ones inherit it."""
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread may have ended by now
            os.setpriority(os.PRIO_PROCESS, int(thread.name), os.getpriority(os.PRIO_PROCESS, 0))


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


def _last_words(process: "subprocess.Popen[bytes]") -> str:
    assert process.stderr is not None
    process.stderr.seek(0)
    lines = process.stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def _process(
    host: Host, python: Path, arguments: Sequence[str], undisturbed: bool, environment: dict[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    nice = [] if undisturbed else ["nice", "-n", str(START_NICE)]
    command = ["ip", "netns", "exec", host.namespace, *nice, str(python), str(PROGRAM), *arguments]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
            preexec_fn=run_undisturbed if undisturbed else None,
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
