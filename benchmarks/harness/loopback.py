"""Ranks on loopback: processes that join torch.distributed over Gloo and answer once."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any


def run_ranks(ranks: int, main: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run ``main(rank, *arguments)`` in processes of one group and return what each returned.

    `main` is a function of a module, and what it is given and returns can be pickled.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}  # processes inherit it
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(ranks, maxtasksperchild=1) as pool:
        given = [(rank, ranks, f"file://{folder}/rendezvous", main, arguments) for rank in range(ranks)]
        return pool.starmap(_joined, given, chunksize=1)


def _joined(
    rank: int, ranks: int, rendezvous: str, main: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    found = main(rank, *arguments)
    dist.barrier()
    dist.destroy_process_group()
    return found
