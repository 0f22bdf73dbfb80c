"""The proof agrees with a judge that tries every execution."""

from random import Random

import pytest

from pace.errors import InvalidJobProgram
from pace.order.check_order import check_order
from tests.pace.order.model_checker import outcome
from tests.pace.order.random_jobs import random_job


def disagreement(seed: int) -> str | None:
    """Return what the proof and the judge say differently of a random job; None if they agree."""
    random = Random(seed)
    job = random_job(random)
    streams = "launch-order" if random.random() < 0.3 else "side-by-side"
    slots = random.choice((None, None, 1, 2))
    try:
        report = check_order(job, streams=streams, launch_slots=slots)  # type: ignore[arg-type]  # one of both
    except InvalidJobProgram:
        return None  # what it waits for is up to chance
    judged = outcome(job, in_launch_order=streams == "launch-order", slots=slots)
    if judged == ("ends" if report.cannot_hang else "hangs"):
        return None
    return f"seed {seed}: {judged}, but {report.cannot_hang=} {report.findings}"


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_small_jobs(start: int) -> None:
    """A job hangs in some execution exactly if the proof fails; ``tests.load.order_proofs`` tries more."""
    assert [found for seed in range(start, start + 100) if (found := disagreement(seed))] == []


def test_the_judge_sees_both() -> None:
    """Random jobs are neither all safe nor all at fault, or agreement would say nothing."""
    judged = [outcome(random_job(Random(seed))) for seed in range(40)]
    assert 5 < judged.count("hangs") < 35
    assert judged.count("hangs") + judged.count("ends") == 40
