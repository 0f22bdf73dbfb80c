"""The CUDA paths: two ranks on one GPU over Gloo, one over NCCL. Skipped, with the reason, without a GPU."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def _train_on_gpu(rank: int, _size: int, order: str) -> Any:
    model = build("conv").cuda()
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, order=order)
    for batch in batches("conv", 20, rank):
        optimizer.zero_grad()
        backward(model(*(tensor.cuda() for tensor in batch)))
        optimizer.step()
    trained = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
    optimizer.close()
    return trained


@pytest.mark.parametrize("order", ["static", "adaptive"])
def test_weights_on_a_gpu_equal_plain_training(order: str) -> None:
    """Gradients that the device has not finished are not sent, and updates wait for the device."""
    first, second = run_ranks(_train_on_gpu, 2, order)
    assert equal_bits(first, second)
    assert difference(first, train_plainly(Case(), 2)) <= 1e-4


def _train_over_nccl(rank: int, size: int, order: str) -> Any:
    dist.init_process_group("nccl", store=HashStore(), rank=rank, world_size=size)
    trained = _train_on_gpu(rank, size, order)
    dist.destroy_process_group()
    return trained


def test_one_rank_over_nccl_equals_plain_training() -> None:
    """NCCL takes one rank a GPU: what is sent to nobody still goes through its stream."""
    (trained,) = run_ranks(_train_over_nccl, 1, "static", backend="none")
    assert difference(trained, train_plainly(Case(), 1)) <= 1e-4
