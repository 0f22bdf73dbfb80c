"""Sharded updates on a simulated GPU, which runs behind the host, over real Gloo."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.studies.gpu.simulation import simulate_gpu
from tests.runtime.rank_pool import RankPool
from tests.runtime.shards import test_sharded_weights as on_cpu
from tests.runtime.shards.jobs import train_by_shards, train_with_ddp_and_clip
from tests.runtime.training import difference, equal_bits


@pytest.fixture(scope="module", params=[2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Ranks of these tests alone: their wrappers take every model for one on a GPU."""
    with RankPool(request.param, timeout_s=100) as ranks:
        yield ranks


def _beside(rank: int) -> list[Any]:
    found = []
    for name, max_norm in (("sgd", None), ("adamw", 0.05), ("adam", 1.5), ("nadam", 0.05)):
        plain = train_by_shards(rank, "gloo", "conv", name, steps=8, max_norm=max_norm)
        found.append((name, plain, train_with_ddp_and_clip(rank, "conv", name, steps=8, max_norm=max_norm)))
    return found


def _behind(rank: int) -> list[Any]:
    simulate_gpu(rank)
    return _beside(rank)


def test_training_on_a_device_equals_ddp_with_torchs_clipping(pool: RankPool) -> None:
    """With and without clipping: the weights and norms of DDP, and the same bits on all ranks."""
    ranks = pool.results(_behind)
    for number, (name, (ours, norms), (theirs, expected)) in enumerate(ranks[0]):
        assert difference(ours, theirs) <= 1e-8, name
        np.testing.assert_allclose(norms, expected, rtol=1e-6, err_msg=name)
        assert all(equal_bits(ours, other[number][1][0]) for other in ranks), name


def _steps(rank: int, what: str) -> Any:
    simulate_gpu(rank)
    return getattr(on_cpu, what)(rank, *(["gloo"] if what == "_state" else []))


def test_state_is_a_share_that_one_rank_can_save(pool: RankPool) -> None:
    """Rank 0 saves alone while the others go on."""
    for _, mine, elements, whole, inner, after_close in pool.results(_steps, "_state"):
        assert 3 * 8 * elements / pool.size * 0.85 < mine < 3 * 8 * elements / pool.size * 1.15
        assert whole == 3 * 8 * elements
        assert inner == 0
        assert after_close > 0


def test_a_gradient_that_is_not_finite_skips_the_step_on_all(pool: RankPool) -> None:
    """The device takes the update back, and the host the step counts, an iteration later."""
    for found in pool.results(_steps, "_overflow"):
        for seen, steps in found[:2]:
            assert equal_bits(seen[1], seen[2])
            assert not equal_bits(seen[2], seen[3])
            assert all(np.isfinite(value).all() for value in seen[3].values())
            assert steps == {3}


def test_what_would_go_wrong_is_refused_on_every_rank(pool: RankPool) -> None:
    """Gradients read when no rank has them, ranks that clip or clear differently."""
    for read, clipped, cleared in pool.results(_steps, "_misuse"):
        assert "was read after step()" in read
        assert "InvalidUse: ranks have clipped or unscaled their gradients differently" in clipped
        assert "was cleared on some ranks but not on others" in cleared


def test_every_way_of_clipping_gives_the_same_weights(pool: RankPool) -> None:
    """``max_grad_norm`` and torch's own function, which gathers gradients."""
    for found, expected in pool.results(_steps, "_clip_at_step"):
        assert all(difference(each, expected) <= 1e-8 for each in found)
