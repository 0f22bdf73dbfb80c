"""Accelerate and the Transformers Trainer train under PACE as under their own DDP, to the bit."""

from pathlib import Path

import pytest

from tests.runtime.frameworks.hugging_face_jobs import both, failed, refusals, resumed
from tests.runtime.frameworks.programs import check_example, without
from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.rank_pool import Failed, RankPool

pytestmark = without("accelerate", "transformers")


@pytest.mark.slow
def test_accelerate_saves_and_loads_under_pace(pool: RankPool, tmp_path: Path) -> None:
    """In bfloat16, with accumulation, clipping, a prepared schedule, and a state saved and loaded."""
    for found in pool.run(both, str(tmp_path)):
        assert not isinstance(found, Failed), found.reason
        without, with_pace = found
        assert with_pace == without


@pytest.mark.slow
def test_what_prepare_did_not_return_is_refused(pool: RankPool) -> None:
    """With what to give instead, on all ranks, which train on."""
    for said in pool.results(refusals):
        parts = (
            "call attach() after prepare()",
            "the DistributedDataParallel that accelerator.prepare() returned is needed",
            "an Accelerator is needed",
            "with Accelerate, call attach() of pace.runtime.accelerate",
            "with Accelerate, call attach() of pace.runtime.accelerate",
            "DistributedOptimizer and the model without its wrapper",
        )
        for part, each in zip(parts, said, strict=True):
            assert part in each


def _alone(_rank: int, _size: int) -> list[str]:
    import torch
    from accelerate import Accelerator

    import pace.runtime.accelerate

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with captured_events() as events:
        assert pace.runtime.accelerate.attach(accelerator, *prepared) is None
    return [each["event"] for each in events]


def test_a_job_of_one_process_is_told_that_pace_does_nothing() -> None:
    """Else a launcher that starts one process instead of two would look like training with PACE."""
    assert run_ranks(_alone, 1) == [["pace.not_attached"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accelerate_training", "transformers_training"])
def test_the_examples_train_as_under_ddp(pool: RankPool, name: str) -> None:
    """To the bit."""
    check_example(pool, name, [], ["--pace"])


@pytest.mark.slow
def test_the_trainer_resumes_under_pace(pool: RankPool, tmp_path: Path) -> None:
    """At once or from a checkpoint, with evaluations between, with the Trainer's clipping."""
    for found in pool.run(resumed, str(tmp_path)):
        assert not isinstance(found, Failed), found.reason
        own, own_resumed, with_pace, resumed_with_pace = found
        assert with_pace == own
        assert resumed_with_pace == own_resumed


@pytest.mark.slow
def test_a_training_that_failed_leaves_the_model_free(pool: RankPool, tmp_path: Path) -> None:
    """Another Trainer then trains it, as without PACE."""
    for found in pool.run(failed, str(tmp_path)):
        assert not isinstance(found, Failed), found.reason
        own, with_pace = found
        assert with_pace == own
