"""Sharded jobs that plan by themselves, with a real service: they profile, ask, adopt, and choose alike."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import pace.runtime.control.plan_source
import pace.runtime.control.replanner
from pace.documents.profile import parse_profile
from pace.runtime.options import Replanning
from tests.api.process import ServiceProcess
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.shards.jobs import ServiceJob
from tests.runtime.training import (
    OPTIMIZERS,
    Weights,
    average_gradients,
    backward,
    difference,
    equal_bits,
    trainable,
    wrap,
)

SIZE = 2
PATIENCE_S = 100.0
MAX_NORM = 0.3


def _train(rank: int, url: str, sharding: str, mode: str, how: str) -> ServiceJob:
    model = build("conv", double=True)
    optimizer = wrap(
        "gloo",
        OPTIMIZERS["adam"](trainable(model)),
        model,
        service=url,
        job=f"{sharding}-{how}",
        sharding=sharding,
        mode=mode,
        max_grad_norm=MAX_NORM if how == "argument" else None,
        replanning=Replanning(profile_iterations=2, drift_iterations=50, drift_ratio=1e3, stale_ratio=1e3),
    )
    batch = batches("conv", 1, rank, double=True)[0]
    states: list[str] = []
    start = time.monotonic()
    over = 0
    for _ in itertools.count():
        assert time.monotonic() - start < PATIENCE_S, states
        optimizer.zero_grad()
        backward(model(*batch))
        if how == "call":
            optimizer.clip_grad_norm_(MAX_NORM)
        optimizer.step()
        states += [s for s in [optimizer._choice.replanner.state] if [s] != states[-1:]]
        # All ranks see a schedule adopted after the same step; a trial takes 20 more.
        over += states[-1] == "watching" or "watching" in states
        if over >= 24:
            break
    report = optimizer.report()
    job = ServiceJob(
        trained=weights(model),
        steps=optimizer._rounds.number,
        states=states,
        source=report.source,
        in_halves=bool(optimizer._plan.shards),
        predicted=report.predicted_iteration_s is not None,
        mode=report.mode,
        trial_s=dict(report.trial_s),
        state_bytes=sum(
            t.numel() * t.element_size()
            for s in dict.values(optimizer.optimizer.state)  # past its gate, which would put it together
            for t in s.values()
        ),
    )
    optimizer.close()
    return job


def _jobs(rank: int, _size: int, url: str) -> dict[str, ServiceJob]:
    pace.runtime.control.replanner.STEPS_BETWEEN = 4
    pace.runtime.control.plan_source._START_TIMEOUT_S = PATIENCE_S
    return {
        f"{sharding} {how}": _train(rank, url, sharding, mode, how)
        for sharding, mode, how in (
            ("on", "overlap", "call"),
            ("on", "overlap", "argument"),
            ("on", "overlap", "none"),
            ("auto", "auto", "argument"),
        )
    }


def _expected(steps: int, *, clips: bool) -> Weights:
    model = build("conv", double=True)
    optimizer = OPTIMIZERS["adam"](trainable(model))
    parts = [batches("conv", 1, rank, double=True)[0] for rank in range(SIZE)]
    for _ in range(steps):
        optimizer.zero_grad()
        average_gradients(model, parts)
        if clips:
            nn.utils.clip_grad_norm_(trainable(model), MAX_NORM)
        optimizer.step()
    return weights(model)


@pytest.mark.slow
def test_sharded_jobs_profile_themselves_and_adopt_schedules_in_two_halves(tmp_path: Path) -> None:
    """Updates stay sharded while compute is recorded; the profile says whether updates wait for a norm."""
    with ServiceProcess(tmp_path) as service:
        ranks: Any = run_ranks(_jobs, SIZE, service.url, timeout_s=280)
        rules = {}
        for name in ranks[0]:
            job = name.replace(" ", "-")
            (listed,) = service.http.get("/v1/schedules", params={"job": job}).json()["items"]
            document = service.http.get(f"/v1/profiles/{listed['profile_sha256']}").json()["profile"]
            rules[name] = parse_profile(json.dumps(document)).update
    assert rules == {
        "on call": "global-norm",
        "on argument": "global-norm",
        "on none": "per-gradient",
        "auto argument": "global-norm",
    }
    for name, job in ranks[0].items():
        other = ranks[1][name]
        assert job.states == other.states, name
        assert job.states[:3] == ["profiling", "submitting", "watching"], name
        assert job.mode == other.mode, name
        assert equal_bits(job.trained, other.trained), name
        assert difference(job.trained, _expected(job.steps, clips=not name.endswith("none"))) <= 1e-7, name
        if name.startswith("on"):
            assert (job.mode, job.source, job.in_halves, job.predicted) == ("sharded", "schedule", True, True)
            assert job.state_bytes == 0, "the user's optimizer has state: updates were not sharded"
        else:
            assert job.trial_s.keys() == {"plain", "barrier", "overlap", "sharded"}
            assert job.mode == min(job.trial_s, key=lambda each: job.trial_s[each])
