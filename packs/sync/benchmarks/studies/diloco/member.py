"""A worker of the study of failures, and torchft's lighthouse. Both run in forks and write what they did."""

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pace.wire.addresses import parse_address
from pace_fabric.runtime.client import FabricClient
from pace_sync.diloco import ElasticOuterStep

TOKEN = "study"
_HIDDEN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What all workers do alike.

    Attributes
    ----------
    log
        Each worker adds a line for a round of local steps that counts: its number, and that of the outer
        round.
    errors
        Where workers write their output.
    deadline_s
        PACE's deadline, and all time-outs of torchft but the quorum's.
    """

    log: Path
    errors: Path
    workers: int
    quorum: int
    megabytes: float
    step_s: float
    steps: int
    deadline_s: float


class Worker:
    """A model, and its local steps, whose compute is a sleep."""

    def __init__(self, training: Training, number: int) -> None:
        torch.manual_seed(0)
        rows = max(int(training.megabytes * 1e6 / 4 / _HIDDEN), 1)
        self.training, self.number = training, number
        self.model = nn.Linear(rows, _HIDDEN, bias=False)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self._random = torch.Generator().manual_seed(number)

    def local_steps(self) -> None:
        """Take the steps of a round: sleep, and move a little by a gradient."""
        for _ in range(self.training.steps):
            time.sleep(self.training.step_s)
            for parameter in self.model.parameters():
                parameter.grad = torch.randn((), generator=self._random).expand_as(parameter)
            self.inner.step()

    def count(self, outer_round: int) -> None:
        """Note that these local steps are part of the outer model."""
        with self.training.log.open("a") as log:
            log.write(f"{self.number} {outer_round}\n")


def _outer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def train(kind: str, place: str, number: int, training: Training) -> None:
    """Be a worker of a contender until killed; `place` is its daemon, or torchft's lighthouse."""
    with training.errors.open("a") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    torch.set_num_threads(1)
    (_with_torchft if kind == "torchft" else _with_pace)(Worker(training, number), place)


def _with_pace(worker: Worker, place: str) -> None:
    told, daemon = worker.training, parse_address(place, "the daemon")
    with FabricClient(daemon, worker=f"worker{worker.number}", token=TOKEN) as fabric:
        outer = ElasticOuterStep(
            worker.model,
            _outer,
            fabric,
            members=told.workers,
            quorum=told.quorum,
            deadline_s=told.deadline_s,
        )
        outer.join()
        while True:
            worker.local_steps()
            if outer.step():
                worker.count(outer.rounds)


def _with_torchft(worker: Worker, place: str) -> None:
    """As in torchft's own trainer of DiLoCo (``torchft/_test/diloco_trainer.py``)."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stub leaves it out
    from torchft.local_sgd import DiLoCo  # type: ignore[import-not-found]  # installed elsewhere
    from torchft.manager import Manager  # type: ignore[import-not-found]
    from torchft.process_group import ProcessGroupGloo  # type: ignore[import-not-found]

    told, model, inner = worker.training, worker.model, worker.inner

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    wait = timedelta(seconds=told.deadline_s)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=wait),
        min_replica_size=told.quorum,
        use_async_quorum=False,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        replica_id=f"worker{worker.number}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=place,
        hostname="127.0.0.1",
        timeout=wait,
        quorum_timeout=6 * wait,
        connect_timeout=wait,
    )
    outer = _outer(list(model.parameters()))
    with DiLoCo(manager, [model], inner, outer, sync_every=told.steps, pin_memory=False):
        while True:
            before = manager.current_step()
            worker.local_steps()
            # A worker that heals drops its own steps and takes another's: its count leaps.
            if manager.current_step() == before + 1:
                worker.count(manager.current_step())


def be_lighthouse(quorum: int, heartbeat_s: float, told: Connection) -> None:
    """Be torchft's lighthouse until killed, with its README's settings; send its address."""
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found]

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=quorum,
        quorum_tick_ms=100,
        join_timeout_ms=10_000,
        heartbeat_timeout_ms=round(1e3 * heartbeat_s),
    )
    told.send(lighthouse.address())
    while True:
        time.sleep(60)
