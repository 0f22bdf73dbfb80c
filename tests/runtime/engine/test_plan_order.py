"""Plans that would hang: refused in one line before they are used, and no others."""

import json
import random
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pace import CommunicationFailed, ScheduleMismatch, check_order, parse_job_program
from pace.order.inputs.senders import PlannedCall, sender_thread
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.plan import GradientSize, SendPlan, plan_locally
from pace.runtime.engine.sharded_plan import plan_shards_locally, refuse_hanging
from pace.runtime.transports.gloo import GlooTransport
from tests.runtime.engine.plans import plan_of
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

SIZES = [GradientSize(name=f"g{number}", size_bytes=4096, dtype="float32") for number in range(6)]


def halves(seed: int) -> SendPlan:
    """Return a plan of two halves, some of them in several segments, in a random order."""
    chance = random.Random(seed)
    plan = plan_shards_locally(SIZES, 2, max_group_bytes=chance.choice((1, 8192)))
    segments = []
    for segment in plan.segments:
        half = segment.size_bytes // 2
        segments += [
            replace(segment, size_bytes=half),
            replace(segment, offset_bytes=half, size_bytes=segment.size_bytes - half),
        ]
    places = list(range(len(segments)))
    for _ in range(chance.randrange(4)):
        one, other = chance.sample(places, 2)
        places[one], places[other] = places[other], places[one]
    return replace(plan, segments=tuple(segments[place] for place in places))


def proved(plan: SendPlan) -> bool:
    """Return whether the general proof holds for what the engine's thread sends by a plan."""
    calls = []
    for number, segment in enumerate(plan.segments):
        group = plan.groups[segment.group]
        needs = [
            place
            for place, other in enumerate(plan.segments)
            if plan.groups[other.group].exchange == "reduce-scatter"
            and set(plan.groups[other.group].shards) & set(group.shards)
        ]
        gathers = group.exchange == "all-gather"
        calls.append(
            PlannedCall(
                op="all-gather" if gathers else "reduce-scatter",
                label=f"segment {number}",
                size_bytes=segment.size_bytes,
                dtype=group.dtype,
                needs=tuple(needs) if gathers else (),
            )
        )
    thread = sender_thread("PACE", calls, 2).model_dump(mode="json", exclude_none=True)
    job = {
        "groups": [{"name": "PACE", "communicators": [[0, 1]]}],
        "programs": [{"ranks": [0, 1], "threads": [thread]}],
    }
    return check_order(parse_job_program(json.dumps(job))).cannot_hang


def test_the_quick_check_agrees_with_the_proof() -> None:
    """On plans whose segments were swapped at random; both answers occur."""
    answers = []
    for seed in range(40):
        plan = halves(seed)
        try:
            refuse_hanging(plan)
            answers.append(True)
        except ScheduleMismatch:
            answers.append(False)
        assert answers[-1] == proved(plan), seed
    assert set(answers) == {True, False}


def test_plans_of_all_reduces_cannot_hang() -> None:
    """No all-reduce waits for another one, so any order is one that all ranks can follow."""
    plan = plan_locally(SIZES)
    assert refuse_hanging(plan) is plan
    backwards = replace(plan, segments=plan.segments[::-1])
    assert refuse_hanging(backwards) is backwards


def test_such_a_plan_hangs() -> None:
    """Group 1 is filled once group 0 is summed, and planned before it: nothing is ever sent."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        transport = GlooTransport(timeout_s=60)
        plan = plan_of([1, 0], [0.0, 0.0], segment_bytes=16)
        engine = Engine(
            plan,
            [torch.ones(4), torch.ones(4)],
            transport,
            discipline="static",
            timeout_s=1.0,
            name="test",
        )
        filled = threading.Event()
        engine.submit(0)
        engine.submit(1, after=[0], prepare=filled.set)
        with pytest.raises(CommunicationFailed):
            engine.wait(1)
        assert not filled.is_set()
        engine.close()
        transport.close(failed=True)
    finally:
        dist.destroy_process_group()


def _adopt_a_hanging_plan(rank: int, size: int) -> Any:
    model = build("conv")
    optimizer: Any = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, timeout_s=30.0)
    data = batches("conv", 2, rank)
    backward(model(*data[0]))
    optimizer.step()
    good = plan_shards_locally(optimizer._sizes, size)
    with pytest.raises(ScheduleMismatch) as refused:
        optimizer._switch(replace(good, segments=good.segments[::-1]), False)
    backward(model(*data[1]))
    optimizer.step()
    optimizer.synchronize()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.close()
    return str(refused.value), weights


def test_a_hanging_plan_is_refused_before_it_is_used() -> None:
    """The line names both calls, and training goes on with the plan in use."""
    results = run_ranks(_adopt_a_hanging_plan, 2, backend="gloo")
    for reason, weights in results:
        assert re.fullmatch(
            r"the plan can hang: every rank waits at segment 0, the all-gather of group \d+ \(.*\), for "
            r"segment \d+, the reduce-scatter of group \d+ \(.*\), which it sends only afterwards",
            reason,
        )
        assert all(torch.equal(one, other) for one, other in zip(weights, results[0][1], strict=True))
