"""Plans of weight synchronization: valid, near their bound, never worse than other rules."""

import json
from functools import cache
from typing import Any

import pytest

from pace_sync.checker.weight_sync import check_sync
from pace_sync.documents.sync_plan import parse_sync_plan
from pace_sync.documents.weight_sync import parse_weight_sync
from pace_sync.errors import InvalidSync
from pace_sync.planning.plan import plan_sync
from pace_sync.planning.what_if import sync_grid
from tests.pace_sync.planning.problems import small_sync, sync_fields, with_changes

CASES: list[dict[str, Any]] = [
    {},
    {"credit_bytes": 2_000_000},
    {"credit_bytes": 100_000},
    {"fan_out": "direct"},
    {"message_s": 0.0},
    {"tensors": [{"name": "nothing", "size_bytes": 0}]},
    {"tensors": [{"name": "one", "size_bytes": 2}]},
    {"tensors": [{"name": f"t{number}", "size_bytes": 200 + 2 * number} for number in range(60)]},
]


@pytest.mark.parametrize("changed", CASES)
def test_plans_are_valid_and_never_worse(changed: dict[str, Any]) -> None:
    """The checker agrees, no other rule is faster, and the same document gives the same bytes."""
    problem = small_sync(**changed)
    plan = plan_sync(problem)
    assert check_sync(problem, parse_sync_plan(plan.to_json())) == []
    assert plan.to_json() == plan_sync(problem).to_json()
    for rival in plan.rivals:
        assert rival.pause_s is None or plan.predicted.pause_s <= rival.pause_s * (1 + 1e-9)


def test_a_plan_is_near_its_bound() -> None:
    """Cut, fused and ordered: the pause is within 3 % of the bound, other rules are not."""
    plan = plan_sync(small_sync())
    assert plan.predicted.gap < 0.03
    assert (
        min(rival.pause_s for rival in plan.rivals if rival.pause_s is not None) > 1.05 * plan.bound.bound_s
    )


@cache
def planned() -> bytes:
    """Return a plan that holds no more than 3 MB."""
    return plan_sync(small_sync(credit_bytes=3_000_000)).to_json()


def corrupted(**changed: Any) -> list[str]:
    """Return what the checker says of a plan with other fields."""
    problem = small_sync(credit_bytes=3_000_000)
    return check_sync(problem, parse_sync_plan(with_changes(planned(), changed)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"problem_sha256": "0" * 64}, "another weight-sync document"),
        ({"credit_bytes": None}, "credit_bytes is None"),
        ({"buckets__1__start_s": 0.0}, "the link is busy until"),
        ({"buckets__0__end_s": 0.0}, "bucket 0: end_s is 0.0"),
        ({"buckets__0__finished_s": [0.0, 0.0]}, 'receiver "left" has finished at 0.0'),
        ({"buckets__0__finished_s": [0.0]}, "finished by 1 of 2 receivers"),
        ({"predicted__pause_s": 0.001}, "predicted.pause_s is 0.001"),
        ({"order_bound__bound_s": 1.0}, "order_bound.bound_s is 1.0"),
        ({"order_bound__receiver": 7}, "no receiver 7"),
        ({"bound__bound_s": 0.5}, "bound.bound_s is 0.5"),
        ({"buckets": []}, "0 of 4000000 bytes are sent"),
    ],
)
def test_wrong_plans_are_found(changed: dict[str, Any], said: str) -> None:
    """Each corruption is named."""
    assert any(said in violation for violation in corrupted(**changed)), corrupted(**changed)


def test_held_bytes_are_counted() -> None:
    """A plan made without a credit breaks one, and the checker says where."""
    wide = small_sync()
    document = json.loads(plan_sync(wide).to_json())
    narrow = small_sync(
        credit_bytes=max(sum(p["size_bytes"] for p in b["parts"]) for b in document["buckets"])
    )
    document |= {"problem_sha256": narrow.sha256, "credit_bytes": narrow.credit_bytes}
    found = check_sync(narrow, parse_sync_plan(json.dumps(document)))
    assert any("bytes are held from" in violation for violation in found)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([("t", 0, 4), ("t", 2, 4)], "bytes 2 to 4 are sent twice"),
        ([("t", 0, 4), ("t", 6, 4)], "bytes 4 to 6 are not sent"),
    ],
)
def test_plans_send_each_byte_once(parts: list[tuple[str, int, int]], said: str) -> None:
    """A plan with a gap or an overlap is no document."""
    document = json.loads(plan_sync(small_sync()).to_json())
    document["buckets"][0]["parts"] = [
        {"tensor": tensor, "offset_bytes": offset, "size_bytes": size} for tensor, offset, size in parts
    ]
    with pytest.raises(InvalidSync, match=said):
        parse_sync_plan(json.dumps(document))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensors": [{"name": "t", "size_bytes": 3}]}, "no multiple of bfloat16's 2 bytes"),
        ({"tensors": [{"name": "t", "size_bytes": 4, "work": ["load"]}]}, 'needs work "load"'),
        ({"tensors": [{"name": "t", "size_bytes": 4}] * 2}, 'two tensors are named "t"'),
        (
            {"tensors": [{"name": "t", "size_bytes": 4, "block_bytes": 2**64}]},
            'tensor "t": block_bytes: expected a whole number above 0',
        ),
        ({"credit_bytes": 5_000}, 'tensor "up" is cut after 6000 bytes, more than credit_bytes 5000'),
        (
            {"credit_bytes": 2, "tensors": [{"name": "t", "size_bytes": 3_000_000}]},
            "makes at least 1,500,000 buckets, more than 100,000: set credit_bytes to at least 30",
        ),
        ({"sender": {"bytes_per_s": 0}}, "bytes_per_s: expected a number above 0"),
        ({"receivers": []}, "at least 1 item"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
    ],
)
def test_impossible_documents_are_refused(changed: dict[str, Any], said: str) -> None:
    """With a line that names the place."""
    with pytest.raises(InvalidSync, match=said):
        parse_weight_sync(json.dumps(sync_fields(**changed)))


def test_what_if() -> None:
    """More bandwidth is never slower, and the same number of receivers is the document's own plan."""
    problem = small_sync()
    points = sync_grid(problem, bandwidth_gbps=[1, 8, 40], receivers=[2, 5])
    assert [(point.bandwidth_gbps, point.receivers) for point in points][:3] == [(1, 2), (1, 5), (8, 2)]
    assert points[0].pause_s > points[2].pause_s > points[4].pause_s
    assert all(point.bound_s <= point.pause_s for point in points)
    (same,) = sync_grid(problem)
    assert same.pause_s == plan_sync(problem).predicted.pause_s
