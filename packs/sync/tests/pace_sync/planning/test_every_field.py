"""No field of a plan is left unread; see ``tests.pace.checker.test_every_field``."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from pace.documents.base import Document
from pace_sync import (
    check_deltas,
    check_outer,
    check_reshard,
    check_sync,
    parse_delta_plan,
    parse_outer_plan,
    parse_reshard_plan,
    parse_resharding,
    parse_sync_plan,
    plan_deltas,
    plan_outer,
    plan_reshard,
    plan_sync,
)
from tests.pace.checker.every_field import accepted_changes, donors_of
from tests.pace_sync.planning.outer.outer_problems import small_outer
from tests.pace_sync.planning.problems import reshard_fields, small_sync
from tests.pace_sync.planning.test_deltas import problem_of

# Records; what the sender chose and would be as right otherwise; and proofs that prove less, or another way.
# Several sizes of the largest bucket give the same buckets. Of torchft's best settings, and of the bytes from
# which an anchor is faster than a delta, only limits are derived.
GIVEN = {
    "version",
    "method",
    "bucket_bytes",
    "fragments.#.delay_steps",
    "waits.#.step less",
    "bound_s less",
    "order_bound.bound_s less",
    "bound.num_buckets",
    "bound.ratios.#",
    "bound.ratios.# less",
    "rivals.#.largest_bytes",
    "rivals.#.num_fragments",
    "rivals.#.utilization",
    "rivals.#.delay_steps less",
    "anchor_above_bytes",
}

Judged = tuple[Any, Callable[[Any], Document], Callable[[str], Document], Callable[[Any, Any], list[str]]]
SYNC = plan_sync, parse_sync_plan, check_sync
OUTER = plan_outer, parse_outer_plan, check_outer
PROBLEMS: dict[str, Judged] = {
    "sync": (small_sync(), *SYNC),
    "credit": (small_sync(credit_bytes=4_000_000), *SYNC),
    "outer": (small_outer(), *OUTER),
    "whole layers": (small_outer(cutting="between-layers"), *OUTER),
    "reshard": (
        parse_resharding(json.dumps(reshard_fields())),
        plan_reshard,
        parse_reshard_plan,
        check_reshard,
    ),
    "deltas": (problem_of(), plan_deltas, parse_delta_plan, check_deltas),
    "anchors": (problem_of(missed=0.2), plan_deltas, parse_delta_plan, check_deltas),
}


@cache
def plans() -> dict[str, Document]:
    """Return the plan of each problem."""
    return {name: plan(problem) for name, (problem, plan, _, _) in PROBLEMS.items()}


@pytest.mark.parametrize("changed", [0.2, 0.5, 0.8])
def test_a_bound_on_deltas_that_nothing_proves_is_refused(changed: float) -> None:
    """One close above the plan's own is found, though the mean pause is longer."""
    problem = problem_of(changed=changed, missed=0.1)
    plan = plan_deltas(problem)
    assert check_deltas(problem, plan) == []
    forged = plan.model_copy(update={"bound_s": plan.bound_s * 1.001})
    assert forged.bound_s < plan.mean_pause_s
    assert any("bound.bound_s is" in fault for fault in check_deltas(problem, forged))


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_field_is_judged(name: str) -> None:
    """Only records of how the plan was made may change, and a bound may be lower."""
    problem, _, parse, check = PROBLEMS[name]
    accepted = accepted_changes(
        plans()[name], lambda document: check(problem, parse(document)), donors_of(plans().values())
    )
    assert accepted <= GIVEN
