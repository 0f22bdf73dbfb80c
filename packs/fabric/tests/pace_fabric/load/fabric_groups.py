"""Attack on groups: workers, daemons and the scheduler are killed at random, and no two models may differ.

Every worker writes the hash of its model after each round. Two hashes of one round are a failure, and so is a
group that stops. The chance is that of a seed, but for how processes take turns.

    python -m tests.pace_fabric.load.fabric_groups --rounds 40 --seed 1
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from pace.errors import CommunicationFailed, RoundMissed
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.group_member import GroupMember
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from tests.pace_fabric.runtime.processes import TOKEN, Fabric, Started

HOSTS = 3
WORKERS = 5
QUORUM = 2
_DEADLINE_S = 3.0


def work(port: int, worker: str, rounds: int, numbers: int, log: Path) -> None:
    """Train, join again when a round is missed, and begin anew when the daemon is gone."""
    from pace.wire.addresses import ServerAddress

    rng = np.random.default_rng([os.getpid(), rounds])
    state = bytearray(8 + 4 * numbers)
    while (done := int.from_bytes(state[:8], "little")) < rounds:
        try:
            place = ServerAddress(host="127.0.0.1", port=port, name="daemon")
            with FabricClient(place, worker=worker, token=TOKEN, timeout_s=120.0, within_s=120.0) as fabric:
                member = GroupMember(
                    fabric,
                    "attack",
                    members=WORKERS,
                    quorum=QUORUM,
                    deadline_s=_DEADLINE_S,
                    give_state=lambda: bytes(state),
                )
                while done < rounds:
                    update: np.ndarray | None = rng.normal(size=numbers).astype(np.float32)
                    try:
                        if not member.round:
                            found = member.join(rounds=done)
                            if found is not None:
                                state[:], update = found, None
                        time.sleep(rng.uniform(0, 0.05))
                        mean = member.mean(update)
                    except RoundMissed:
                        continue
                    done = int.from_bytes(state[:8], "little") + 1
                    model = np.frombuffer(state, dtype=np.float32, offset=8) + mean
                    state[:] = done.to_bytes(8, "little") + model.tobytes()
                    with log.open("a") as out:
                        out.write(f"{done} {hashlib.sha256(state).hexdigest()}\n")
        except CommunicationFailed as error:
            print(f"{worker}: {error}", file=sys.stderr, flush=True)
            time.sleep(0.2)


class Attack:
    """A fabric and its workers, of which some are killed from time to time."""

    def __init__(self, folder: Path, rounds: int, numbers: int, seed: int) -> None:
        self.folder, self.rounds, self.numbers = folder, rounds, numbers
        self.chance = random.Random(seed)
        self.log = folder / "rounds"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: defaultdict[str, int] = defaultdict(int)
        self.ports: dict[str, int] = {}

    def run(self, within_s: float) -> int:
        """Attack until a worker has made all rounds; return the number of faults that were found."""
        names = ("scheduler", *(f"h{number}" for number in range(HOSTS)))
        options = SchedulerOptions(tick_s=0.02)
        deadline = time.monotonic() + within_s
        with Fabric(self.folder, HOSTS, options, killable=names, without_server=True) as fabric:
            self.ports = {name: fabric.place(name).port for name in names}
            for number in range(WORKERS):
                self.start(f"w{number}")
            try:
                while time.monotonic() < deadline and all(w.poll() is None for w in self.workers.values()):
                    time.sleep(self.chance.uniform(0.5, 4.0))
                    self.kill_one(fabric)
            finally:
                for worker in self.workers.values():
                    worker.kill()
                    worker.wait()
        return self.judge()

    def start(self, worker: str) -> None:
        """Start a worker on its host."""
        port = self.ports[f"h{int(worker[1:]) % HOSTS}"]
        arguments = ["--work", worker, "--port", str(port), "--log", str(self.log)]
        sizes = ["--rounds", str(self.rounds), "--numbers", str(self.numbers)]
        command = [sys.executable, "-m", "tests.pace_fabric.load.fabric_groups", *arguments, *sizes]
        self.workers[worker] = subprocess.Popen(command)

    def kill_one(self, fabric: Fabric) -> None:
        """Kill a process, and start it again at the same place."""
        victim = self.chance.choice([*self.workers, *self.workers, *self.ports])
        self.killed[victim[0]] += 1
        if victim in self.workers:
            self.workers[victim].kill()
            self.workers[victim].wait()
            self.start(victim)
            return
        fabric.kill(victim)
        bind = f"127.0.0.1:{self.ports[victim]}"
        if victim == "scheduler":
            fabric.members[victim] = Started("scheduler", "--bind", bind, "--tick-s", "0.02")
        else:
            scheduler = f"127.0.0.1:{self.ports['scheduler']}"
            fabric.members[victim] = Started(
                "daemon", "--name", victim, "--scheduler", scheduler, "--bind", bind
            )
        assert fabric.members[victim].address == bind

    def judge(self) -> int:
        """Print what was found."""
        hashes: defaultdict[int, set[str]] = defaultdict(set)
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        for line in lines:
            number, told = line.split()
            hashes[int(number)].add(told)
        most = max(hashes, default=0)
        different = {number: len(told) for number, told in hashes.items() if len(told) > 1}
        print(f"{most} of {self.rounds} rounds, {len(lines)} models, killed {dict(self.killed)}")
        print(f"rounds with different models: {different or 'none'}")
        return len(different) + (most < self.rounds)


def main() -> int:
    """Attack, or be one of the workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--numbers", type=int, default=250_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within-s", type=float, default=600.0)
    parser.add_argument("--work")
    parser.add_argument("--port", type=int)
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    if given.work is not None:
        work(given.port, given.work, given.rounds, given.numbers, given.log)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return Attack(Path(folder), given.rounds, given.numbers, given.seed).run(given.within_s)


if __name__ == "__main__":
    sys.exit(main())
