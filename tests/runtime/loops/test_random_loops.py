"""Law 1 and law 4 in random training loops, against plain training written down independently."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.loops.loop_program import Program
from tests.runtime.loops.loop_reference import check_against_plain_training
from tests.runtime.loops.loop_trainer import run_program
from tests.runtime.loops.random_loops import programs, settings_of_loops
from tests.runtime.rank_pool import Failed, RankPool


@pytest.fixture(scope="module", params=[2, 3], ids=["two ranks", "three ranks"])
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Ranks that stay for all loops."""
    with RankPool(request.param) as ranks:
        yield ranks


# Only one rank may contribute what is summed already, and no rank could tell what the loop keeps. A rank that
# has no backward pass cannot know of others' further ones, nor what they have put in the place of sums. What
# only one rank reads cannot be summed once others have cleared their own. At the end of a loop, a rank may
# wait for others that have ended theirs: with more backward passes, or reading what others have not computed.
REFUSED = (
    "while gradients accumulate, and op is 'sum'",
    "is now replaced, and with op='sum'",
    "ran another backward pass after its gradients were complete",
    "was replaced without having been read, and it is summed already",
    "has left the training after its step",
    "has left the training before its first step",
    "which reads it: before gradients are cleared, read them on every rank or call step()",
)

# Kept gradients are complete when each backward pass ends, so ranks must run equally many. And where one rank
# alone reads, the others do not know that their pass was the last before it.
REFUSED_IN_OTHER_STEPS = "ran another backward pass after it read gradients or while the loop keeps them"


def check(pool: RankPool, program: Program) -> None:
    """Compare all that a program saw under the runtime with plain training, unless a rank refused it."""
    found = pool.run(run_program, program)
    # In the last step of a loop, the others may be done when a rank finds what it has to refuse.
    names = [operation[0] for operation in program.operations]
    keeps = "keep" in names or "flat" in names
    reads_alone = any(a == "log" and b not in ("loss", "step") for a, b in itertools.pairwise(names))
    refused = (*REFUSED, REFUSED_IN_OTHER_STEPS) if keeps or reads_alone else REFUSED
    if any(why in each.reason for each in found if isinstance(each, Failed) for why in refused):
        return
    check_against_plain_training(found, program)


@pytest.mark.timeout(0)
@settings_of_loops(12)
@given(data=st.data())
def test_random_loops_train_as_plain_training_does(pool: RankPool, data: st.DataObject) -> None:
    """Whatever a loop does, it reads the same gradients and gets the same weights, on every rank."""
    check(pool, data.draw(programs(pool.size)))
