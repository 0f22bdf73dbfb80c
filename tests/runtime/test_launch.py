"""The launcher itself: results come back in rank order, failures are told apart."""

import os
import signal
from typing import Any

import pytest

from tests.runtime.launch import RanksFailed, run_ranks, try_ranks


def _sum_of_ranks(rank: int, size: int, offset: int) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank + offset)])
    dist.all_reduce(tensor)
    assert dist.get_world_size() == size
    return float(tensor)


def _sum_over_horovod(rank: int, size: int) -> float:
    import horovod.torch as hvd
    import torch

    hvd.init()
    assert hvd.size() == size
    return float(hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum))


def _one_raises(rank: int, _size: int) -> int:
    if rank == 1:
        raise ValueError("rank one does not like this")
    return rank


def _one_kills_itself(rank: int, _size: int) -> int:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


def test_gloo_ranks_reach_each_other() -> None:
    """Two processes over Gloo add their ranks."""
    assert run_ranks(_sum_of_ranks, 2, 10) == [21.0, 21.0]


@pytest.mark.horovod
def test_horovod_ranks_reach_each_other() -> None:
    """Two processes over Horovod add their ranks."""
    pytest.importorskip("horovod.torch")
    assert run_ranks(_sum_over_horovod, 2, backend="horovod") == [1.0, 1.0]


def test_an_exception_on_a_rank_is_reported() -> None:
    """The message names the rank and the exception."""
    with pytest.raises(RanksFailed, match=r"rank 1 of 2: ValueError.*does not like this"):
        run_ranks(_one_raises, 2, backend="none")


def test_a_killed_rank_is_told_from_one_that_returned() -> None:
    """A signal shows as a negative exit code, and the other rank's result is kept."""
    outcomes: list[Any] = try_ranks(_one_kills_itself, 2, backend="none", expect_lost=[0])
    assert outcomes[0].exit_code in (-signal.SIGKILL, None)
    assert not outcomes[0].returned
    assert outcomes[1].returned
    assert outcomes[1].result == 1
