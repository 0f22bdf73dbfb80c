"""PACE from end to end on this machine: service, captured profile, schedule, training with and without it.

Run it with ``scripts/demo``, which installs what it needs and chooses the network: two hosts of the testbed
if the machine allows them, else a loopback of limited rate, else loopback as it is.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.bar import Bar
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pace.documents.profile import Profile, load_profile
from pace.documents.schedule import Schedule, load_schedule
from pace.simulation import make_policy, run_policy
from pace.simulation.scheduled import Following
from pace.view.chart import plot_windows
from pace.view.perfetto import chrome_trace
from pace.view.window import Window, WindowTransfer, lay_out
from pace.whatif import Scenario
from pace.whatif.scenario import computed_at

sys.path.append(str(Path(__file__).parent))
from turns import resume

HERE = Path(__file__).parent
JOB, TURNS = "demo", "turns.lock"
STEADY = 1.1  # compute that differs by more was disturbed
SAME = 1e-5  # relative; floats were added in another order
STAGE_TIMEOUT_S = 280


def main() -> int:
    """Run the demo."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends too
    console = Console() if sys.stdout.isatty() else Console(width=110)
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for log in out.glob("*.log"):
        log.unlink()
    console.print(f"Two workers over {arguments.backend}, {arguments.network}.")
    for attempt in range(1, arguments.attempts + 1):
        times = measure(console, arguments, f"{JOB}-{attempt}")
        print(*rank_0_log(out / "pace.log"), sep="\n", flush=True)
        profile, schedule = load_profile(out / "profile.json"), load_schedule(out / "schedule.json")
        said, trusted = verdict(times, profile.timing.compute_s, difference(out), RIVAL[arguments.backend])
        console.print(said)
        if trusted:
            break
    measured_trace = json.loads((out / "pace.trace.json").read_text())
    (out / "predicted.trace.json").write_text(json.dumps(chrome_trace(profile, schedule)))
    picture = out / "windows.png"
    draw_windows(profile, schedule, measured_trace, picture)
    if arguments.details:
        print_groups(console, schedule)
        print_times(console, profile, schedule, arguments.backend, out)
    console.print(f"Picture: {picture}. Timelines, profile, schedule and logs: {out}")
    console.print("Now your job: pace headroom TRACE (docs/guides/import-traces.md)")
    return 0


def measure(console: Console, arguments: argparse.Namespace, job: str) -> dict[str, dict[str, float]]:
    """Capture a profile, then train with and without PACE in turns; return the times of both."""
    out, steps = arguments.out, arguments.steps
    with network(arguments) as places, service(out, places[0]) as url:
        batch = ("--batch-size", arguments.batch_size)
        pace = ("--service", url, "--job", job)
        console.print("1 of 2: measures an iteration, and lets the service compute a schedule ...")
        workers(arguments.backend, places, out, {"capture": ("capture.py", *batch, *pace, "--out", out)})
        console.print(
            f"2 of 2: trains {steps} steps with {PLAIN[arguments.backend]} and with PACE, in turns ..."
        )
        training = ("train.py", *batch, "--steps", steps, "--turns", out / TURNS)
        jobs = {
            "plain": (*training, "--out", out / "plain"),
            "pace": (*training, *pace, "--out", out / "pace"),
        }
        with Live(console=console, auto_refresh=False, transient=True) as live:
            workers(arguments.backend, places, out, jobs, lambda: live.update(bars(arguments), refresh=True))
    times = {name: json.loads((out / f"{name}.json").read_text()) for name in jobs}
    times["pace"]["is_plain"] = json.loads((out / "pace.trial.json").read_text())["source"] == "plain"
    return times


def rank_0_log(log: Path) -> list[str]:
    """Return what PACE logged in the training; only rank 0 does."""
    return [line for line in log.read_text(errors="replace").splitlines() if line.startswith("pace.")]


def verdict(
    times: dict[str, dict[str, float]], captured_s: float, largest_difference: float, rival: str = "DDP"
) -> tuple[str, bool]:
    """Say in one sentence what was measured, and whether it can be trusted.

    It cannot if compute alone took longer in one training than in the other, or than when it was captured:
    then other work, and not the order of sends, may explain the times.
    """
    plain, pace = times["plain"], times["pace"]
    alone = [captured_s, plain["compute_alone_s"], pace["compute_alone_s"]]
    if max(alone) > STEADY * min(alone):
        at_capture, beside_ddp, beside_pace = (f"{each * 1e3:.0f} ms" for each in alone)
        return (
            f"Not trustworthy here: compute alone took {at_capture} at the capture, {beside_ddp} under"
            f" {rival}, {beside_pace} under PACE. The machine changes its speed, or something else"
            " uses it."
        ), False
    weights = "equal" if largest_difference < SAME else f"up to {largest_difference:.1%} apart"
    ratio = plain["iteration_s"] / pace["iteration_s"]
    gain = "PACE kept plain training" if pace["is_plain"] else f"{ratio:.2f} times as fast"
    milliseconds = [f"{each['iteration_s'] * 1e3:.0f} ms" for each in (plain, pace)]
    return f"{rival} {milliseconds[0]}, PACE {milliseconds[1]}: {gain}; weights {weights}.", True


