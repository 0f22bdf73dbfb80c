"""Laws 1 and 4 in random training loops under DistributedDataParallel, against plain training."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.loops.loop_program import Program, wrapped
from tests.runtime.loops.loop_reference import unexplained
from tests.runtime.loops.loop_trainer import WRAPPINGS, run_program
from tests.runtime.loops.random_loops import num_loops, programs
from tests.runtime.rank_pool import Failed, RankPool


def check(pool: RankPool, program: Program) -> None:
    """Run a program under the runtime and compare all that it saw with plain training."""
    found = pool.run(run_program, program)
    reasons = [f"rank {rank}: {each.reason}" for rank, each in enumerate(found) if isinstance(each, Failed)]
    assert not reasons, "\n".join([*reasons, str(program)])
    said = unexplained(found, program)
    assert not said, "\n".join([*said[:3], f"({len(said)} differences)", str(program)])


@pytest.mark.timeout(0)
@settings(
    max_examples=num_loops(12),
    derandomize="PACE_RANDOM_LOOPS" not in os.environ,  # the suite tries the same ones; a search, new ones
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_random_loops_under_ddp_train_as_plain_training_does(pool: RankPool, data: st.DataObject) -> None:
    """Whatever a loop does, it reads the same gradients and gets the same weights, on every rank."""
    program = data.draw(programs(pool.size))
    check(pool, wrapped(program, data.draw(st.sampled_from(sorted(WRAPPINGS)))))
