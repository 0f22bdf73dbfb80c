"""What all contenders train on: batches, layers beside the tables, processes; and how steps are timed."""

import argparse
import importlib
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

WIDTH, BAG, DENSE, WARM_UP = 64, 5, 13, 10

# What servers and workers need, with the compiler, which the first optimizer of a process loads.
_LOADED_ONCE = (
    "torch._dynamo",
    "torch.distributed.optim",
    "torch.distributed.rpc",
    "pace_servers.embedding",
    "pace_servers.runtime.server",
    "benchmarks.studies.embedding.workload",
)


class Turn(NamedTuple):
    """What one run of a contender gave.

    Attributes
    ----------
    examples_per_s
        Of all workers together.
    processor_s
        Processor time of all processes for 1,000 examples.
    carried_bytes
        Bytes that each worker sent and received in a step; 0 where nobody counts them.
    """

    examples_per_s: float
    processor_s: float
    carried_bytes: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Examples of one worker.

    Attributes
    ----------
    keys : integers of shape (tables, examples, keys of a bag)
    dense : (examples, 13)
    clicks : (examples, 1)
    """

    keys: torch.Tensor
    dense: torch.Tensor
    clicks: torch.Tensor


def draw_batches(rank: int, options: argparse.Namespace) -> Iterator[Batch]:
    """Yield a worker's batches, those of the warm-up first; few keys are frequent."""
    drawn = torch.Generator().manual_seed(rank)
    for _ in range(WARM_UP + options.steps):
        shape = (options.tables, options.batch, BAG)
        keys = (torch.rand(shape, generator=drawn) ** 3 * (options.rows // options.tables)).long()
        dense = torch.rand(options.batch, DENSE, generator=drawn)
        yield Batch(keys, dense, torch.rand(options.batch, 1, generator=drawn))


def timed(
    step: Callable[[Batch, Batch | None], None], rank: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Take all steps; return the seconds of those after the warm-up, and the processor time of all.

    A step gets its batch and the next one.
    """
    batches = [*draw_batches(rank, options), None]
    start_s, before_s = 0.0, time.process_time()
    for number, (batch, following) in enumerate(pairwise(batches)):
        if number == WARM_UP:
            start_s = time.perf_counter()
        assert batch is not None
        step(batch, following)
    return time.perf_counter() - start_s, time.process_time() - before_s


def turn_of(
    options: argparse.Namespace, seconds: list[float], processor_s: float, carried_bytes: float = 0.0
) -> Turn:
    """Return a turn from each worker's seconds, and the processor time of all processes."""
    thousands = options.workers * options.batch * (WARM_UP + options.steps) / 1000
    rate = sum(options.batch * options.steps / each for each in seconds)
    return Turn(rate, processor_s / thousands, carried_bytes)


class Linear(nn.Module):
    """One layer over the pooled rows of all tables."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.layer = nn.Linear(tables * WIDTH, 1)

    def forward(self, _dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return a logit for each example; `pooled` has shape (tables, examples, width)."""
        logits: torch.Tensor = self.layer(pooled.movedim(0, 1).flatten(1))
        return logits


class Dlrm(nn.Module):
    """What Meta's DLRM has beside its tables: layers below, dot products of all pairs, layers above."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.below = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, WIDTH), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1), persistent=False)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return a logit for each example; `pooled` has shape (tables, examples, width)."""
        below = self.below(dense)
        all_of = torch.cat([below[:, None], pooled.movedim(0, 1)], dim=1)
        products = torch.bmm(all_of, all_of.transpose(1, 2))
        left, right = self.get_buffer("pairs")
        logits: torch.Tensor = self.above(torch.cat([below, products[:, left, right]], dim=1))
        return logits


def make_head(options: argparse.Namespace) -> nn.Module:
    """Return the layers of a worker; DDP averages those of a DLRM."""
    torch.manual_seed(0)
    if options.model == "linear":
        return Linear(options.tables)
    return nn.parallel.DistributedDataParallel(Dlrm(options.tables))


def loss_of(out: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch."""
    return nn.functional.binary_cross_entropy_with_logits(out, clicks)


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Start a process of its own, a fork of this one, which loads torch; return it, and what it tells."""
    for module in _LOADED_ONCE:
        importlib.import_module(module)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, mine


def new_store() -> str:
    """Return a path at which ranks of torch meet."""
    return str(Path(tempfile.mkdtemp()) / "store")


def free_ports(count: int) -> list[int]:
    """Return ports of this machine's loopback that nobody listens at."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
