"""Plans of resharding: every element once, from who holds it; near the bound; wrong ones are found."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace_sync.checker.resharding import check_reshard
from pace_sync.documents.reshard_plan import parse_reshard_plan
from pace_sync.documents.resharding import Resharding, parse_resharding
from pace_sync.errors import InvalidSync
from pace_sync.planning.box_classes import num_cells
from pace_sync.planning.reshard import StreamOnLinks, plan_reshard, stream_times
from tests.pace_sync.planning.problems import box, reshard_fields, with_changes


def problem_of(**changed: Any) -> Resharding:
    """Return the document of ``reshard_fields``."""
    return parse_resharding(json.dumps(reshard_fields(**changed)))


def test_replicas_share_the_work() -> None:
    """12,288 bytes over four links of 1 MB/s, each row on two of them: 3.072 ms, and no plan is faster."""
    problem = problem_of()
    plan = plan_reshard(problem)
    assert plan.predicted.pause_s == pytest.approx(3.072e-3)
    assert plan.bound.bound_s == pytest.approx(3.072e-3)
    assert (plan.bound.kind, plan.bound.hosts) == ("senders", ("t0", "t1", "t2", "t3"))
    assert check_reshard(problem, parse_reshard_plan(plan.to_json())) == []
    assert plan.to_json() == plan_reshard(problem).to_json()
    gather, first = plan.rivals
    assert gather.pause_s == pytest.approx((6144 + 12288) / 1e6)
    assert first.pause_s == pytest.approx(6144 / 1e6)


def test_cells_are_counted_before_planning() -> None:
    """By hand: two rows of shards and two columns of wants cut each of two tensors into four."""
    assert num_cells(problem_of()) == 8
    assert (
        num_cells(
            problem_of(
                tensors=[{"name": "up", "shape": [64, 48]}, {"name": "down", "shape": []}],
                senders=[
                    {
                        "name": "t0",
                        "bytes_per_s": 1e6,
                        "shards": [box("up", (0, 0), (64, 48)), box("down", (), ())],
                    }
                ],
                receivers=[{"name": "r0", "bytes_per_s": 1e6, "wants": [box("up", (16, 0), (16, 48))]}],
            )
        )
        == 4
    )


def test_very_many_streams_have_a_pace() -> None:
    """Fair shares of 1,024 streams are not simulated, which would take too long; the plan is right."""
    senders = [
        {"name": f"t{rank}", "bytes_per_s": 1e6 + rank, "shards": [box("up", (2 * rank, 0), (2, 64))]}
        for rank in range(32)
    ]
    receivers = [
        {"name": f"r{rank}", "bytes_per_s": 3e6, "wants": [box("up", (0, 2 * rank), (64, 2))]}
        for rank in range(32)
    ]
    problem = problem_of(tensors=[{"name": "up", "shape": [64, 64]}], senders=senders, receivers=receivers)
    plan = plan_reshard(problem)
    assert len(plan.streams) == 1024
    assert all(stream.bytes_per_s is not None for stream in plan.streams)
    assert plan.predicted.gap < 1e-9
    assert check_reshard(problem, plan) == []
    fair = tuple(stream.model_copy(update={"bytes_per_s": None}) for stream in plan.streams)
    assert any(
        "1024 streams have no pace" in fault
        for fault in check_reshard(problem, plan.model_copy(update={"streams": fair}))
    )


def test_bytes_for_several_receivers_leave_once() -> None:
    """Two receivers want the same: one chain from each sender, and the receiver's link is the bound."""
    wants = [box(name, (0, 0), (64, 48)) for name in ("up", "down")]
    receivers = [
        {"name": "slow", "bytes_per_s": 1e6, "wants": wants, "hop_s": 1e-4},
        {"name": "fast", "bytes_per_s": 4e6, "wants": wants},
    ]
    problem = problem_of(receivers=receivers)
    plan = plan_reshard(problem)
    assert {stream.receivers for stream in plan.streams} == {("fast", "slow")}
    assert sum(stream.size_bytes for stream in plan.streams) == 12288
    assert plan.predicted.pause_s == pytest.approx(12288 / 1e6 + 1e-4)
    assert (plan.bound.kind, plan.bound.hosts) == ("link", ("slow",))
    assert check_reshard(problem, plan) == []


