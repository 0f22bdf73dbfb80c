"""Joining and leaving the other workers, over torch.distributed (Gloo) or Horovod."""

import gc

import torch
import torch.distributed as dist


def join(backend: str, *, pace: bool) -> tuple[int, int]:
    """Join the other workers; return this one's rank and how many there are."""
    if backend == "gloo":
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size()
    import horovod.torch as hvd

    if pace:
        from pace.runtime.horovod import init

        init()  # hvd.init(), set up to send what PACE has cut as it is
    else:
        hvd.init()
    return hvd.rank(), hvd.size()


def slowest(backend: str, seconds: float) -> float:
    """Wait until every worker is here; return the largest of their times. Nothing else may be under way."""
    largest = torch.tensor([seconds], dtype=torch.float64)
    if backend == "gloo":
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.item()
    import horovod.torch as hvd

    return float(hvd.allreduce(largest, name="slowest", op=hvd.Max))


def leave(backend: str) -> None:
    """Part from the other workers."""
    if backend == "gloo":
        dist.barrier()  # whoever leaves first would take the connection from those still at work
        dist.destroy_process_group()
        gc.collect()  # a group that lives on until the interpreter ends aborts it: its threads run still
    else:
        import horovod.torch as hvd

        hvd.shutdown()
