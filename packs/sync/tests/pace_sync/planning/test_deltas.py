"""Plans of deltas: the rule with the shortest mean pause, and when an anchor pays."""

import json
from typing import Any

import pytest

from pace_sync.checker.deltas import check_deltas
from pace_sync.documents.delta_sync import DeltaPlan, DeltaSync, parse_delta_plan, parse_delta_sync
from pace_sync.errors import InvalidSync
from pace_sync.planning.deltas import plan_deltas
from tests.pace_sync.planning.problems import sync_fields


def problem_of(**changed: Any) -> DeltaSync:
    """Return 16 MB of which 5 % change, in blocks of 1,000 bytes, to two receivers."""
    return parse_delta_sync(
        json.dumps({"sync": sync_fields(), "changed": 0.05, "block_bytes": 1000} | changed)
    )


@pytest.fixture(scope="module")
def planned() -> DeltaPlan:
    """Return the plan of ``problem_of()``."""
    return plan_deltas(problem_of())


def test_deltas_pay_where_little_changes(planned: DeltaPlan) -> None:
    """A twentieth of the bytes takes about a twentieth of the time, and nobody needs an anchor."""
    problem, plan = problem_of(), planned
    assert (plan.rule, plan.anchor_every) == ("ask", None)
    assert plan.delta_s < 0.15 * plan.anchor_s
    assert plan.bound_s <= plan.mean_pause_s <= 1.3 * plan.bound_s
    # By hand: 5 % of 4,000 blocks of 1,000 bytes, of 2, and of 1,000 blocks of 6,000 and 6,000 of 1,000.
    changed = 200_000 + 0 + 300_000 + 300_000
    whole = 16_002_000
    assert {choice.rule: choice.mean_bytes for choice in plan.choices} == {
        "anchors": whole,
        "ask": changed,
        "wait": pytest.approx((whole + 99 * changed) / 100),
    }
    assert check_deltas(problem, parse_delta_plan(plan.to_json())) == []
    assert plan.to_json() == plan_deltas(problem).to_json()


def test_hashes_can_cost_more_than_they_save() -> None:
    """A hash slower than the link: every version goes whole."""
    problem = problem_of(hash_s_per_byte=1e-8)
    plan = plan_deltas(problem)
    assert (plan.rule, plan.anchor_every) == ("anchors", 1)
    assert check_deltas(problem, plan) == []


def test_periodic_anchors_pay_where_many_miss_versions() -> None:
    """By hand: with A - D < p q A a receiver waits for the anchor; with fewer misses it asks."""
    plans = {missed: plan_deltas(problem_of(missed=missed, most_versions=20)) for missed in (0.001, 0.2)}
    assert [plan.rule for plan in plans.values()] == ["ask", "wait"]
    assert plans[0.2].anchor_every == 20
    for missed, plan in plans.items():
        somebody = 1 - (1 - missed) ** 2
        pays = plan.anchor_s - plan.delta_s < 20 * somebody * plan.anchor_s
        assert pays == (plan.rule == "wait")
        assert check_deltas(problem_of(missed=missed, most_versions=20), plan) == []


def test_the_turning_point_is_where_a_delta_is_as_slow_as_an_anchor(planned: DeltaPlan) -> None:
    """A receiver that copies the version before at 1 GB/s needs 16 ms at least."""
    assert planned.anchor_above_bytes > 0.9 * 16_002_000
    costly = problem_of(base_s_per_byte=1e-8)
    plan = plan_deltas(costly)
    assert (plan.anchor_above_bytes, plan.rule) == (0, "anchors")
    assert check_deltas(costly, plan) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"problem_sha256": "0" * 64}, "another delta-sync document"),
        ({"block_bytes": 7}, "block_bytes is 7"),
        ({"anchor_s": 1e-9}, "anchor_s is 1e-09, no way"),
        ({"delta_s": 1.0}, 'rule "ask" has mean_pause_s'),
        ({"rule": "anchors"}, 'rule "anchors" has mean pause'),
        ({"anchor_every": 3}, "anchor_every is 3, derived None"),
        ({"mean_pause_s": 9.0}, "mean_pause_s is 9.0"),
        ({"bound_s": 9.0}, "bound_s 9.0 is above"),
        ({"choices": []}, "choices are not"),
    ],
)
def test_wrong_plans_are_found(planned: DeltaPlan, changed: dict[str, Any], said: str) -> None:
    """Each corruption is named."""
    document = json.loads(planned.to_json()) | changed
    found = check_deltas(problem_of(), parse_delta_plan(json.dumps(document)))
    assert any(said in violation for violation in found), found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"changed": 1.5}, "changed: expected a number from 0 to 1"),
        ({"missed": -0.1}, "missed: expected a number from 0 to 1"),
        ({"block_bytes": 0}, "block_bytes: expected a whole number above 0"),
        ({"most_versions": 0}, "most_versions: expected a whole number from 1 to 1,000,000"),
    ],
)
def test_impossible_documents_are_refused(changed: dict[str, Any], said: str) -> None:
    """With a line that names the field."""
    with pytest.raises(InvalidSync, match=said):
        problem_of(**changed)


def test_a_plan_with_slow_copies_of_the_base_is_accepted() -> None:
    """The pause of a delta is a billion times that of an anchor: nothing may be lost by rounding."""
    problem = problem_of(base_s_per_byte=1e3, most_versions=1)
    assert check_deltas(problem, plan_deltas(problem)) == []
