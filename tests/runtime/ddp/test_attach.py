"""Under DistributedDataParallel: every way to use it trains as without PACE, to the bit, or is refused."""

from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.attached_loops import check_refused, compare
from tests.runtime.ddp.loops import COMPILED, LOOPS, ROUNDED, TRIED, Job, Net
from tests.runtime.ddp.refusals import REFUSALS, attach
from tests.runtime.loop_differences import check
from tests.runtime.rank_pool import RankPool


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
