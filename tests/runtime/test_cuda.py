"""The CUDA paths: two ranks on one GPU over Gloo, one over NCCL. Skipped, with the reason, without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
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


def _train_on_gpu(rank: int, _size: int, order: str, **options: Any) -> Any:
    torch.backends.cudnn.allow_tf32 = False  # weights are held against those of a CPU
    model = build("conv").cuda()
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, order=order, **options)
    for batch in batches("conv", 20, rank):
        optimizer.zero_grad()
        backward(model(*(tensor.cuda() for tensor in batch)))
        optimizer.step()
    trained = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
    optimizer.close()
    return trained


@pytest.mark.parametrize("order", ["static", "adaptive", "priority"])
def test_weights_on_a_gpu_equal_plain_training(order: str) -> None:
    """Gradients that the device has not finished are not sent, and updates wait for the device."""
    first, second = run_ranks(_train_on_gpu, 2, order)
    assert equal_bits(first, second)
    assert difference(first, train_plainly(Case(), 2)) <= 1e-4


@contextmanager
def _nccl(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("nccl", store=HashStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _train_over_nccl(rank: int, size: int, options: dict[str, Any]) -> Any:
    with _nccl(rank, size):
        return _train_on_gpu(rank, size, **options)


@pytest.mark.parametrize("order", ["static", "adaptive", "priority"])
@pytest.mark.parametrize("mode", ["overlap", "barrier", "auto"])
def test_one_rank_over_nccl_equals_plain_training(order: str, mode: str) -> None:
    """NCCL takes one rank a GPU: what is sent to nobody still goes through its stream."""
    (trained,) = run_ranks(_train_over_nccl, 1, {"order": order, "mode": mode}, backend="none")
    assert difference(trained, train_plainly(Case(), 1)) <= 1e-4


def _train_with_narrow_gradients(_rank: int, _size: int, dtype: torch.dtype) -> Any:
    torch.backends.cudnn.allow_tf32 = False
    model = build("conv").cuda()
    optimizer = OPTIMIZERS["sgd"](trainable(model))
    for batch in batches("conv", 20, 0):
        optimizer.zero_grad()
        backward(model(*(tensor.cuda() for tensor in batch)))
        for parameter in trainable(model):
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to(dtype).to(parameter.dtype)
        optimizer.step()
    return {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("compression", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision_over_nccl(compression: str, dtype: torch.dtype) -> None:
    """Narrowing and widening are queued around the sum: weights are those of gradients that were rounded."""
    options = {"order": "static", "compression": compression}
    (trained,) = run_ranks(_train_over_nccl, 1, options, backend="none")
    (rounded,) = run_ranks(_train_with_narrow_gradients, 1, dtype, backend="none")
    assert difference(trained, rounded) <= 1e-4


def _train_without_waiting(rank: int, size: int) -> Any:
    with _nccl(rank, size):
        model = build("conv").cuda()
        optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, mode="overlap")
        on_gpu = [[tensor.cuda() for tensor in batch] for batch in batches("conv", 20, rank)]
        for number, batch in enumerate(on_gpu):
            if number == 3:
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
        report = optimizer.report()
        optimizer.close()
        return report.waited_s, [group.waited_s for group in report.groups]


def test_the_loop_has_no_operation_that_waits_for_the_gpu() -> None:
    """Torch raises at the first one; and how long the GPU stood still is known all the same."""
    ((total, of_groups),) = run_ranks(_train_without_waiting, 1, backend="none")
    assert min(total, *of_groups) >= 0


def _train_on_another_stream(rank: int, size: int) -> Any:
    stream: Any = torch.cuda.Stream  # untyped in torch
    with _nccl(rank, size), torch.cuda.stream(stream()):
        return _train_on_gpu(rank, size, "static")


def test_a_loop_on_a_stream_of_its_own() -> None:
    """Sums are waited for on the stream that the loop uses, whichever that is."""
    (trained,) = run_ranks(_train_on_another_stream, 1, backend="none")
    assert difference(trained, train_plainly(Case(), 1)) <= 1e-4
