"""Steps of a worker whose servers are not PACE's: its loop says when weights came and compute ended."""

import time
from typing import Any

import numpy as np
import pytest

from pace.documents.steps import parse_steps
from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.capture.step_recorder import ExchangedSegment, StepRecorder
from tests.runtime.launch import run_ranks

STEPS = 31
WIDTH = 1600  # 10 MB


def _trained(rank: int, _size: int) -> Any:
    """Be a server, or one of two workers of an asynchronous job as people write it with torch."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    if rank == 0:
        gradient = torch.empty_like(model.weight.data)
        for _ in range(2 * STEPS):
            worker = dist.recv(gradient)
            assert worker is not None
            model.weight.data.sub_(gradient, alpha=0.01)
            dist.send(model.weight.data, worker)
        return None
    recorder = StepRecorder(model.weight.nbytes, count=STEPS - 1)
    began = time.perf_counter()
    for _ in range(STEPS):
        recorder.received()
        model.zero_grad()
        torch.autograd.backward(model(torch.ones(1, WIDTH)).square().mean())
        recorder.computed()
        assert model.weight.grad is not None
        dist.send(model.weight.grad, 0)
        dist.recv(model.weight.data, 0)
    recorder.received()
    assert recorder.complete
    return recorder.document("linear", batch=1).to_json(), time.perf_counter() - began


def recorded_job() -> list[tuple[bytes, float]]:
    """Return what two workers of an asynchronous job recorded, and how long they trained."""
    return run_ranks(_trained, 3)[1:]


def test_a_job_of_others_is_recorded_by_two_calls() -> None:
    """All steps but the one beyond the count are there, and fit into the wall time."""
    for document, wall_s in recorded_job():
        steps = parse_steps(document)
        exchange_s = steps.metadata["exchange_s"]
        assert len(steps.steps) == len(exchange_s) == STEPS - 1
        assert steps.bytes_of("uplink") == steps.bytes_of("downlink") == (4 * WIDTH**2,)
        assert min(*exchange_s, *(step.duration_s[0] for step in steps.steps)) > 0
        assert sum(exchange_s) + sum(step.duration_s[0] for step in steps.steps) < wall_s
        # One message to the server and one back, at the link's rate, are the fastest exchange.
        assert 2 * 4 * WIDTH**2 / steps.link.bytes_per_s == pytest.approx(min(exchange_s))


def test_calls_out_of_turn_are_refused() -> None:
    """Nothing is recorded of a step whose beginning or end was not said."""
    recorder = StepRecorder(100)
    with pytest.raises(InvalidUse, match=r"computed\(\) without received\(\)"):
        recorder.computed()
    recorder.received()
    with pytest.raises(InvalidUse, match=r"received\(\) twice"):
        recorder.received()
    recorder.computed()
    with pytest.raises(InvalidUse, match=r"computed\(\) without received\(\)"):
        recorder.computed()
    with pytest.raises(InvalidUse, match="no step was recorded yet"):
        recorder.document()


def test_what_cannot_be_a_recording_is_refused() -> None:
    """No steps, no bytes."""
    with pytest.raises(InvalidOptions, match="0 steps to record"):
        StepRecorder(100, count=0)
    with pytest.raises(InvalidOptions, match="no bytes"):
        StepRecorder([])
    with pytest.raises(InvalidOptions, match="no bytes"):
        StepRecorder(0)
    at_once = StepRecorder(np.int64(100))
    at_once.record(compute_s=1.0, exchange_s=0.0, apply_s=0.0)
    with pytest.raises(InvalidUse, match="give bytes_per_s"):
        at_once.document()
    assert at_once.document(bytes_per_s=1e6).bytes_of("uplink") == (100,)


def test_servers_are_those_that_segments_name() -> None:
    """Two servers; the last segment's answer comes when all else was sent."""
    recorder = StepRecorder(
        [
            ExchangedSegment(name="a", size_bytes=300),
            ExchangedSegment(name="b", server=1, size_bytes=100),
        ]
    )
    recorder.record(compute_s=1.0, exchange_s=2.0, apply_s=0.5)
    document = recorder.document()
    assert document.servers == 2
    assert document.link.bytes_per_s == 250
    assert recorder.document(bytes_per_s=1e6).link.bytes_per_s == 1e6
