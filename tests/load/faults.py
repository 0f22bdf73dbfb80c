"""Random faults in jobs that train: whoever is left ends in time, by an error that names what was lost.

    .venv/bin/python -m tests.load.faults --backend sharded --faults 30 --seed 1 [--timeout-s S] [--json OUT]

Every rank, and every server that is not colocated, has a host of its own (a network namespace). In each job
one process is killed, stopped, cut off from the network, or ends by itself, at a random moment of an
iteration. Every other rank must end within the time-out and 6 s, by a ``CommunicationFailed`` that names the
rank or the server. Where a server is lost and another is left, ranks may train on instead. Exit status 1 if
anything else happens.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pickle
import random
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.network.names import NAMESPACES
from tests.fork_server import ForkedProcess, ForkServer
from tests.load.faulty_rank import MOMENTS, WAYS, Fault, Job

BACKENDS = (
    "gloo",
    "schedule",
    "sharded",
    "ddp",
    "horovod",
    "servers",
    "servers-apart",
    "asynchronous",
    "mixed",
    "hsdp",
)
GRACE_S = 6.0
# What is too late is waited for a while, to say how late.
PATIENCE_S = 20.0
START_S = 90.0
NUM_SERVERS = 2

_SERVERS = (
    ForkServer("tests.load.faulty_rank", hash_seed=1),
    ForkServer("tests.load.faulty_rank", hash_seed=2),
)


def draw_fault(number: int, backend: str, size: int, chance: random.Random) -> Fault:
    """Draw a fault."""
    server = backend in ("servers-apart", "asynchronous") and chance.random() < 0.5
    ways = ("kill", "stop", "network") if server else WAYS
    way = chance.choice(ways)
    # Other threads cannot raise in the one that trains.
    moments = MOMENTS if way not in ("leave", "raise") else ("between", "forward", "step")
    moment = "any" if server else chance.choice(moments)
    delay_s = chance.random() * (0.2 if moment == "any" else 0.004)
    victim = chance.randrange(NUM_SERVERS if server else size)
    return Fault(number=number, victim=victim, way=way, moment=moment, server=server, delay_s=delay_s)


@contextlib.contextmanager
def rendezvous(host: Host, size: int) -> Iterator[dict[str, str]]:
    """Keep Horovod's rendezvous server on a host."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    made: list[Any] = []

    def start() -> None:
        # A socket belongs to the network of the thread that opens it.
        with open(NAMESPACES / host.namespace, "rb") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")
        server = RendezvousServer(verbose=0)
        made.extend((server, server.start()))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    server, port = made
    # One rank a host, as hosts go.
    server.init(get_host_assignments(parse_hosts(",".join(f"host{n}:1" for n in range(size))), size, size))
    try:
        yield {
            "HOROVOD_SIZE": str(size),
            "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_CROSS_SIZE": str(size),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": host.address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "eth0",
        }
    finally:
        server.stop()
        server._httpd.server_close()  # stop() leaves the listening socket open


