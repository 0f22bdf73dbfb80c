"""DiLoCo when workers are killed: the time that is lost, with PACE's elastic outer step and with torchft.

    python -m benchmarks diloco.failures [--minutes 3] [--every-s 20] [--torchft FOLDER] [--json OUT.json]

Workers run on loopback, and their compute is a sleep. Each contender first runs without failures, for half as
long. Then a worker, drawn by the seed, is killed every `--every-s` seconds and started again at once, as a
fork of a process that has loaded torch. Contenders have the same model, steps, quorum of two and time-out.
PACE's daemons and torchft's lighthouse live on.

Two things are counted: outer rounds, and each worker's rounds of local steps that became part of the outer
model. The cost of a failure is the time that the missing rounds would take. Twenty such failures are an hour
with one every three minutes.

Make `FOLDER` with ``pip install --target FOLDER torchft``.
"""

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.prerequisites import require_packages
from benchmarks.studies.diloco.member import TOKEN, Training, be_lighthouse, train
from benchmarks.studies.diloco.options import add_workers, read_options

FABRIC = [sys.executable, "-c", "from pace.cli.main import app; app()", "fabric"]
# The machine may be busy.
START_S = 300.0
QUORUM = 2
FAILURES_IN_AN_HOUR = 20


class Counted(NamedTuple):
    """Outer rounds and local rounds that ended in some time, and workers that were killed meanwhile.

    Attributes
    ----------
    local_after_kill
        Local rounds of killed workers that ended after the worker was killed.
    """

    seconds: float
    outer: int
    local: int
    killed: int
    local_after_kill: int


def _address(process: "subprocess.Popen[str]") -> str:
    """Return where a program of the fabric listens; raises RuntimeError with its output if it ends."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("listening on "):
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
            return line.removeprefix("listening on ").strip()
    raise RuntimeError("".join(said))


class Job:
    """The workers of one contender, and what connects them."""

    def __init__(self, kind: str, folder: Path, arguments: argparse.Namespace) -> None:
        self._kind, self._arguments, self._stack = kind, arguments, ExitStack()
        self._context = multiprocessing.get_context("forkserver")
        self._training = Training(
            log=folder / f"{kind}.rounds",
            errors=(arguments.logs or folder) / f"{kind}.errors",
            workers=arguments.workers,
            quorum=QUORUM,
            megabytes=arguments.megabytes,
            step_s=arguments.step_s,
            steps=arguments.steps,
            deadline_s=arguments.deadline_s,
        )
        self._workers: list[BaseProcess] = []
        self._places: list[str] = []

    def __enter__(self) -> "Job":
        workers = self._arguments.workers
        if self._kind == "torchft":
            self._places = [self._lighthouse()] * workers
        else:
            common = [*FABRIC, "scheduler", "--bind", "127.0.0.1:0", "--tick-s", "0.02"]
            scheduler = ["--scheduler", _address(self._popen(common)), "--bind", "127.0.0.1:0"]
            daemons = [
                self._popen([*FABRIC, "daemon", "--name", f"h{number}", *scheduler])
                for number in range(workers)
            ]
            self._places = [_address(each) for each in daemons]
        self._workers = [self._start(number) for number in range(workers)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.join()
        self._stack.close()

    def _lighthouse(self) -> str:
        hears, tells = self._context.Pipe(duplex=False)
        asked = (QUORUM, self._arguments.heartbeat_s, tells)
        process = self._context.Process(target=be_lighthouse, args=asked, daemon=True)
        process.start()
        self._stack.callback(process.join)
        self._stack.callback(process.kill)
        if not hears.poll(START_S):
            raise RuntimeError("torchft's lighthouse does not start")
        return str(hears.recv())

    def _popen(self, command: list[str]) -> "subprocess.Popen[str]":
        environment = os.environ | {"PACE_FABRIC_TOKEN": TOKEN}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _start(self, number: int) -> BaseProcess:
        asked = (self._kind, self._places[number], number, self._training)
        process = self._context.Process(target=train, args=asked, daemon=True)
        process.start()
        return process

    def wait(self, rounds: int) -> None:
        """Wait until every worker has taken part in so many rounds."""
        end = time.monotonic() + START_S
        while True:
            counts = Counter(number for number, _ in self._lines())
            if len(counts) == self._arguments.workers and min(counts.values()) >= rounds:
                return
            if time.monotonic() > end:
                errors = self._training.errors.read_text()
                raise RuntimeError(f"{self._kind}: not all workers train, {dict(counts)}:\n{errors[-4000:]}")
            time.sleep(0.05)

    def _lines(self) -> list[tuple[str, str]]:
        log = self._training.log
        lines = log.read_text().splitlines() if log.exists() else []
        return [(number, outer) for number, _, outer in (line.partition(" ") for line in lines)]

    def run(self, seconds: float, every_s: float | None, chance: random.Random) -> Counted:
        """Count rounds, while workers are killed every `every_s` seconds."""
        before, began, killed = len(self._lines()), time.monotonic(), 0
        first_after: dict[str, int] = {}  # by worker: where its lines after its first kill begin
        while (now := time.monotonic() - began) < seconds:
            if every_s and now >= (killed + 1) * every_s:
                number = chance.randrange(len(self._workers))
                self._workers[number].kill()
                self._workers[number].join()
                first_after.setdefault(str(number), len(self._lines()) - before)
                killed += 1
            for number, worker in enumerate(self._workers):
                if not worker.is_alive():  # killed, or ended by an error of its own
                    worker.join()
                    self._workers[number] = self._start(number)
            time.sleep(0.05)
        lines = self._lines()[before:]
        outer = len({outer for _, outer in lines})
        after_kill = sum(
            place >= first_after.get(number, len(lines)) for place, (number, _) in enumerate(lines)
        )
        return Counted(time.monotonic() - began, outer, len(lines), killed, after_kill)


def measured(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what was counted without and with failures, and the seconds that a failure costs."""
    seconds = 60.0 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder, Job(kind, Path(folder), arguments) as job:
        job.wait(2)
        calm = job.run(seconds / 2, None, random.Random(arguments.seed))
        rough = job.run(seconds, arguments.every_s, random.Random(arguments.seed))
    if not calm.outer:
        raise RuntimeError(f"{kind}: no round ended in {calm.seconds:.0f} s: give more --minutes")
    found: dict[str, Any] = {"calm": calm._asdict(), "rough": rough._asdict()}
    for what in ("outer", "local"):
        rate, left = getattr(calm, what) / calm.seconds, getattr(rough, what) / rough.seconds
        lost = 1 - left / rate
        cost_s = lost * rough.seconds / rough.killed
        found[what] = {
            "calm_per_minute": 60 * rate,
            "rough_per_minute": 60 * left,
            "share_lost": lost,
            "seconds_lost_by_a_failure": cost_s,
            "minutes_lost_in_an_hour": FAILURES_IN_AN_HOUR * cost_s / 60,
        }
    return found


