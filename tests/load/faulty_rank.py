"""One process of a job in which something is lost: a rank that trains, or a parameter server.

Forked by ``faults.py`` and moved to a host of its own. A rank trains until it is told that another is gone.
What it is told ends the process as in a script of a user: by a traceback, after ``close()`` or without it.
"""

import contextlib
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.network.hosts import INTERFACE, Host
from benchmarks.harness.network.joining import enter
from tests.runtime.launch import load as load

# Nothing is lost before this step; other ranks are told of a loss in the next, or when their time is up.
FIRST_STEPS = 3
MODELS = ("conv", "transformer", "recurrent")
SERVER_PORT = 7070

# A loss at a moment that the loop knows; "any" comes after a random time.
MOMENTS = ("between", "forward", "backward", "step", "any")
WAYS = ("kill", "stop", "network", "exit", "leave", "raise")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to whom, and when.

    Attributes
    ----------
    server
        Whether `victim` is the number of a server.
    """

    number: int
    victim: int
    way: str
    moment: str
    server: bool = False
    delay_s: float = 0.0

    def __str__(self) -> str:
        who = "server" if self.server else "rank"
        return (
            f"{self.number}: {self.way} of {who} {self.victim} in {self.moment}, {self.delay_s * 1e3:.1f} ms"
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every process of a job is told."""

    backend: str
    size: int
    hosts: tuple[Host, ...]
    fault: Fault
    folder: str
    seed: int
    timeout_s: float
    num_servers: int = 0
    environment: dict[str, str] = field(default_factory=dict)


def run(arguments: list[str]) -> int:
    """Be a rank or a server; see ``ForkServer``."""
    folder, number = arguments
    job: Job = pickle.loads(Path(folder, "job").read_bytes())
    place = int(number)
    enter(job.hosts[place])
    os.environ |= {"GLOO_SOCKET_IFNAME": INTERFACE, "MASTER_ADDR": job.hosts[0].address}
    if place >= job.size:
        return _serve(job, place)
    if job.backend != "horovod":
        _join(job, place)
    try:
        _train(job, place)
    except BaseException:
        print("raised at", time.monotonic())
        if job.backend != "horovod":
            raise
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    if job.backend == "horovod":
        os._exit(1)  # Horovod's own exit waits for a rank that is stopped
    return 0


def _serve(job: Job, place: int) -> int:
    from pace_servers.runtime.server import Server

    Server(job.hosts[place].address, SERVER_PORT, token="faults")
    Path(job.folder, f"listening.{place}").touch()
    while True:
        time.sleep(60)


def _join(job: Job, rank: int) -> None:
    import datetime

    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    timeout = datetime.timedelta(seconds=100)
    address, port = job.hosts[0].address, 29500
    store = TCPStore(address, port, job.size, rank == 0, timeout, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job.size)


def _cut_off(host: Host) -> None:
    switch, port = host.port
    subprocess.run(["ip", "-n", switch, "link", "set", port, "down"], check=True)


