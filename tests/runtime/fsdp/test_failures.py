"""A rank that is lost, whatever its replica and shard, ends in an error on every other rank, never a hang."""

import os
import signal

import pytest

from tests.runtime.fsdp.loops import Job
from tests.runtime.launch import try_ranks

SIZE = 4


def _lose(rank: int, _size: int, victim: int, when: str) -> str | None:
    job = Job(rank, attach=True)
    model, optimizer = job.begin()
    try:
        for step in range(6):
            optimizer.zero_grad()
            if (rank, step, when) == (victim, 3, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
            job.backward(model, step)
            if (rank, step, when) == (victim, 3, "after"):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
    except Exception as error:
        job.handle.__exit__(type(error), error, None)
        return f"{type(error).__name__}: {error}"
    job.handle.close()
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "when"), [(0, "before"), (3, "after")])
def test_no_rank_waits_for_one_that_is_gone(victim: int, when: str) -> None:
    """Those of its replica learn of it from torch, the others from PACE or from ranks that gave up."""
    outcomes = try_ranks(_lose, SIZE, victim, when, expect_lost=[victim], timeout_s=200)
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.result is not None, outcome.output
    kinds = {outcome.result.split(":")[0] for outcome in outcomes if outcome.result}
    assert kinds <= {"CommunicationFailed", "RuntimeError", "DistBackendError", "DistNetworkError"}, kinds
    assert "CommunicationFailed" in kinds
