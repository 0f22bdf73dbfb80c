"""Under DistributedDataParallel: every way to use it trains as without PACE, to the bit, or is refused."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pace.runtime.torch import DistributedOptimizer
from tests.runtime.attached_loops import check_refused, compare
from tests.runtime.ddp.loops import COMPILED, LOOPS, ROUNDED, TRIED, Job, Net
from tests.runtime.ddp.refusals import REFUSALS, attach
from tests.runtime.logs import captured_events
from tests.runtime.loop_differences import check
from tests.runtime.rank_pool import RankPool
from tests.runtime.training import backward


def test_loops_train_as_without_pace(pool: RankPool) -> None:
    """Weights, gradients, buffers, checkpoints and learning rates have the same bits."""
    check(pool.run(compare, Job, LOOPS, ROUNDED, TRIED))


@pytest.mark.slow
def test_compiled_models_train_as_without_pace(pool: RankPool) -> None:
    """Compiled inside of DistributedDataParallel, and around it."""
    check(pool.run(compare, Job, COMPILED, ROUNDED, TRIED))


def test_what_would_train_otherwise_is_refused(pool: RankPool) -> None:
    """Each refusal says what, before anything is trained otherwise than by DistributedDataParallel."""
    check_refused(pool, REFUSALS)


def _two_optimizers(rank: int, *, attached: bool) -> list[torch.Tensor]:
    """Muon for matrices and AdamW for the rest, each wrapped, or under plain DistributedDataParallel."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    matrices = [each for each in model.parameters() if each.ndim == 2]
    others = [each for each in model.parameters() if each.ndim != 2]
    optimizers: list[Any] = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]
    run: nn.Module = model
    if attached:
        optimizers = [DistributedOptimizer(each, model, mode="overlap") for each in optimizers]
    else:
        run = DistributedDataParallel(model)
    random = torch.Generator().manual_seed(rank)
    for _ in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(run(torch.randn(4, 8, generator=random)).pow(2).mean())
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers if attached else ():
        optimizer.close()
    return [each.detach().clone() for each in model.parameters()]


def _with_and_without(rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return _two_optimizers(rank, attached=True), _two_optimizers(rank, attached=False)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_two_optimizers_of_one_model_train_as_under_ddp(pool: RankPool) -> None:
    """As the refusal of an optimizer for some parameters says: one wrapper each, without DDP."""
    for with_pace, without in pool.results(_with_and_without):
        assert all(torch.equal(one, other) for one, other in zip(with_pace, without, strict=True))


def _read_log(_rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    model: Any = DistributedDataParallel(Net())
    before = model._get_ddp_logging_data()
    with attach(model):
        return before, model._get_ddp_logging_data()


def test_what_torch_logs_of_the_model_can_still_be_read(pool: RankPool) -> None:
    """Monitors read it; it stays as it was when PACE was attached."""
    for before, attached in pool.results(_read_log):
        assert "world_size" in before
        assert attached == before


def _attach_again(rank: int) -> list[str]:
    job = Job(rank, attach=True)
    handles = []
    with captured_events() as events:
        model, optimizer = job.begin()
        for part in range(2):
            if part:
                job.attached(model, optimizer)
            handles.append(job.handle)
            for step in range(4):
                optimizer.zero_grad()
                job.backward(model, step)
                optimizer.step()
            job.handle.close()
    return [each["event"] for each in events]


def test_a_closed_wrapper_that_is_kept_does_not_share_state_with_the_next(pool: RankPool) -> None:
    """Otherwise no update of the next one would overlap."""
    for events in pool.results(_attach_again):
        assert "pace.memory_shared" not in events
