"""Laws 1 and 4 in loops as strangers write them, beside the same loops with gradients averaged by hand."""

import pytest

from tests.runtime.loops.beside_plain import assert_trains_as_plainly
from tests.runtime.loops.loop_run import Loop
from tests.runtime.loops.published_gans import ADVERSARIAL_LOOPS
from tests.runtime.loops.published_gradients import GRADIENT_LOOPS
from tests.runtime.loops.published_models import MODEL_LOOPS
from tests.runtime.loops.published_steps import STEP_LOOPS
from tests.runtime.rank_pool import RankPool

# The trial of mode auto takes 14 steps.
MODES = {"overlap": 9, "auto": 18}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "loop", [*GRADIENT_LOOPS, *MODEL_LOOPS, *ADVERSARIAL_LOOPS, *STEP_LOOPS], ids=lambda loop: loop.__name__
)
def test_loop_of_a_stranger_trains_as_without_the_runtime(pool: RankPool, loop: Loop, mode: str) -> None:
    """Weights, and whatever the loop looked at, are those of the plain loop; weights are the same bits."""
    assert_trains_as_plainly(pool, loop, steps=MODES[mode], mode=mode)