class Attempt:
    """One job with one fault."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._processes: list[ForkedProcess] = []
        self.lost_at: float | None = None
        self.ended_after_s: dict[int, float] = {}
        self.wrong: list[str] = []

    def run(self, environment: dict[str, str]) -> None:
        """Run the job; afterwards ``wrong`` says what should have been otherwise."""
        job = self._job
        Path(job.folder, "job").write_bytes(pickle.dumps(job))
        servers = range(job.size, job.size + job.num_servers)
        try:
            ports = {place: self._fork(place, environment) for place in servers}
            self._wait_for([Path(job.folder, f"listening.{place}") for place in servers])
            ranks = [self._fork(rank, environment) for rank in range(job.size)]
            self._await_fault(ranks, ports)
            if self.lost_at is not None:
                self._await_ends(ranks)
        finally:
            for process in self._processes:
                process.kill()
        if self.lost_at is not None:
            self._judge(ranks)

    def _fork(self, place: int, environment: dict[str, str]) -> ForkedProcess:
        own = os.environ | environment | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        own |= {"HOROVOD_RANK": str(place), "HOROVOD_CROSS_RANK": str(place)}
        own |= {"HOROVOD_HOSTNAME": f"host{place}", "RES_OPTIONS": "timeout:1 attempts:2"}
        folder = self._job.folder
        process = _SERVERS[place % 2].fork(
            [folder, str(place)], output=Path(folder, f"output.{place}"), environment=own
        )
        self._processes.append(process)
        return process

    def _wait_for(self, files: list[Path]) -> None:
        deadline = time.monotonic() + START_S
        while not all(file.exists() for file in files) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _await_fault(self, ranks: list[ForkedProcess], servers: dict[int, ForkedProcess]) -> None:
        fault, folder = self._job.fault, self._job.folder
        awaited = Path(folder, "ready" if fault.server else "lost")
        deadline = time.monotonic() + START_S
        while not awaited.exists():
            if time.monotonic() > deadline or any(rank.poll() is not None for rank in ranks):
                self.wrong.append("the job did not get to the fault")
                self.wrong += [self._output(rank)[-1500:] for rank in range(self._job.size)]
                return
            time.sleep(0.005)
        if not fault.server:
            self.lost_at = float(awaited.read_text())
            return
        time.sleep(fault.delay_s)
        place = self._job.size + fault.victim
        self.lost_at = time.monotonic()
        if fault.way == "network":
            switch, port = self._job.hosts[place].port
            subprocess.run(["ip", "-n", switch, "link", "set", port, "down"], check=True)
        else:
            os.kill(servers[place].pid, 9 if fault.way == "kill" else 19)

    def _survivors(self) -> list[int]:
        fault = self._job.fault
        gone = [] if fault.server or fault.way == "network" else [fault.victim]
        return [rank for rank in range(self._job.size) if rank not in gone]

    def _await_ends(self, ranks: list[ForkedProcess]) -> None:
        assert self.lost_at is not None
        limit = self.lost_at + self._job.timeout_s + GRACE_S
        open_ = set(self._survivors())
        while open_ and time.monotonic() < limit + PATIENCE_S:
            for rank in list(open_):
                if ranks[rank].poll() is not None:
                    self.ended_after_s[rank] = time.monotonic() - self.lost_at
                    open_.discard(rank)
            may_train_on = self._job.fault.server or self._leaves_for_good
            if may_train_on and time.monotonic() > limit and self._train_on(open_, limit - 2):
                return
            time.sleep(0.02)

    @property
    def _leaves_for_good(self) -> bool:
        """Whether a rank ends without an error where the others need not wait for it."""
        return self._job.backend == "asynchronous" and self._job.fault.way == "leave"

    def _train_on(self, ranks: set[int], since: float) -> bool:
        """Whether all ranks train, and have lately taken steps."""
        if len(ranks) < len(self._survivors()):
            return False
        steps = [Path(self._job.folder, f"step.{rank}") for rank in ranks]
        return all(step.exists() and float(step.read_text() or 0) > since for step in steps)

    def _output(self, rank: int) -> str:
        written = Path(self._job.folder, f"output.{rank}").read_text(errors="replace")
        return re.sub(r"^\[rank\d+\]: ", "", written, flags=re.M)  # torch marks tracebacks

    def _judge(self, ranks: list[ForkedProcess]) -> None:
        fault, limit_s = self._job.fault, self._job.timeout_s + GRACE_S
        if (fault.server or self._leaves_for_good) and not self.ended_after_s:
            if not self._train_on(set(self._survivors()), 0.0):
                self.wrong.append("ranks neither ended nor trained on")
            return
        name = rf"\bserver {fault.victim}\b" if fault.server else rf"\brank {fault.victim}\b"
        for rank in self._survivors():
            output = self._output(rank)
            took_s = self.ended_after_s.get(rank)
            if took_s is None:
                self.wrong.append(f"rank {rank} has not ended {limit_s + PATIENCE_S:.0f} s after the loss")
            elif took_s > limit_s:
                raised_s = [
                    float(at) - (self.lost_at or 0.0) for at in re.findall(r"^raised at (.*)", output, re.M)
                ]
                self.wrong.append(f"rank {rank} raised {raised_s} and ended {took_s:.1f} s after the loss")
            said = re.findall(r"^(?:[\w.]+\.)?CommunicationFailed: (.*)$", output, re.M)
            if not said:
                self.wrong.append(f"rank {rank} raised nothing of ours: {output[-1500:]}")
                continue
            # Who speaks comes first. A rank that is cut off cannot know that it is the one.
            itself = not fault.server and rank == fault.victim
            if not itself and not re.search(name, said[-1].partition(":")[2]):
                self.wrong.append(f"rank {rank} does not name it: {said[-1]}")
            if ranks[rank].poll() not in (1, None):
                self.wrong.append(f"rank {rank} ended with status {ranks[rank].poll()}: {output[-1500:]}")


def _restore(made: list[Host]) -> None:
    for host in made:
        switch, port = host.port
        subprocess.run(["ip", "-n", switch, "link", "set", port, "up"], check=True)


def faults(backend: str, count: int, seed: int, timeout_s: float, only: int | None = None) -> dict[str, Any]:
    """Run as many jobs as faults; ``wrong`` of the result is empty if all went well."""
    chance = random.Random(f"{backend} {seed}")
    size = 4 if backend == "hsdp" else 3
    servers = NUM_SERVERS if backend in ("servers-apart", "asynchronous") else 0
    wrong: list[dict[str, Any]] = []
    slowest_s = 0.0
    with hosts([Link(rate_mbit_s=1000.0)] * (size + servers)) as made:
        for number in range(count):
            fault = draw_fault(number, backend, size, chance)
            if only is not None and number != only:
                continue
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pace-fault-"))
                extra = stack.enter_context(rendezvous(made[0], size)) if backend == "horovod" else {}
                job = Job(
                    backend=backend,
                    size=size,
                    hosts=tuple(made),
                    fault=fault,
                    folder=folder,
                    seed=seed * 1000 + number,
                    timeout_s=timeout_s,
                    num_servers=servers,
                )
                attempt = Attempt(job)
                attempt.run(extra)
            _restore(made)
            took_s = max(attempt.ended_after_s.values(), default=0.0)
            slowest_s = max(slowest_s, took_s)
            print(f"{backend} {fault}: {'; '.join(attempt.wrong) or f'{took_s:.1f} s'}", flush=True)
            if attempt.wrong:
                wrong.append({"fault": str(fault), "wrong": attempt.wrong})
    return {
        "backend": backend,
        "faults": count,
        "seed": seed,
        "timeout_s": timeout_s,
        "slowest_s": slowest_s,
        "wrong": wrong,
    }


def main() -> None:
    """Run the faults of one backend and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=8.0)
    parser.add_argument("--only", type=int, help="run this one of the faults alone")
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_args()
    result = faults(given.backend, given.faults, given.seed, given.timeout_s, given.only)
    print(json.dumps(result, indent=2))
    write_json(given.json, result)
    if result["wrong"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
