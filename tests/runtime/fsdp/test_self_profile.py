"""A sharded job without a schedule profiles itself, and follows what a real service makes of it."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pace.documents.profile import Profile, parse_profile
from pace.runtime.control import replanner
from pace.runtime.control.parameters import gradient_sizes
from pace.runtime.options import Replanning
from tests.api.process import ServiceProcess
from tests.runtime.fsdp.job import Job
from tests.runtime.launch import run_ranks
from tests.runtime.loop_differences import differences

SIZE = 4
MOST_STEPS = 20_000


def _live(rank: int, _size: int, url: str) -> tuple[int, list[str], dict[str, int]]:
    replanner.STEPS_BETWEEN = 4
    job = Job(rank, attach=True)
    model = job.wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    settings = Replanning(profile_iterations=4, interval_s=3600.0)
    job.attached(model, optimizer, service=url, job="sharded", replanning=settings)
    steps = 0
    for steps in range(1, MOST_STEPS):
        _step(job, model, optimizer, steps)
        # Replicas of a shard change to the schedule together, and shards each in their own time.
        follows = torch.tensor([float(job.handle.report(wait=False).source == "schedule")])
        dist.all_reduce(follows, op=dist.ReduceOp.MIN)
        if follows:
            break
    sizes = {size.name: size.size_bytes for size in gradient_sizes(dict(model.named_parameters()))}
    with_pace = job.end()
    plain = Job(rank, attach=False)
    model = plain.wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    for step in range(1, steps + 1):
        _step(plain, model, optimizer, step)
    return steps, list(differences(with_pace, plain.end(), 0.0)), sizes


def _step(job: Job, model: Any, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    job.backward(model, step % 10)
    optimizer.step()


def test_a_job_is_profiled_scheduled_and_trained_as_without_pace(tmp_path: Path) -> None:
    """What is scheduled are shards, between a unit's reduce-scatter and its next gathering."""
    with ServiceProcess(tmp_path) as service:
        ranks = run_ranks(_live, SIZE, service.url)
        listed = service.http.get("/v1/profiles").json()
        shas = [each["id"] for each in listed["items"]]
        stored = [service.http.get(f"/v1/profiles/{sha}").json()["profile"] for sha in shas]
    profiles = [parse_profile(json.dumps(each)) for each in stored]
    for steps, differing, _ in ranks:
        assert steps < MOST_STEPS - 1, "no schedule was followed"
        assert differing == []
    assert profiles
    for profile in profiles:
        assert profile.workers == 2
        assert {each.name: each.size_bytes for each in profile.gradients} == ranks[0][2]
        _check_units(profile)


def _check_units(profile: Profile) -> None:
    producers: dict[str, set[str]] = {}
    for gradient in profile.gradients:
        unit = ".".join(gradient.name.split(".")[:2]) if gradient.name.startswith("blocks") else ""
        producers.setdefault(unit, set()).add(gradient.producer)
    assert all(len(each) == 1 for each in producers.values()), producers
    names = [op.name for op in profile.ops]
    for number in range(3):
        waiting = [op.name for op in profile.ops if f"blocks.{number}.scale" in op.waits_for]
        assert waiting == [f"update/blocks.{number}/gather"]
        assert names.index(waiting[0]) < names.index(f"fwd/blocks.{number}/gather")
        assert names.index(f"fwd/blocks.{number}/gather") < names.index(f"fwd/blocks.{number}.wide")
    # The last block's gradients are ready first, and the first's are needed first.
    order = [names.index(next(iter(producers[f"blocks.{number}"]))) for number in range(3)]
    assert order == sorted(order, reverse=True)