class Injector:
    """Has the fault happen to this rank, if it is the victim, as the loop passes the moment for it."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self._fault = job.fault
        self._mine = not job.fault.server and job.fault.victim == rank
        self._rank = rank
        self._due = False

    def begin(self, step: int) -> None:
        """Say that a step begins."""
        if step == FIRST_STEPS and (self._mine or (self._fault.server and self._rank == 0)):
            if self._fault.server:
                Path(self._job.folder, "ready").touch()
            elif self._fault.moment == "any":
                self._later()
            else:
                self._due = True

    def at(self, moment: str) -> None:
        """Say what the loop does now."""
        if not self._due or moment != self._fault.moment:
            return
        self._due = False
        if moment == "step" and self._fault.way in ("kill", "stop", "network", "exit"):
            self._later()
        else:
            self._lose()

    def _later(self) -> None:
        timer = threading.Timer(self._fault.delay_s, self._lose)
        timer.daemon = True
        timer.start()

    def _lose(self) -> None:
        Path(self._job.folder, "lost.new").write_text(repr(time.monotonic()))
        Path(self._job.folder, "lost.new").rename(Path(self._job.folder, "lost"))
        way = self._fault.way
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif way == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif way == "network":
            _cut_off(self._job.hosts[self._rank])
        elif way == "exit":
            os._exit(0)
        elif way == "leave":
            sys.exit(0)
        else:
            raise ZeroDivisionError("this rank fails")


def _options(job: Job, model: Any, chance: random.Random) -> dict[str, Any]:
    from tests.runtime.schedules import shuffled_schedule

    options: dict[str, Any] = {
        "timeout_s": job.timeout_s,
        "mode": chance.choice(["overlap", "overlap", "barrier", "auto"]),
    }
    if job.backend == "sharded":
        return options | {"mode": "overlap", "sharding": "on"}
    if job.backend in ("schedule", "ddp", "horovod") and (job.backend == "schedule" or chance.random() < 0.5):
        options |= {"schedule": shuffled_schedule(model, job.size, job.seed)}
        options |= {"order": chance.choice(["static", "adaptive", "priority"])}
    if job.backend == "servers":
        options |= {"over": "servers", "servers": "colocated", "token": "faults"}
    if job.backend in ("servers-apart", "asynchronous"):
        servers = [f"{host.address}:{SERVER_PORT}" for host in job.hosts[job.size :]]
        options |= {"over": "servers", "servers": servers, "token": "faults"}
    if job.backend == "mixed":
        options |= {"over": "mixed", "servers": "colocated", "token": "faults", "pushed": ["*bias*"]}
    return options


def _start(job: Job, rank: int, chance: random.Random) -> tuple[Any, Any, Any, Callable[[int], Any]]:
    """Make the wrapper, the optimizer to step, the model to hook and what computes a loss."""
    import torch
    from torch import nn

    from tests.runtime.models import batches, build
    from tests.runtime.training import OPTIMIZERS, grouped, trainable, wrap

    torch.manual_seed(7)
    if job.backend == "hsdp":
        from pace.runtime.fsdp import attach
        from tests.runtime.fsdp.job import Job as Sharded
        from tests.runtime.fsdp.job import mesh_of

        sharded = Sharded(rank, attach=False)
        model = sharded.wrapped(mesh_of(2))
        own: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        wrapper: Any = attach(model, own, mode="overlap", timeout_s=job.timeout_s)
        return wrapper, own, model, lambda step: model(sharded.batch(step)).pow(2).mean()
    name = MODELS[job.seed % len(MODELS)]
    model = build(name)
    shares = batches(name, 4, rank)
    own = OPTIMIZERS[chance.choice(["sgd", "adamw"])](trainable(model))
    options = _options(job, model, chance)
    if job.backend == "ddp":
        from pace.runtime.ddp import attach as attach_ddp

        parallel = nn.parallel.DistributedDataParallel(model)
        return (
            attach_ddp(parallel, own, **grouped(options)),
            own,
            model,
            lambda step: parallel(*shares[step % 4]),
        )
    if job.backend == "asynchronous":
        from pace_servers.runtime import asynchronous

        options.pop("mode")
        wrapper = asynchronous(own, model, **grouped(options))
        return wrapper, wrapper, model, lambda step: model(*shares[step % 4])
    wrapper = wrap("horovod" if job.backend == "horovod" else "gloo", own, model, **options)
    return wrapper, wrapper, model, lambda step: model(*shares[step % 4])


def _train(job: Job, rank: int) -> None:
    import torch

    shared, own = random.Random(job.seed), random.Random(job.seed * 1000 + rank)
    injector = Injector(job, rank)
    wrapper, optimizer, model, loss_of = _start(job, rank, shared)
    last = list(model.modules())[-1]
    last.register_forward_pre_hook(lambda *_: injector.at("forward"))
    clipped = shared.random() < 0.4 and job.backend != "asynchronous"
    own_clip = job.backend in ("sharded", "hsdp") and shared.random() < 0.5
    # A rank of Horovod ends at once, so it must have said goodbye.
    closes = job.backend == "horovod" or shared.random() < 0.5
    ending: Any = wrapper if closes else contextlib.nullcontext()
    with ending:
        for step in itertools.count():
            injector.begin(step)
            injector.at("between")
            optimizer.zero_grad()
            loss = loss_of(step)
            loss.register_hook(lambda _: injector.at("backward"))
            torch.autograd.backward(loss)
            if clipped:
                if own_clip:
                    wrapper.clip_grad_norm_(1.0)
                else:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            injector.at("step")
            optimizer.step()
            if own.random() < 0.3:
                time.sleep(own.random() * 0.01)
            if step % 20 == 0:
                Path(job.folder, f"step.{rank}").write_text(repr(time.monotonic()))