def difference(out: Path) -> float:
    """Return the largest difference between the weights of both trainings, over the largest weight."""
    plain, pace = (torch.load(out / f"{name}.pt") for name in ("plain", "pace"))
    largest = max(float((plain[name] - pace[name]).abs().max()) for name in plain)
    return largest / max(float(weight.abs().max()) for weight in plain.values())


RIVAL = {"gloo": "DDP", "horovod": "Horovod"}
PLAIN = {"gloo": "PyTorch DistributedDataParallel", "horovod": "hvd.DistributedOptimizer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where processes run: on this machine itself, or on a host of the testbed by way of a command."""

    enter: tuple[str, ...] = ()
    interface: str = "lo"
    address: str = "127.0.0.1"


@contextlib.contextmanager
def network(arguments: argparse.Namespace) -> Iterator[list[Place]]:
    """Yield one place for both workers, or a host of its own for each; the service is at the first."""
    if arguments.hosts_rate is None:
        yield [Place()]
        return
    from benchmarks.harness.network.hosts import INTERFACE, Link, hosts

    with hosts([Link(rate_mbit_s=arguments.hosts_rate)] * 2) as on:
        yield [
            Place(enter=("ip", "netns", "exec", host.namespace), interface=INTERFACE, address=host.address)
            for host in on
        ]


@contextlib.contextmanager
def service(out: Path, place: Place) -> Iterator[str]:
    """Run `pace serve` on a free port and yield its address."""
    database = out / "service.sqlite"
    database.unlink(missing_ok=True)
    command = [
        *place.enter,
        sys.executable,
        "-m",
        "pace.api.serve",
        "--port",
        "0",
        "--database-url",
        f"sqlite:///{database}",
    ]
    log = out / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        yield address(log, process)
    finally:
        stop(process)


def address(log: Path, process: "subprocess.Popen[bytes]") -> str:
    """Wait until the service says where it listens."""
    deadline = time.monotonic() + STAGE_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("event") == "listening":
                    return str(entry["url"])
        time.sleep(0.1)
    raise SystemExit(f"demo: the service did not start; see {log}")


def bars(arguments: argparse.Namespace) -> Table:
    """Return a bar for each training: the median of its iteration times up to now, from its log."""
    medians_s = {}
    for name, label in (("plain", RIVAL[arguments.backend]), ("pace", "PACE")):
        found = re.findall(r"^step \d+: ([\d.]+) ms$", (arguments.out / f"{name}.log").read_text(), re.M)
        medians_s[label] = median(map(float, found)) if found else 0.0
    table = Table.grid(padding=(0, 1))
    for label, milliseconds in medians_s.items():
        bar = Bar(max(*medians_s.values(), 1.0), 0, milliseconds, width=60)
        table.add_row(label, bar, f"{milliseconds:.0f} ms" if milliseconds else "warms up")
    return table


def workers(
    backend: str,
    places: list[Place],
    out: Path,
    jobs: dict[str, tuple[object, ...]],
    shows: Callable[[], None] = lambda: None,
) -> None:
    """Run jobs at the same time, each an example program with its options, on two workers as a user would."""
    started = []
    try:
        for port, (job, (program, *options)) in enumerate(jobs.items(), 29500):
            arguments = [str(HERE / str(program)), "--backend", backend, *map(str, options)]
            with (out / f"{job}.log").open("wb") as output:
                for number, place in enumerate(places):
                    command = [*place.enter, *launcher(backend, places, number, port), *arguments]
                    output.write(f"$ {shlex.join(command)}\n".encode())
                    output.flush()
                    names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
                    environment = {"OMP_NUM_THREADS": "1"} | dict.fromkeys(names, place.interface)
                    process = subprocess.Popen(
                        command,
                        stdout=output,
                        stderr=output,
                        env=os.environ | environment,
                        start_new_session=True,
                    )
                    started.append((job, process))
        deadline = time.monotonic() + STAGE_TIMEOUT_S * len(jobs)
        left = list(started)
        while left:
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"demo: {' and '.join(jobs)} did not end in time: run the demo while this machine does"
                    f" nothing else, or see {out}/*.log"
                )
            for job, process in left:
                if process.poll():
                    tail = "\n".join((out / f"{job}.log").read_text(errors="replace").splitlines()[-30:])
                    raise SystemExit(f"{tail}\ndemo: {job} failed with exit code {process.returncode}")
            left = [each for each in left if each[1].returncode is None]
            shows()
            time.sleep(0.2)
    finally:
        resume(out / TURNS)
        for _, process in started:
            stop(process)


