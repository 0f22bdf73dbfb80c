"""The judge of plans of graphs finds what was made wrong in them."""

import json
from typing import Any

import pytest

from pace import Options
from pace.documents.schedule import Group, Schedule, parse_schedule
from pace.errors import InvalidSchedule
from pace.kinds import check
from pace.planning.graph.optimize import optimize_graph
from tests.sharded_graphs import backward, forward, graph_of

GRAPH = graph_of(backward(4))
GOOD = optimize_graph(GRAPH, Options())


def changed(**fields: Any) -> Schedule:
    """Return the schedule with fields changed, whether or not they fit."""
    return GOOD.model_copy(update=fields)


def plan_changed(**fields: Any) -> Schedule:
    """Return the schedule with fields of its graph plan changed."""
    return changed(graph=GOOD.graph_plan.model_copy(update=fields))


def later(number: int) -> tuple[Any, ...]:
    """Return the transfers with one of them starting a second late."""
    transfer = GOOD.transfers[number]
    moved = transfer.model_copy(update={"start_s": transfer.start_s + 1, "end_s": transfer.end_s + 1})
    return (*GOOD.transfers[:number], moved, *GOOD.transfers[number + 1 :])


def late_bound(**fields: Any) -> Schedule:
    """Return the schedule with the bound of its last collective changed."""
    late = GOOD.graph_plan.late
    assert late is not None
    return plan_changed(late=late.model_copy(update=fields))


def set_bound(**fields: Any) -> Schedule:
    """Return the schedule with the compute stream's set changed."""
    first, *others = GOOD.graph_plan.sets
    return plan_changed(sets=(first.model_copy(update=fields), *others))


def test_what_the_planner_made_is_right() -> None:
    """Nothing is found in a plan as it was made."""
    assert check(GRAPH, GOOD) == []


def group_changed(**fields: Any) -> tuple[Group, ...]:
    """Return the groups with other fields of the first one."""
    return (GOOD.groups[0].model_copy(update=fields), *GOOD.groups[1:])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("start_slot", 0, "may have slots"),
        ("num_slots", 1, "may have slots"),
        ("priority", 7, "is not its place"),
    ],
)
def test_slots_and_other_priorities_are_refused(field: str, value: int, said: str) -> None:
    """A graph's collectives are issued in the order of the list, in continuous time."""
    document = json.loads(GOOD.to_json())
    document["transfers"][1][field] = value
    with pytest.raises(InvalidSchedule, match=said):
        parse_schedule(json.dumps(document))


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        (changed(transfers=later(1)), "transfers[1]: start_s"),
        (changed(predicted=GOOD.predicted.model_copy(update={"iteration_s": 1.0})), "predicted.iteration_s"),
        (changed(predicted=GOOD.predicted.model_copy(update={"peak_bytes": 1})), "predicted.peak_bytes"),
        (
            changed(predicted=GOOD.predicted.model_copy(update={"lower_bound_s": 99.0})),
            "predicted.lower_bound_s",
        ),
        (changed(execution=GOOD.execution.model_copy(update={"max_in_flight": 2})), "max_in_flight is 2"),
        (changed(groups=GOOD.groups[1:]), "groups are not made of"),
        (changed(groups=group_changed(ready_s=99.0)), "group 0: ready_s is 99.0, derived"),
        (changed(groups=group_changed(tail_s=99.0)), "group 0: tail_s is 99.0, derived"),
        (plan_changed(order=GOOD.graph_plan.order[::-1]), "which it reads"),
        (plan_changed(order=GOOD.graph_plan.order[:-1]), "graph.order has"),
        (plan_changed(budget_bytes=10), "graph.budget_bytes, 10"),
        (plan_changed(longest_path_s=99.0), "longest_path_s"),
        (set_bound(total_s=99.0), "graph.sets[0].total_s"),
        (set_bound(bound_s=99.0), "add up to"),
        (set_bound(num_nodes=99), "num_nodes"),
        (late_bound(hidden_s=0.0), "graph.late.hidden_s"),
        (late_bound(collective="weights 1"), "is no collective"),
        (late_bound(lines=()), "graph.late.lines: expected one for each op"),
    ],
)
def test_a_wrong_plan_is_found(schedule: Schedule, found: str) -> None:
    """Each change is named."""
    violations = check(GRAPH, schedule)
    assert any(found in violation for violation in violations), violations


def test_a_plan_of_another_graph_is_found() -> None:
    """The hash of the graph is compared first."""
    assert "profile_sha256 is that of another graph" in check(graph_of(forward(2)), GOOD)


def test_a_stretch_counts_only_lines_that_are_judged() -> None:
    """The set of ops has no lines below costs, so lines given to it prove no traffic."""
    slowed = graph_of(backward(4), compute_slowdown=1.5)
    schedule = optimize_graph(slowed, Options())
    plan = schedule.graph_plan
    (ops, *_), (*_, of_wire) = plan.sets, plan.sets
    assert ops.wire is None
    assert plan.stretch_s > 0
    steep = tuple(line.model_copy(update={"seconds_per_byte": 1.0}) for line in of_wire.lines)
    sets = (ops.model_copy(update={"lines": steep}), *plan.sets[1:])
    forged = plan.model_copy(update={"sets": sets, "stretch_s": 100.0})
    found = check(slowed, schedule.model_copy(update={"graph": forged}))
    assert any(fault.startswith("graph.stretch_s is 100.0: expected at most") for fault in found)
