"""Examples a second with an embedding table on a server: PACE, and the server of torch's RPC tutorial.

    python -m benchmarks embedding [--workers 2] [--rows 1000000] [--steps 100] [--json OUT.json]
    python -m benchmarks embedding --model dlrm [--tables 8] [--prefetch]

Workers train an embedding bag on a server and a linear layer of their own, on bags of 5 keys of which few are
frequent, by SGD. With ``--model dlrm`` there are several tables, 13 numbers for each example, layers below
and above the dot products of all pairs, and DDP averages the layers of all workers, as in the tutorial. Every
contender trains the same model on the same batches. The tutorial's server ("Combining DDP with Distributed
RPC") has an ``nn.EmbeddingBag`` with sparse gradients: workers send keys, get pooled bags, and updates are
applied as they arrive. PACE's server sends rows, and trains in step (sync) or as updates arrive (async). Each
runs in processes of its own, in turns. Printed are the medians of the turns: examples a second, processor
time of all processes for 1,000 examples, and the bytes that PACE's worker sent and received in a step.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness.conditions import study_parser, write_json

_WIDTH, _BAG, _DENSE, _WARM_UP = 64, 5, 13, 10


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


def _batches(rank: int, options: argparse.Namespace) -> Iterator[Batch]:
    drawn = torch.Generator().manual_seed(rank)
    for _ in range(_WARM_UP + options.steps):
        shape = (options.tables, options.batch, _BAG)
        keys = (torch.rand(shape, generator=drawn) ** 3 * (options.rows // options.tables)).long()
        dense = torch.rand(options.batch, _DENSE, generator=drawn)
        yield Batch(keys, dense, torch.rand(options.batch, 1, generator=drawn))


def _timed(
    step: Callable[[Batch, Batch | None], None], rank: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Take all steps; return the seconds of those after the warm-up, and the processor time of all.

    A step gets its batch and the next one.
    """
    start_s, before_s = 0.0, time.process_time()
    for number, (batch, following) in enumerate(pairwise((*_batches(rank, options), None))):
        if number == _WARM_UP:
            start_s = time.perf_counter()
        assert batch is not None
        step(batch, following)
    return time.perf_counter() - start_s, time.process_time() - before_s


class Linear(nn.Module):
    """One layer over the pooled rows of all tables."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.layer = nn.Linear(tables * _WIDTH, 1)

    def forward(self, _dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return a logit for each example; `pooled` has shape (tables, examples, width)."""
        logits: torch.Tensor = self.layer(pooled.movedim(0, 1).flatten(1))
        return logits


class Dlrm(nn.Module):
    """What Meta's DLRM has beside its tables: layers below, dot products of all pairs, layers above."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.below = nn.Sequential(nn.Linear(_DENSE, 256), nn.ReLU(), nn.Linear(256, _WIDTH), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + _WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1), persistent=False)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return a logit for each example; `pooled` has shape (tables, examples, width)."""
        below = self.below(dense)
        all_of = torch.cat([below[:, None], pooled.movedim(0, 1)], dim=1)
        products = torch.bmm(all_of, all_of.transpose(1, 2))
        left, right = self.get_buffer("pairs")
        logits: torch.Tensor = self.above(torch.cat([below, products[:, left, right]], dim=1))
        return logits


def _head(options: argparse.Namespace) -> nn.Module:
    """Return the layers of a worker; DDP averages those of a DLRM."""
    torch.manual_seed(0)
    if options.model == "linear":
        return Linear(options.tables)
    return nn.parallel.DistributedDataParallel(Dlrm(options.tables))


def _loss(out: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(out, clicks)


def _pace_server(control: Connection) -> None:
    from pace.runtime.servers.server import Server

    torch.set_num_threads(1)
    with Server() as server:
        control.send(server.address)
        before_s = time.process_time()
        control.recv()
        control.send(time.process_time() - before_s)


def _pace_worker(
    control: Connection,
    rank: int,
    options: argparse.Namespace,
    address: str,
    staleness: int | None,
    store: str,
) -> None:
    import torch.distributed as dist

    from pace.runtime.embedding import EmbeddingTables, RowSGD, ShardedEmbedding
    from pace.runtime.options import ParameterServers

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.workers)
    with EmbeddingTables(ParameterServers(servers=[address]), staleness=staleness) as tables:
        bags = [
            ShardedEmbedding(
                options.rows // options.tables,
                _WIDTH,
                tables=tables,
                optimizer=RowSGD(lr=0.1),
                mode="sum",
                name=f"table{number}",
            )
            for number in range(options.tables)
        ]
        head = _head(options)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

        def step(batch: Batch, following: Batch | None) -> None:
            optimizer.zero_grad()
            pooled = torch.stack([bag(keys) for bag, keys in zip(bags, batch.keys, strict=True)])
            loss = _loss(head(batch.dense, pooled), batch.clicks)
            if options.prefetch and following is not None:
                for bag, keys in zip(bags, following.keys, strict=True):
                    bag.prefetch(keys)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            tables.step()

        times = _timed(step, rank, options)
        for bag in bags:
            bag.look_up(torch.tensor([0]))
        carried = sum(tables.carried_bytes) / (_WARM_UP + options.steps)
        dist.barrier()
    control.send((*times, carried))
    dist.destroy_process_group()


