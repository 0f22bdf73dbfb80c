"""The example programs of the frameworks, under their own DDP and under PACE: the same weights."""

import pytest

from tests.runtime.frameworks.programs import ROOT, run_example, without
from tests.runtime.rank_pool import Failed, RankPool
from tests.runtime.training import equal_bits

PROGRAMS = {
    "lightning_training": (["--strategy", "ddp"], ["--strategy", "pace"]),
    "accelerate_training": ([], ["--pace"]),
    "transformers_training": ([], ["--pace"]),
}


@pytest.mark.slow
@without("lightning", "accelerate", "transformers")
@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_train_as_under_the_frameworks_own_ddp(pool: RankPool, name: str) -> None:
    """To the bit: of two ranks' gradients no sum depends on the order."""
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 70
    for found in pool.run(run_example, name, list(PROGRAMS[name])):
        assert not isinstance(found, Failed), found.reason
        own, with_pace = found
        assert equal_bits(with_pace, own)