def test_streams_that_fair_shares_would_delay_have_a_pace() -> None:
    """By hand: the longest stream has 0.5 MB/s until 3.072 ms, 0.75 until 6.144 ms and 1 until 6.912 ms.

    With paces all streams end at 6.144 ms, when every link has carried what it must.
    """
    senders = [
        {"name": "both", "bytes_per_s": 1e6, "shards": [box("up", (0, 0), (64, 48))]},
        {"name": "other", "bytes_per_s": 1e6, "shards": [box("down", (0, 0), (16, 48))]},
    ]
    receivers = [
        {"name": "slow", "bytes_per_s": 2.5e5, "wants": [box("up", (0, 0), (16, 48))]},
        {
            "name": "b",
            "bytes_per_s": 1e6,
            "wants": [box("up", (16, 0), (48, 48)), box("down", (0, 0), (16, 48))],
        },
    ]
    problem = problem_of(senders=senders, receivers=receivers)
    streams = [
        StreamOnLinks(size_bytes=1536, links=(0, 2)),
        StreamOnLinks(size_bytes=4608, links=(0, 3)),
        StreamOnLinks(size_bytes=1536, links=(1, 3)),
    ]
    fair = stream_times(streams, np.array([1e6, 1e6, 2.5e5, 1e6]))
    assert fair == pytest.approx([6.144e-3, 6.912e-3, 3.072e-3])
    plan = plan_reshard(problem)
    assert plan.predicted.pause_s == pytest.approx(6.144e-3)
    assert [stream.bytes_per_s for stream in plan.streams] == pytest.approx([2.5e5, 7.5e5, 2.5e5])
    assert check_reshard(problem, plan) == []


