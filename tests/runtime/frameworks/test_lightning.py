"""``Trainer(strategy="pace")`` trains as ``strategy="ddp"`` does, to the bit."""

from pathlib import Path

import pytest

from tests.runtime.frameworks.lightning_jobs import (
    VARIANTS,
    logged,
    misused,
    resumed,
    several,
    thawed,
    variants,
)
from tests.runtime.frameworks.programs import check_example, without
from tests.runtime.rank_pool import Failed, RankPool

pytestmark = without("lightning")


@pytest.mark.slow
def test_variants_train_as_under_ddp(pool: RankPool) -> None:
    """Weights, running statistics, gradients after clipping, evaluations."""
    for found in pool.run(variants):
        assert not isinstance(found, Failed), found.reason
        assert found.keys() == VARIANTS.keys()
        for name, (ddp, pace) in found.items():
            assert pace == ddp, name


@pytest.mark.slow
def test_checkpoints_go_from_one_to_the_other(pool: RankPool, tmp_path: Path) -> None:
    """Training goes on from a checkpoint as it would have without, with and without PACE."""
    for found in pool.run(resumed, str(tmp_path)):
        assert not isinstance(found, Failed), found.reason
        assert all(run == found[0] for run in found[1:])


@pytest.mark.slow
def test_parameters_thawed_by_a_callback_are_summed(pool: RankPool) -> None:
    """With the bits of one process on averaged gradients; under its own DDP ranks drift apart."""
    for found in pool.run(thawed):
        assert not isinstance(found, Failed), found.reason
        for mode, (with_pace, plain) in found.items():
            assert with_pace == plain, mode


@pytest.mark.slow
def test_the_example_trains_as_under_ddp(pool: RankPool) -> None:
    """To the bit."""
    check_example(pool, "lightning_training", ["--strategy", "ddp"], ["--strategy", "pace"])


@pytest.mark.slow
def test_two_optimizers_are_refused(pool: RankPool) -> None:
    """With the reason, and nothing is left behind."""
    for found in pool.results(several):
        assert "2 optimizers" in found


@pytest.mark.slow
def test_misuse_is_told(pool: RankPool) -> None:
    """Lightning copies what ``configure_optimizers`` returns; the copies end nothing."""
    for wrapped, option in pool.results(misused):
        assert "in Lightning strategy='pace'" in wrapped
        assert "PaceStrategy has no option max_grad_norm: it has plan, " in option


@pytest.mark.slow
@without("tensorboard")
def test_reports_reach_the_trainers_logger(pool: RankPool, tmp_path: Path) -> None:
    """What TensorBoard reads is the last report."""
    found = pool.results(logged, str(tmp_path))
    assert found[0]["pace/rounds"] == 6
    assert found[0]["pace/sent_bytes"] > 0
    assert found[0]["pace/iteration_s"] > 0
