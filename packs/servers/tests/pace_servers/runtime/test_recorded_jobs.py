"""Steps of a job of others, recorded by two calls, predict its throughput."""

import pytest

from pace.documents.steps import parse_steps
from pace_servers import PredictionOptions, predict
from tests.runtime.capture.test_step_recorder import recorded_job


@pytest.mark.slow
def test_no_faster_than_the_fastest_step() -> None:
    """Whatever the number of workers."""
    for document, _ in recorded_job():
        steps = parse_steps(document)
        answer = predict(steps, PredictionOptions(workers=(1, 2)))
        fastest = min(step.duration_s[0] for step in steps.steps) + min(steps.metadata["exchange_s"])
        assert 0 < answer.points[0].throughput <= 1 / fastest * (1 + 1e-9)
