"""Laws 1 and 4 in random training loops under DistributedDataParallel, against plain training."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.loops.loop_program import wrapped
from tests.runtime.loops.loop_reference import check_against_plain_training
from tests.runtime.loops.loop_trainer import WRAPPINGS, run_program
from tests.runtime.loops.random_loops import programs, settings_of_loops
from tests.runtime.rank_pool import RankPool


@pytest.mark.timeout(0)
@settings_of_loops(12)
@given(data=st.data())
def test_random_loops_under_ddp_train_as_plain_training_does(pool: RankPool, data: st.DataObject) -> None:
    """Whatever a loop does, it reads the same gradients and gets the same weights, on every rank."""
    program = wrapped(data.draw(programs(pool.size)), data.draw(st.sampled_from(sorted(WRAPPINGS))))
    check_against_plain_training(pool.run(run_program, program), program)
