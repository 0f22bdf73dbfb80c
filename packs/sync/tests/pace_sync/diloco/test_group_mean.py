"""Means over torch.distributed: real processes, and streaming fragments over Gloo."""

import os

import pytest
import torch
import torch.distributed as dist

from pace.errors import CommunicationFailed, InvalidUse, PaceError
from pace_sync.diloco import GroupMean, OuterStep
from pace_sync.documents.outer_plan import parse_outer_plan
from pace_sync.documents.outer_sync import OuterLink
from tests.pace_sync.diloco.streaming_reference import (
    build_model,
    flat,
    inner_optimizer,
    inner_step,
    outer_optimizer,
    train_reference,
)
from tests.pace_sync.diloco.test_outer_step import PERIOD, made_plan, sent_of
from tests.runtime.launch import run_ranks, try_ranks

STEPS = 24


def trained(rank: int, size: int, document: bytes) -> list[float]:
    """Be one worker; return the parameters."""
    with pytest.raises(InvalidUse, match="members is 5, the group has 2 ranks"):
        GroupMean().all_reduce(flat(build_model()).numpy(), members=5)
    groups = {name: GroupMean(dist.new_group(range(size))) for name in ("wan", "lan")}
    model, plan = build_model(), parse_outer_plan(document)
    inner = inner_optimizer(model)
    with OuterStep(model, outer_optimizer, groups, members=size, plan=plan, mix=0.25) as step:
        for number in range(1, STEPS + 1):
            inner_step(model, inner, rank, number)
            step.step(weight=1.0 + rank)
        step.state_dict()  # waits, so that no rank leaves while others average
    found: list[float] = flat(model).tolist()
    return found


def test_equal_to_the_plain_algorithm_over_gloo() -> None:
    """Two processes, two links with a group each: the same bits as one plain loop."""
    links = (OuterLink(name="wan", bytes_per_s=100.0), OuterLink(name="lan", bytes_per_s=60.0))
    plan = made_plan(workers=2, links=links)
    assert {fragment.link for fragment in plan.fragments} == {"wan", "lan"}
    found = run_ranks(trained, 2, plan.to_json())
    expected = train_reference(
        sent_of(plan), workers=2, period=PERIOD, steps=STEPS, mix=0.25, weights=[1.0, 2.0]
    )
    for mine, plain in zip(found, expected, strict=True):
        assert torch.equal(torch.tensor(mine), plain)


def astray(rank: int, _size: int, way: str, document: bytes, other: bytes) -> str:
    """Do something else than rank 0; return the error."""
    model = build_model()
    if way == "weights" and rank == 1:
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1e-6
    plan = parse_outer_plan(other if way == "plan" and rank == 1 else document)
    inner = inner_optimizer(model)
    try:
        with OuterStep(model, outer_optimizer, GroupMean(), members=2, plan=plan) as step:
            for number in range(1, STEPS + 1):
                if way == "exit" and rank == 1 and number == 10:
                    os._exit(9)
                inner_step(model, inner, rank, number)
                step.step()
            step.finish()
    except PaceError as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


@pytest.mark.parametrize(("way", "differs"), [("weights", "outer model"), ("plan", "plan")])
def test_ranks_that_begin_differently_are_refused(way: str, differs: str) -> None:
    """They would average what does not belong together, or wait for one another."""
    document, other = (made_plan(workers=2, max_delay_steps=delay).to_json() for delay in (0, 2))
    found = run_ranks(astray, 2, way, document, other)
    said = f"rank 1 of the group has another {differs} than rank 0"
    assert all(each.startswith(f"ScheduleMismatch: {said}") for each in found), found


def test_a_rank_that_ends_is_an_error_of_the_others() -> None:
    """In a line of ours, in the step that waits for its mean."""
    survivor, _ = try_ranks(astray, 2, "exit", made_plan(workers=2).to_json(), b"", expect_lost=[1])
    assert survivor.result.startswith(f"{CommunicationFailed.__name__}: rank 0 of 2: outer/"), survivor
    assert "another rank has ended or is late" in survivor.result