def main() -> None:
    """Measure PACE, and torchft if it is there."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument(
        "--torchft", type=Path, help="folder with an installed torchft, to measure it too (default: none)"
    )
    parser.add_argument(
        "--only", choices=("pace", "torchft"), help="measure only this contender (default: all)"
    )
    add_workers(parser, workers=4, step_s=0.1, megabytes=1.0, of="the model")
    parser.add_number("--minutes", 3.0, "duration of the run with failures, in minutes")
    parser.add_number("--every-s", 20.0, "seconds from one failure to the next")
    parser.add_number("--steps", 20, "number of local steps in a round")
    parser.add_number("--deadline-s", 10.0, "time-out of an outer step in seconds")
    parser.add_number("--heartbeat-s", 5.0, "torchft's heartbeat time-out in seconds")
    parser.add_argument("--logs", type=Path, help="folder for the workers' logs (default: not kept)")
    parser.add_number("--seed", 0, "seed that chooses the killed workers")
    arguments = read_options(parser)
    if arguments.every_s >= 60 * arguments.minutes:
        parser.error("--every-s is longer than --minutes: nothing would fail")
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # The first optimizer of a process loads the compiler.
    preloaded = ["benchmarks.studies.diloco.member", "torch._dynamo"]
    if arguments.torchft:
        # The process that forks finds torchft by the environment, its forks by this process's path.
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path), str(arguments.torchft)])
        sys.path.append(str(arguments.torchft))
        remedy = f"pip install --target {arguments.torchft} torchft"
        require_packages("torchft.local_sgd", "torchft.coordination", remedy=remedy)
        preloaded += ["torchft.local_sgd", "torchft.coordination"]
    multiprocessing.set_forkserver_preload(preloaded)
    found: dict[str, Any] = {}
    for kind in ("pace", *(("torchft",) if arguments.torchft else ())):
        if arguments.only in (None, kind):
            found[kind] = each = measured(kind, arguments)
            for what in ("outer", "local"):
                print(
                    f"{kind}, {what} rounds a minute: {each[what]['calm_per_minute']:.1f} without failures, "
                    f"{each[what]['rough_per_minute']:.1f} with {each['rough']['killed']} "
                    f"({each[what]['share_lost']:.1%} lost, {each[what]['seconds_lost_by_a_failure']:.1f} s "
                    f"each): {each[what]['minutes_lost_in_an_hour']:.2f} minutes lost in an hour",
                    flush=True,
                )
    write_json(arguments.json, found)
