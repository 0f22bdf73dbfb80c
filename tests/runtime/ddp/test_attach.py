"""Under DistributedDataParallel: every way to use it trains as without PACE, to the bit, or is refused."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from pace.runtime.options import Mode
from tests.runtime.ddp.loops import COMPILED, LOOPS, ROUNDED, TRIED, Job
from tests.runtime.ddp.refusals import REFUSALS, refused
from tests.runtime.loop_differences import check, differences
from tests.runtime.rank_pool import Failed, RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks that stay for all loops."""
    with RankPool(2) as ranks:
        yield ranks


def compare(rank: int, names: Sequence[str]) -> dict[str, list[str]]:
    """Run loops on this rank with and without PACE; return the differences of each."""
    loops = {loop.__name__: loop for loop in (*LOOPS, *COMPILED)}
    found = {}
    for name in names:
        without = finished(Job(rank, attach=False), loops[name])
        near = 1e-6 if loops[name] in ROUNDED else 0.0
        modes: tuple[Mode, ...] = ("overlap", "auto") if loops[name] in TRIED else ("overlap",)
        for mode in modes:
            with_pace = finished(Job(rank, attach=True, mode=mode), loops[name])
            found[f"{name} {mode}"] = list(differences(with_pace, without, near))
    return found


def finished(job: Job, loop: Callable[[Job], None]) -> list[Any]:
    """Run a loop; return what it saw."""
    torch.manual_seed(11)
    loop(job)
    return job.end()


def test_loops_train_as_without_pace(pool: RankPool) -> None:
    """Weights, gradients, buffers, checkpoints and learning rates have the same bits."""
    check(pool.run(compare, [loop.__name__ for loop in LOOPS]))


@pytest.mark.slow
def test_compiled_models_train_as_without_pace(pool: RankPool) -> None:
    """Compiled inside of DistributedDataParallel, and around it."""
    check(pool.run(compare, [loop.__name__ for loop in COMPILED]))


def test_what_would_train_otherwise_is_refused(pool: RankPool) -> None:
    """Each refusal says what, before anything is trained otherwise than by DistributedDataParallel."""
    for each in pool.run(refused):
        assert not isinstance(each, Failed), each.reason
        assert each.keys() == {refusal.__name__ for refusal, _ in REFUSALS}
        for refusal, words in REFUSALS:
            kind, message = each[refusal.__name__]
            assert kind in ("InvalidUse", "InvalidOptions"), (refusal.__name__, kind, message)
            assert words in message, (refusal.__name__, message)
