"""Rows of embedding tables that steps touch: in steps documents, and in what is predicted of them."""

import json

import pytest

from pace.documents.steps import parse_steps
from pace.errors import InvalidSteps
from pace_servers.documents.prediction import PredictionOptions
from pace_servers.throughput import predict, simulate_steps, steps_from_profile
from tests.pace.documents.test_touched_rows import profile


def test_a_prediction_is_of_the_rows_of_its_workers() -> None:
    """Steps move one worker's rows up, and those of all workers down; more than are known are noted."""
    steps = steps_from_profile(profile(), bytes_per_s=1e8)
    assert parse_steps(steps.to_json()) == steps
    (up,) = steps.bytes_of("uplink")
    assert up == 1_000_000 + 1000 * 104 + 44
    assert steps.bytes_of("downlink") == (up,)
    for workers, rows in ((1, 1000), (2, 1900), (3, 2700)):
        expected = 1_000_000 + rows * 104 + 44
        assert steps.at_workers(workers).bytes_of("downlink") == (expected,)
        carried = simulate_steps(steps, workers, steps=20, skip=0).total_bytes
        assert carried[:, 0].max() == pytest.approx(20 * expected, rel=0.06)
        assert carried[:, 1].max() == pytest.approx(20 * up, rel=0.06)
    known = predict(steps, PredictionOptions(workers=(3,), steps=20, skip=5, seeds=1, advice=False))
    assert not [note for note in known.notes if "touch" in note]
    beyond = predict(steps, PredictionOptions(workers=(4,), steps=20, skip=5, seeds=1, advice=False))
    assert [note for note in beyond.notes if "more than 3 workers touch" in note]


def test_touched_bytes_of_compute_are_refused() -> None:
    """Only transfers have a size."""
    document = json.loads(steps_from_profile(profile(), bytes_per_s=1e8).to_json())
    compute = next(op for op in document["ops"] if op["resource"] == "worker")
    compute["touched"] = {"by_workers": [1.0], "whole_bytes": 2}
    with pytest.raises(InvalidSteps, match="must not have size_bytes"):
        parse_steps(json.dumps(document))
