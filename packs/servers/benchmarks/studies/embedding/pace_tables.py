"""PACE's tables: a server of rows, and workers that train in step or as updates arrive."""

import argparse
import statistics
import time
from multiprocessing.connection import Connection

import torch

from benchmarks.studies.embedding.workload import (
    WARM_UP,
    WIDTH,
    Batch,
    Turn,
    loss_of,
    make_head,
    new_store,
    start,
    timed,
    turn_of,
)


def run_pace(options: argparse.Namespace, *, staleness: int | None) -> Turn:
    """Train with PACE's tables: in step with staleness 0, as updates arrive with None."""
    store = new_store()
    server, control = start(_serve)
    address = control.recv()
    workers = [start(_train, rank, options, address, staleness, store) for rank in range(options.workers)]
    told = [each.recv() for _, each in workers]
    control.send(None)
    processor_s = control.recv() + sum(each for _, each, _ in told)
    for process in (*(each for each, _ in workers), server):
        process.join(60)
    carried_bytes = statistics.mean(carried for _, _, carried in told)
    return turn_of(options, [seconds for seconds, _, _ in told], processor_s, carried_bytes)


def _serve(control: Connection) -> None:
    from pace_servers.runtime.server import Server

    torch.set_num_threads(1)
    with Server() as server:
        control.send(server.address)
        before_s = time.process_time()
        control.recv()
        control.send(time.process_time() - before_s)


def _train(
    control: Connection,
    rank: int,
    options: argparse.Namespace,
    address: str,
    staleness: int | None,
    store: str,
) -> None:
    import torch.distributed as dist

    from pace_servers.embedding import EmbeddingTables, RowSGD, ShardedEmbedding
    from pace_servers.runtime.options import ParameterServers

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.workers)
    with EmbeddingTables(ParameterServers(servers=[address]), staleness=staleness) as tables:
        bags = [
            ShardedEmbedding(
                options.rows // options.tables,
                WIDTH,
                tables=tables,
                optimizer=RowSGD(lr=0.1),
                mode="sum",
                name=f"table{number}",
            )
            for number in range(options.tables)
        ]
        head = make_head(options)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

        def step(batch: Batch, following: Batch | None) -> None:
            optimizer.zero_grad()
            if not options.prefetch and len(bags) > 1:  # ask for the rows of all tables at once
                for bag, keys in zip(bags, batch.keys, strict=True):
                    bag.prefetch(keys)
            pooled = torch.stack([bag(keys) for bag, keys in zip(bags, batch.keys, strict=True)])
            loss = loss_of(head(batch.dense, pooled), batch.clicks)
            if options.prefetch and following is not None:
                for bag, keys in zip(bags, following.keys, strict=True):
                    bag.prefetch(keys)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            tables.step()

        times = timed(step, rank, options)
        for bag in bags:
            bag.look_up(torch.tensor([0]))
        carried = sum(tables.carried_bytes) / (WARM_UP + options.steps)
        dist.barrier()
    control.send((*times, carried))
    dist.destroy_process_group()