@st.composite
def problems(draw: st.DrawFn) -> Resharding:
    """Draw tensors that ranks hold and want by splitting one dimension each, some of them twice."""
    shape = draw(st.lists(st.integers(1, 7), min_size=0, max_size=3))
    rates = st.sampled_from([1e6, 2e6, 5e6, 1e3, 1e10])
    hops = st.sampled_from([0.0, 0.0, 1e-6, 1e-3])

    def hosts(prefix: str, key: str) -> list[dict[str, Any]]:
        copies, axis = draw(st.integers(1, 2)), draw(st.integers(0, max(len(shape) - 1, 0)))
        parts = draw(st.integers(1, shape[axis])) if shape else 1
        found = []
        for copy in range(copies):
            for part in range(parts):
                begin, length = [0] * len(shape), list(shape)
                if shape:
                    low, high = (shape[axis] * each // parts for each in (part, part + 1))
                    begin[axis], length[axis] = low, high - low
                boxes = [box("t", tuple(begin), tuple(length))]
                found.append({"name": f"{prefix}{copy}.{part}", "bytes_per_s": draw(rates), key: boxes})
                if key == "wants":
                    found[-1] |= {"hop_s": draw(hops), "work_s_per_byte": draw(hops)}
        return found

    document = {
        "name": "drawn",
        "tensors": [{"name": "t", "shape": shape}],
        "senders": hosts("s", "shards"),
        "receivers": hosts("r", "wants"),
    }
    return parse_resharding(json.dumps(document))


@settings(max_examples=60)
@given(problems())
def test_any_shards_are_covered(problem: Resharding) -> None:
    """The checker finds nothing, no rule is faster than the bound, and none faster than the plan."""
    plan = plan_reshard(problem)
    assert check_reshard(problem, plan) == []
    for pause_s in (plan.predicted.pause_s, *(rival.pause_s for rival in plan.rivals)):
        assert pause_s >= plan.bound.bound_s * (1 - 1e-6)
        assert pause_s >= plan.predicted.pause_s / 1.02


def test_what_is_no_whole_row_leaves_the_faster_sender() -> None:
    """By hand: of 1,000 rows the slow link can take a hundredth of one while the fast one sends the rest."""
    row = [box("up", (0, 0), (1000, 64))]
    senders = [
        {"name": "fast", "bytes_per_s": 1e9, "shards": row},
        {"name": "slow", "bytes_per_s": 1e4, "shards": row},
    ]
    receivers = [{"name": "r0", "bytes_per_s": 1e10, "wants": row}]
    problem = problem_of(tensors=[{"name": "up", "shape": [1000, 64]}], senders=senders, receivers=receivers)
    plan = plan_reshard(problem)
    assert [(stream.sender, stream.size_bytes) for stream in plan.streams] == [("fast", 128_000)]
    assert plan.predicted.pause_s == pytest.approx(plan.bound.bound_s, rel=1e-4)


def test_hops_are_counted_for_all_rules() -> None:
    """Two receivers 10 ms from the sender and from one another: a chain's second receiver is 20 ms away.

    By hand: each gets 3,072 bytes of one link of 1 MB/s, so both arrive at 16.144 ms.
    """
    wants = [box("up", (0, 0), (32, 48))]
    senders = [{"name": "t0", "bytes_per_s": 1e6, "shards": wants}]
    receivers = [
        {"name": f"r{n}", "bytes_per_s": 1e6, "wants": wants, "hop_s": 0.01, "work_s_per_byte": 1e-9}
        for n in range(2)
    ]
    problem = problem_of(tensors=[{"name": "up", "shape": [32, 48]}], senders=senders, receivers=receivers)
    plan = plan_reshard(problem)
    assert {stream.receivers for stream in plan.streams} == {("r0",), ("r1",)}
    assert plan.predicted.pause_s == pytest.approx(0.01 + 6.144e-3)
    assert plan.bound.bound_s == pytest.approx(0.01 + 3.072e-3)
    gather, first = plan.rivals
    assert gather.pause_s == pytest.approx(0.02 + 3.072e-3)
    assert first.pause_s == pytest.approx(plan.predicted.pause_s)
    assert check_reshard(problem, plan) == []


def test_receivers_that_are_far_are_sent_to_faster() -> None:
    """By hand: all arrive at 15 ms, if the far one's bytes leave in 5 ms and the near one's in 15."""
    senders = [{"name": "t0", "bytes_per_s": 9.6e5, "shards": [box("up", (0, 0), (90, 32))]}]
    receivers = [
        {"name": "near", "bytes_per_s": 1e9, "wants": [box("up", (0, 0), (45, 32))]},
        {"name": "far", "bytes_per_s": 1e9, "wants": [box("up", (45, 0), (45, 32))], "hop_s": 0.0025},
    ]
    problem = problem_of(tensors=[{"name": "up", "shape": [90, 32]}], senders=senders, receivers=receivers)
    plan = plan_reshard(problem)
    assert plan.predicted.finished_s == pytest.approx([plan.predicted.pause_s] * 2, rel=1e-6)
    paces = sum(stream.bytes_per_s or 0.0 for stream in plan.streams)
    assert paces == pytest.approx(9.6e5)
    assert check_reshard(problem, plan) == []


def corrupted(**changed: Any) -> list[str]:
    """Return what the checker says of a plan with other fields."""
    problem = problem_of()
    plan = plan_reshard(problem).to_json()
    return check_reshard(problem, parse_reshard_plan(with_changes(plan, changed)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"problem_sha256": "0" * 64}, "another resharding document"),
        ({"streams__0__sender": "t1"}, 'sender "t1" does not hold'),
        ({"streams__0__sender": "t9"}, 'no sender "t9"'),
        ({"streams__0__receivers": ["r1"]}, 'receiver "r1" gets up['),
        ({"streams__0__receivers": ["r0", "r0"]}, "in the chain twice"),
        ({"streams__0__size_bytes": 2}, "size_bytes is 2"),
        ({"streams__0__end_s": 1.0}, "stream 0: end_s is 1.0"),
        ({"streams__0__bytes_per_s": 1e9}, "some streams have a pace"),
        ({"streams": []}, 'receiver "r0" does not get up[0:64, 0:24]'),
        ({"predicted__pause_s": 1.0}, "predicted.pause_s is 1.0"),
        ({"predicted__finished_s": [1.0, 1.0]}, 'receiver "r0": finished_s is 1.0'),
        ({"bound__bound_s": 1.0}, "bound.bound_s is 1.0"),
        ({"bound__hosts": ["t0"]}, "bound.bound_s is"),
        ({"bound__hosts": ["t0", "x"]}, 'bound: there is no sender "x"'),
    ],
)
def test_wrong_plans_are_found(changed: dict[str, Any], said: str) -> None:
    """Each corruption is named."""
    assert any(said in violation for violation in corrupted(**changed)), corrupted(**changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"receivers": [{"name": "r", "bytes_per_s": 1, "wants": [box("up", (60, 0), (5, 1))]}]},
            "not inside",
        ),
        (
            {"receivers": [{"name": "r", "bytes_per_s": 1, "wants": [box("no", (0,), (1,))]}]},
            'no tensor "no"',
        ),
        (
            {
                "receivers": [
                    {
                        "name": "r",
                        "bytes_per_s": 1,
                        "wants": [box("up", (0, 0), (2, 2)), box("up", (1, 1), (2, 2))],
                    }
                ]
            },
            "overlap",
        ),
        ({"tensors": [{"name": "up", "shape": [64, 0]}]}, "shape: expected a whole number above 0"),
        ({"senders": []}, "at least 1 item"),
    ],
)
def test_impossible_documents_are_refused(changed: dict[str, Any], said: str) -> None:
    """With a line that names the host and the box."""
    with pytest.raises(InvalidSync, match=said):
        problem_of(**changed)


def test_what_nobody_holds_is_named() -> None:
    """The box, and who wants it."""
    senders = reshard_fields()["senders"][:1]
    with pytest.raises(InvalidSync, match=r'no sender holds up\[32:64, 0:24\], which receiver "r0" wants'):
        plan_reshard(problem_of(senders=senders))
