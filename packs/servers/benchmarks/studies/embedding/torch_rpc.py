"""The server of torch's tutorial "Combining DDP with Distributed RPC", which pools bags itself."""

import argparse
import os
import threading
import time
import warnings
from multiprocessing.connection import Connection

import torch
from torch import nn

from benchmarks.studies.embedding.workload import (
    WIDTH,
    Batch,
    Turn,
    free_ports,
    loss_of,
    make_head,
    new_store,
    start,
    timed,
    turn_of,
)


def run_torch_rpc(options: argparse.Namespace) -> Turn:
    """Train as in the tutorial, where updates are applied as they arrive."""
    store, (port,) = new_store(), free_ports(1)
    server, control = start(_serve, options, port)
    workers = [start(_train, rank, options, port, store) for rank in range(options.workers)]
    told = [each.recv() for _, each in workers]
    processor_s = control.recv() + sum(each for _, each in told)
    for process in (*(each for each, _ in workers), server):
        process.join(60)
    return turn_of(options, [seconds for seconds, _ in told], processor_s)


def _join(rank: int, options: argparse.Namespace, port: int) -> None:
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
            _made.extend(nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for _ in range(tables))
            _before_s.append(time.process_time())
    return _made[number].weight


def _pooled(keys: torch.Tensor) -> torch.Tensor:
    """Return the pooled rows of all tables, in one answer."""
    return torch.stack([table(bags) for table, bags in zip(_made, keys, strict=True)])


def _serve(control: Connection, options: argparse.Namespace, port: int) -> None:
    from torch.distributed import rpc

    _join(options.workers, options, port)
    rpc.shutdown()
    control.send(time.process_time() - _before_s[0])


def _train(control: Connection, rank: int, options: argparse.Namespace, port: int, store: str) -> None:
    import torch.distributed as dist
    import torch.distributed.autograd as dist_autograd
    from torch.distributed import rpc
    from torch.distributed.optim import DistributedOptimizer

    _join(rank, options, port)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.workers)
    rows, number = options.rows // options.tables, options.tables
    tables = [rpc.remote("server", _table, args=(rows, each, number)) for each in range(number)]
    head = make_head(options)
    parameters = [*tables, *(rpc.RRef(each) for each in head.parameters())]
    optimizer = DistributedOptimizer(  # type: ignore[no-untyped-call]
        torch.optim.SGD, parameters, lr=0.1
    )

    def step(batch: Batch, _following: Batch | None) -> None:
        with dist_autograd.context() as context:
            pooled = rpc.rpc_sync("server", _pooled, args=(batch.keys,))
            loss = loss_of(head(batch.dense, pooled), batch.clicks)
            dist_autograd.backward(context, [loss])  # type: ignore[attr-defined]
            optimizer.step(context)  # type: ignore[no-untyped-call]

    control.send(timed(step, rank, options))
    rpc.shutdown()
    dist.destroy_process_group()