def launcher(backend: str, places: list[Place], number: int, port: int) -> list[str]:
    """Return what starts one place's workers: both, or one of two hosts' own, which meet at a port."""
    if backend == "horovod":
        command = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
        return [*command, "--network-interfaces", places[0].interface, sys.executable]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    if len(places) == 1:
        return [*torchrun, "--standalone", "--nproc-per-node", "2"]
    return [
        *(*torchrun, "--nproc-per-node", "1", "--nnodes", str(len(places)), "--node-rank", str(number)),
        *("--master-addr", places[0].address, "--master-port", str(port)),
    ]


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def draw_windows(profile: Profile, schedule: Schedule, measured: dict[str, Any], picture: Path) -> None:
    """Draw the predicted window above the measured one, which begins at the predicted first send."""
    predicted = lay_out(profile, schedule)
    begin_s = min(transfer.start_s for transfer in predicted.transfers)
    slices = [each for each in measured["traceEvents"] if each["ph"] == "X"]
    transfers = tuple(
        WindowTransfer(
            link=0,
            cargo=each["args"]["group"],
            size_bytes=each["args"]["size_bytes"],
            start_s=begin_s + each["ts"] / 1e6,
            end_s=begin_s + (each["ts"] + each["dur"]) / 1e6,
        )
        for each in slices
    )
    found = Window(
        name="measured",
        iteration_s=max(transfer.end_s for transfer in transfers),
        barrier=False,
        links=predicted.links,
        cargo=tuple(replace(each, ready_s=None) for each in predicted.cargo),
        transfers=transfers,
    )
    titles = ("predicted", "measured: what rank 0 sent in its last step, from the predicted first send on")
    plot_windows([(titles[0], predicted), (titles[1], found)], picture)


def print_groups(console: Console, schedule: Schedule) -> None:
    """Print what is sent, in order of priority."""
    table = Table(
        "priority", "group", "KiB", "ready ms", "sent ms", "needed ms", "gradients", title="Schedule"
    )
    for column in table.columns[:6]:
        column.justify = "right"
    needed_s = schedule.predicted.iteration_s
    for segment in schedule.transfers:
        group = schedule.groups[segment.group]
        table.add_row(
            str(segment.priority),
            str(segment.group),
            f"{segment.size_bytes / 1024:,.1f}",
            f"{group.ready_s * 1e3:.1f}",
            f"{segment.start_s * 1e3:.1f}",
            f"{(needed_s - group.tail_s) * 1e3:.1f}",
            ", ".join(group.tensors),
        )
    console.print(table)


def print_times(console: Console, profile: Profile, schedule: Schedule, backend: str, out: Path) -> None:
    """Print predicted and measured iteration times side by side.

    Predictions are for the speed at which the machine computed meanwhile.
    """
    trial = json.loads((out / "pace.trial.json").read_text())
    plain = make_policy("horovod" if backend == "horovod" else "ddp")
    following = Following(schedule=schedule, barrier=trial["mode"] == "barrier")
    policies = {"plain": plain, "pace": plain if trial["source"] == "plain" else following}
    title = "Iteration time"
    table = Table("", "compute alone ms", "predicted ms", "measured ms", "error", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    captured_s = profile.timing.compute_s
    predicted_s, measured_s = [], []
    for name, label in (("plain", f"plain ({PLAIN[backend]})"), ("pace", "under PACE")):
        times = json.loads((out / f"{name}.json").read_text())
        faster = Scenario(compute_speedup=captured_s / times["compute_alone_s"])
        predicted_s.append(run_policy(computed_at(profile, faster), policies[name]).iteration_s)
        measured_s.append(times["iteration_s"])
        columns = (times["compute_alone_s"], predicted_s[-1], measured_s[-1])
        error = predicted_s[-1] / measured_s[-1] - 1
        table.add_row(label, *(f"{seconds * 1e3:.1f}" for seconds in columns), f"{error:+.1%}")
    speedups = [plain_s / pace_s for plain_s, pace_s in (predicted_s, measured_s)]
    table.add_row("speed-up", "", *(f"x {speedup:.2f}" for speedup in speedups), end_section=True)
    for name, label in (
        ("plain", "plain, at the speed of the capture"),
        ("pace", "under PACE, at that speed"),
    ):
        seconds = (captured_s, run_policy(profile, policies[name]).iteration_s)
        table.add_row(label, *(f"{each * 1e3:.1f}" for each in seconds), "", "")
    console.print(table)
    tried = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in trial["trial_s"].items())
    settled = "plain" if trial["source"] == "plain" else trial["mode"]
    console.print(f"Before it settled, the runtime tried: {tried}. It chose: {settled}.")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend",
        choices=("gloo", "horovod"),
        default="gloo",
        help="library that sums gradients (default: %(default)s)",
    )
    parser.add_argument(
        "--hosts-rate",
        type=float,
        metavar="MBIT",
        help="give each worker a host of the testbed, with links of this rate in Mbit/s (default: loopback)",
    )
    parser.add_argument(
        "--network",
        default="this machine's loopback",
        help="name of the network in the result (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, default=36, help="steps of each training, more than 26 (default: %(default)s)"
    )
    parser.add_argument(
        "--attempts",
        type=int,
        default=2,
        help="how often to measure if the machine is not steady (default: %(default)s)",
    )
    parser.add_argument(
        "--details", action="store_true", help="also print the schedule, and predicted times beside measured"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=24,
        help="number of images in each worker's batch (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE.parent / "out" / "demo",
        help="folder for the results (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
