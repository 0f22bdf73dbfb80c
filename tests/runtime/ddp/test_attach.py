"""Under DistributedDataParallel: every way to use it trains as without PACE, to the bit, or is refused."""

import pytest

from tests.runtime.attached_loops import check_refused, compare
from tests.runtime.ddp.loops import COMPILED, LOOPS, ROUNDED, TRIED, Job
from tests.runtime.ddp.refusals import REFUSALS
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
