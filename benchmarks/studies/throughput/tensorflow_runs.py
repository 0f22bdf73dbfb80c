"""TensorFlow with parameter servers on hosts of the testbed: started, watched, and read."""

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.network.rates import measure_rates
from benchmarks.studies.throughput.compare import Comparison, compare, measured_rate, replay_errors
from benchmarks.studies.throughput.shapes import ModelShape, shape_of
from pace.formats.tf_run_metadata import read_tf_run_metadata

PROGRAM = Path(__file__).with_name("tensorflow_program.py")
PORT = 2222
# TensorFlow takes seconds of a processor to start: below other runs that are being measured meanwhile.
START_NICE = 10
# With this, a receiver lets every transfer through at once: the paper's "flow control disabled".
WINDOW_OFF = "grpc.http2.bdp_probe=0,grpc.http2.lookahead_bytes=2147483647"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """When each worker started and its steps ended, on one clock; traces of the first worker."""

    started_s: tuple[float, ...]
    ends_s: tuple[tuple[float, ...], ...]
    cpu_s: tuple[float, ...]
    traces: tuple[dict[str, Any], ...] = ()


def run_tensorflow(
    python: Path,
    model: ModelShape,
    *,
    workers: int,
    servers: int,
    link: Link,
    steps: int,
    trace: bool = False,
    window_off: bool = True,
) -> TrainingRun:
    """Train on new hosts with `python`, an interpreter that has TensorFlow."""
    with (
        hosts([link] * (servers + workers)) as made,
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
        serving = [
            stack.enter_context(
                _process(host, python, ["--job", "ps", "--task", str(task), *common], environment)
            )
            for task, host in enumerate(of_ps)
        ]
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
        for process in (*serving, *started):
            run_as_this_process(process)
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


def why_no_tensorflow(python: Path) -> str | None:
    """Say in one line why an interpreter cannot run TensorFlow; None when it can."""
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorflow') is None)"
    try:
        found = subprocess.run([python, "-c", program], capture_output=True, check=False).returncode == 0
    except OSError as error:
        return f"{python}: {error.strerror}"
    return None if found else f"{python} has no TensorFlow: {python} -m pip install tensorflow-cpu==2.21.0"


@contextlib.contextmanager
def _process(
    host: Host, python: Path, arguments: Sequence[str], environment: dict[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    command = ["ip", "netns", "exec", host.namespace, "nice", "-n", str(START_NICE)]
    command += [str(python), str(PROGRAM), *arguments]
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


def run_as_this_process(process: "subprocess.Popen[bytes]") -> None:
    """Give every thread of a process this one's priority; later ones inherit it."""
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread may have ended by now
            os.setpriority(os.PRIO_PROCESS, int(thread.name), os.getpriority(os.PRIO_PROCESS, 0))


def _measured_rate(link: Link) -> float:
    """Return bytes of payload a second, half way between a link used both ways and one way.

    Both happen in training, and acknowledgements of the other way are 2 % of a link.
    """
    with hosts([link] * 2) as made:
        found = [measure_rates(made, senders=senders)[0] for senders in (None, (0,)) for _ in range(3)]
    return (statistics.median(found[:3]) + statistics.median(found[3:])) / 2 * 1e6 / 8


def compare_tensorflow(
    python: Path,
    *,
    models: Sequence[str],
    ratios: Sequence[float],
    workers: Sequence[int],
    servers: Sequence[int],
    window_off: bool,
    link: Link,
    total_bytes: float,
    profiled: int,
    steps: int,
    skip: int,
    repetitions: int,
    share_spread: float | None = None,
    share_spread_bytes: int | None = None,
) -> Iterator[tuple[Comparison | None, dict[str, object]]]:
    """Profile one worker with traces, then measure without them and predict each number of workers."""
    system = f"tensorflow, window {'off' if window_off else 'default'}{', fair links' if link.fair else ''}"
    rate = _measured_rate(link)
    for name in models:
        for ratio in ratios:
            shape = shape_of(name, total_bytes=total_bytes, ratio=ratio, bytes_per_s=rate)
            for num_servers in servers:
                run = partial(
                    run_tensorflow,
                    python,
                    shape,
                    servers=num_servers,
                    link=link,
                    window_off=window_off,
                )
                traced = run(workers=1, steps=profiled, trace=True)
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / f"{name}.json"
                    path.write_text(json.dumps(traced.traces))
                    document = read_tf_run_metadata([path], bytes_per_s=rate)
                of_steps, of_downlinks = replay_errors(document)
                yield (
                    None,
                    {
                        "system": system,
                        "model": name,
                        "ratio": ratio,
                        "servers": num_servers,
                        "bytes_per_s": rate,
                        "steps_dropped": document.metadata["steps_dropped"],
                        "replay_errors": of_steps,
                        "downlink_errors": of_downlinks,
                        "document": document.model_dump(mode="json"),
                    },
                )
                for count in workers:
                    measured = [
                        measured_rate(run(workers=count, steps=steps).ends_s, skip)
                        for _ in range(repetitions)
                    ]
                    found = compare(
                        document,
                        measured,
                        workers=count,
                        steps=steps,
                        skip=skip,
                        share_spread=share_spread,
                        share_spread_bytes=share_spread_bytes,
                        system=system,
                        model=name,
                        ratio=ratio,
                        load_average=os.getloadavg()[0],
                    )
                    yield found, found.as_row()
