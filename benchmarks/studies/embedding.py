"""Examples a second with an embedding table on a server: PACE, and the server of torch's RPC tutorial.

    python -m benchmarks embedding [--workers 2] [--rows 1000000] [--steps 100] [--json OUT.json]

Workers train an embedding bag on a server and a linear layer of their own, on bags of 5 keys of which few are
frequent, by SGD. The tutorial's server ("Combining DDP with Distributed RPC") has an ``nn.EmbeddingBag`` with
sparse gradients: workers send keys, get pooled bags, and updates are applied as they arrive. PACE's server
sends rows, and trains in step (sync) or as updates arrive (async). Each runs in processes of its own, in
turns. Printed are the medians of the turns: examples a second, processor time of all processes for 1,000
examples, and the bytes that PACE's worker sent and received in a step.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness.conditions import study_parser, write_json

_WIDTH, _BAG, _WARM_UP = 64, 5, 10


def _batches(rank: int, options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(rank)
    for _ in range(_WARM_UP + options.steps):
        keys = (torch.rand(options.batch, _BAG, generator=drawn) ** 3 * options.rows).long()
        yield keys, torch.rand(options.batch, 1, generator=drawn)


def _timed(
    step: Callable[[torch.Tensor, torch.Tensor], None], rank: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Take all steps; return the seconds of those after the warm-up, and the processor time of all."""
    start_s, before_s = 0.0, time.process_time()
    for number, (keys, clicks) in enumerate(_batches(rank, options)):
        if number == _WARM_UP:
            start_s = time.perf_counter()
        step(keys, clicks)
    return time.perf_counter() - start_s, time.process_time() - before_s


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
        bag = ShardedEmbedding(options.rows, _WIDTH, tables=tables, optimizer=RowSGD(lr=0.1), mode="sum")
        head = nn.Linear(_WIDTH, 1)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

        def step(keys: torch.Tensor, clicks: torch.Tensor) -> None:
            optimizer.zero_grad()
            _loss(head(bag(keys)), clicks).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            tables.step()

        times = _timed(step, rank, options)
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


def _table(rows: int) -> torch.Tensor:
    """Return the server's table, which its first caller makes."""
    with _making:
        if not _made:
            _made.append(nn.EmbeddingBag(rows, _WIDTH, mode="sum", sparse=True))
            _before_s.append(time.process_time())
    return _made[0].weight


def _pooled(keys: torch.Tensor) -> torch.Tensor:
    pooled: torch.Tensor = _made[0](keys)
    return pooled


def _rpc_server(control: Connection, options: argparse.Namespace, port: int) -> None:
    from torch.distributed import rpc

    _rpc(options.workers, options, port)
    rpc.shutdown()
    control.send(time.process_time() - _before_s[0])


def _rpc_worker(control: Connection, rank: int, options: argparse.Namespace, port: int) -> None:
    import torch.distributed.autograd as dist_autograd
    from torch.distributed import rpc
    from torch.distributed.optim import DistributedOptimizer

    _rpc(rank, options, port)
    table = rpc.remote("server", _table, args=(options.rows,))
    head = nn.Linear(_WIDTH, 1)
    parameters = [table, *(rpc.RRef(each) for each in head.parameters())]
    optimizer = DistributedOptimizer(  # type: ignore[no-untyped-call]
        torch.optim.SGD, parameters, lr=0.1
    )

    def step(keys: torch.Tensor, clicks: torch.Tensor) -> None:
        with dist_autograd.context() as context:
            loss = _loss(head(rpc.rpc_sync("server", _pooled, args=(keys,))), clicks)
            dist_autograd.backward(context, [loss])  # type: ignore[attr-defined]
            optimizer.step(context)  # type: ignore[no-untyped-call]

    control.send((*_timed(step, rank, options), 0.0))
    rpc.shutdown()


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
    if contender == "torch RPC":
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        server = _start(_rpc_server, options, port)
        workers = [_start(_rpc_worker, rank, options, port) for rank in range(options.workers)]
    else:
        server = _start(_pace_server)
        address = server[1].recv()
        staleness = 0 if contender == "PACE sync" else None
        store = str(Path(tempfile.mkdtemp()) / "store")
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
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table, of 64 numbers")
    parser.add_argument("--batch", type=int, default=512, help="bags of 5 keys in a worker's batch")
    parser.add_argument("--steps", type=int, default=100, help="measured steps")
    parser.add_argument("--turns", type=int, default=3, help="how often each contender runs")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(options.turns):
        for name in CONTENDERS:
            found[name].append(_measured(name, options))
            print(f"{name}: {found[name][-1][0]:,.0f} examples/s", file=sys.stderr, flush=True)
    for name, turns in found.items():
        rate, cpu_s, carried = (statistics.median(each) for each in zip(*turns, strict=True))
        more = f", {carried / 1e6:.2f} MB a step and worker" if carried else ""
        print(f"{name}: {rate:,.0f} examples/s, {cpu_s * 1000:.0f} ms of processor for 1,000 examples{more}")
    write_json(options.json, {"examples_per_s_processor_s_and_bytes": found})
    return 0
