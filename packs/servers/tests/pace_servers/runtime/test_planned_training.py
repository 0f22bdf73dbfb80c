"""Jobs over servers of their own processes: planned by a service from the job's own profile, and recorded."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pace.runtime.control.replanner
from pace.documents.profile import parse_profile
from pace.documents.push_pull import PushPull
from pace.documents.steps import parse_steps
from pace_servers.throughput.prediction import predict
from tests.api.process import ServiceProcess
from tests.pace_servers.runtime.server_processes import served
from tests.runtime.control.replanning_jobs import MOST_STEPS, NEVER_AGAIN, PATIENCE_S, Diary, Job
from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)


def _planned(rank: int, _size: int, url: str, servers: list[str]) -> tuple[Diary, Any]:
    pace.runtime.control.replanner.STEPS_BETWEEN = 4
    with captured_events() as logs:
        job = Job(
            rank,
            logs,
            over="servers",
            servers=servers,
            service=url,
            job="pushed",
            replanning=replace(NEVER_AGAIN, drift_iterations=3),
        )
        job.train(MOST_STEPS, until=job.adopted)
        job.train(MOST_STEPS, until=lambda: job.replanner.drift.reference is not None)
        job.train(4)
        deadline = time.monotonic() + PATIENCE_S
        while rank == 0 and not any(entry["event"].startswith("pace.report_") for entry in logs):
            assert time.monotonic() < deadline, "no report was sent"
            time.sleep(0.01)
        transport = job.optimizer._transport
        seen = {
            "links": sorted({segment.link for segment in job.optimizer._plan.segments}),
            "planned": job.optimizer._plan.pace_bytes_per_s,
            "paced": [link.pacing_bytes_per_s for link in transport._links],
        }
        return job.close(), seen


@pytest.mark.slow
def test_a_service_plans_a_job_over_its_servers_from_the_jobs_own_profile(tmp_path: Path) -> None:
    """No schedule yet: profiled with its links, planned for push and pull, followed, paced and reported."""
    with ServiceProcess(tmp_path) as service, served(2, "--workers", "2") as (servers, _):
        (first, seen), (second, _) = run_ranks(_planned, 2, service.url, servers, timeout_s=280)
        profile = service.http.get(f"/v1/profiles/{first.profile_sha256}").json()["profile"]
        summary = service.http.get("/v1/schedules").json()["items"][0]
        timeline = service.http.get(f"/v1/schedules/{summary['id']}/timeline").json()
    assert first.states == second.states == ["profiling", "submitting", "watching"]
    assert first.sources[-1] == "schedule"
    assert first.events["pace.report_sent"] == 1
    assert equal_bits(first.trained, second.trained)
    assert difference(first.trained, train_plainly(Case(steps=first.steps), 2, repeat=True)) <= 1e-3
    exchange = parse_profile(json.dumps(profile).encode()).allreduce
    assert isinstance(exchange, PushPull)
    assert exchange.servers == 2
    assert not exchange.colocated
    assert exchange.min_partition_bytes == 64 << 10
    assert set(seen["links"]) <= {0, 1}
    assert seen["planned"] is not None
    # A busy machine may find no time that grows with bytes, and the kernel paces nothing beyond 32 bits.
    assert seen["paced"] == [int(seen["planned"]) if seen["planned"] < 2**32 - 1 else None] * 2
    rows = {each["args"]["name"] for each in timeline["traceEvents"] if each["name"] == "thread_name"}
    assert {f"push to server {link}" for link in seen["links"]} <= rows
    assert {f"pull from server {link}" for link in seen["links"]} <= rows


def _recorded(rank: int, _size: int, servers: list[str]) -> tuple[bytes, int, Any]:
    from pace_servers.runtime import ParameterServers, asynchronous

    model = build("conv", double=True)
    inner = torch.optim.SGD(trainable(model), lr=0.05)
    optimizer = asynchronous(inner, model, communication=ParameterServers(servers=servers), timeout_s=60.0)
    optimizer.record_steps(4)
    for batch in batches("conv", 8, rank, double=True):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    document = optimizer.recorded_steps("conv", batch=8, bytes_per_s=1e8).to_json()
    size = sum(parameter.numel() * parameter.element_size() for parameter in trainable(model))
    optimizer.synchronize()
    trained = weights(model)

    sync = build("conv", double=True)
    over = wrap("gloo", OPTIMIZERS["adam"](trainable(sync)), sync, over="servers", servers=servers)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for batch in batches("conv", 5, rank, double=True):
        over.zero_grad()
        backward(scaler.scale(sync(*batch)))
        scaler.step(over)
        scaler.update()
    over.synchronize()
    scaled = weights(sync)
    over.close()
    optimizer.close()
    return document, size, (trained, scaled)


def test_steps_are_recorded_and_loss_is_scaled_over_dedicated_servers() -> None:
    """An asynchronous and a synchronous job on the same servers at once; the recording predicts."""
    with served(2) as (servers, _):
        ranks = run_ranks(_recorded, 2, servers)
    for document, size, _ in ranks:
        steps = parse_steps(document)
        assert len(steps.steps) == 4
        assert steps.servers == 2
        assert steps.batch == 8
        assert sum(steps.bytes_of("uplink")) == sum(steps.bytes_of("downlink")) == size
        assert all(step.duration_s[0] > 0 for step in steps.steps)
        assert {op.server for op in steps.ops if op.is_transfer} <= {0, 1}
    assert equal_bits(ranks[0][2][0], ranks[1][2][0])
    expected = train_plainly(Case(model="conv", optimizer="adam", steps=5, double=True), 2)
    assert difference(ranks[0][2][1], expected) < 1e-9
    assert equal_bits(ranks[0][2][1], ranks[1][2][1])
    made = predict(parse_steps(ranks[0][0]))
    assert made.points[0].workers == 1