def _rpc(rank: int, options: argparse.Namespace, port: int) -> None:
    from torch.distributed import rpc

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        "server" if rank == options.workers else f"worker{rank}",
        rank=rank,
        world_size=options.workers + 1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(rpc_timeout=300),
    )


_making = threading.Lock()
_made: list[nn.EmbeddingBag] = []
_before_s: list[float] = []


def _table(rows: int, number: int, tables: int) -> torch.Tensor:
    """Return a table of the server, whose first caller makes all."""
    with _making:
        if not _made:
            _made.extend(nn.EmbeddingBag(rows, _WIDTH, mode="sum", sparse=True) for _ in range(tables))
            _before_s.append(time.process_time())
    return _made[number].weight


def _pooled(keys: torch.Tensor) -> torch.Tensor:
    """Return the pooled rows of all tables, in one answer."""
    return torch.stack([table(bags) for table, bags in zip(_made, keys, strict=True)])


def _rpc_server(control: Connection, options: argparse.Namespace, port: int) -> None:
    from torch.distributed import rpc

    _rpc(options.workers, options, port)
    rpc.shutdown()
    control.send(time.process_time() - _before_s[0])


def _rpc_worker(control: Connection, rank: int, options: argparse.Namespace, port: int, store: str) -> None:
    import torch.distributed as dist
    import torch.distributed.autograd as dist_autograd
    from torch.distributed import rpc
    from torch.distributed.optim import DistributedOptimizer

    _rpc(rank, options, port)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.workers)
    rows, number = options.rows // options.tables, options.tables
    tables = [rpc.remote("server", _table, args=(rows, each, number)) for each in range(number)]
    head = _head(options)
    parameters = [*tables, *(rpc.RRef(each) for each in head.parameters())]
    optimizer = DistributedOptimizer(  # type: ignore[no-untyped-call]
        torch.optim.SGD, parameters, lr=0.1
    )

    def step(batch: Batch, _following: Batch | None) -> None:
        with dist_autograd.context() as context:
            pooled = rpc.rpc_sync("server", _pooled, args=(batch.keys,))
            loss = _loss(head(batch.dense, pooled), batch.clicks)
            dist_autograd.backward(context, [loss])  # type: ignore[attr-defined]
            optimizer.step(context)  # type: ignore[no-untyped-call]

    control.send((*_timed(step, rank, options), 0.0))
    rpc.shutdown()
    dist.destroy_process_group()


def _start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, mine


def _measured(contender: str, options: argparse.Namespace) -> tuple[float, float, float]:
    """Run server and workers.

    Returns examples a second of all workers, processor seconds for 1,000 examples, and the bytes that each
    worker carried in a step.
    """
    store = str(Path(tempfile.mkdtemp()) / "store")
    if contender == "torch RPC":
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        server = _start(_rpc_server, options, port)
        workers = [_start(_rpc_worker, rank, options, port, store) for rank in range(options.workers)]
    else:
        server = _start(_pace_server)
        address = server[1].recv()
        staleness = 0 if contender == "PACE sync" else None
        workers = [
            _start(_pace_worker, rank, options, address, staleness, store) for rank in range(options.workers)
        ]
    told = [control.recv() for _, control in workers]
    if contender != "torch RPC":
        server[1].send(None)
    cpu_s = server[1].recv() + sum(each for _, each, _ in told)
    for process, _ in (*workers, server):
        process.join(60)
    rate = sum(options.batch * options.steps / elapsed_s for elapsed_s, _, _ in told)
    thousands = options.workers * options.batch * (_WARM_UP + options.steps) / 1000
    return rate, cpu_s / thousands, statistics.mean(carried for _, _, carried in told)


CONTENDERS = ("torch RPC", "PACE async", "PACE sync")


def main() -> int:
    """Print examples a second of each contender."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes")
    parser.add_argument("--model", choices=("linear", "dlrm"), default="linear", help="model over the tables")
    parser.add_argument("--tables", type=int, help="number of tables (default: 1, with dlrm 8)")
    parser.add_argument("--prefetch", action="store_true", help="PACE asks for the next batch's rows early")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of all tables, of 64 numbers")
    parser.add_argument("--batch", type=int, default=512, help="bags of 5 keys in a worker's batch")
    parser.add_argument("--steps", type=int, default=100, help="measured steps")
    parser.add_argument("--turns", type=int, default=3, help="how often each contender runs")
    parser.add_argument("--only", choices=CONTENDERS, help="one contender (default: all)")
    options = parser.parse_args()
    options.tables = options.tables or (8 if options.model == "dlrm" else 1)
    names = [options.only] if options.only else CONTENDERS
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for _ in range(options.turns):
        for name in names:
            found[name].append(_measured(name, options))
            print(f"{name}: {found[name][-1][0]:,.0f} examples/s", file=sys.stderr, flush=True)
    for name, turns in found.items():
        rate, cpu_s, carried = (statistics.median(each) for each in zip(*turns, strict=True))
        more = f", {carried / 1e6:.2f} MB a step and worker" if carried else ""
        print(f"{name}: {rate:,.0f} examples/s, {cpu_s * 1000:.0f} ms of processor for 1,000 examples{more}")
    write_json(options.json, {"examples_per_s_processor_s_and_bytes": found})
    return 0
