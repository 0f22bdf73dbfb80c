"""Our own plans as inputs: every exchange, wrappers at once, HSDP, graphs before and after planning."""

import json
from pathlib import Path

import pytest

from pace import InvalidJobProgram, Options, Schedule, check_order, optimize, parse_profile
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.order.inputs.plans import program_of_plans
from pace.order.inputs.senders import PlannedCall, sender_thread
from tests.api.profiles import layered_profile
from tests.sharded_graphs import backward, collective, forward, graph_of, wait

PROFILE = layered_profile(4)


def schedule(exchange: str) -> Schedule:
    """Return the schedule of a small profile."""
    match exchange:
        case "behind a norm":
            return optimize(parse_profile(json.dumps(PROFILE | {"update": "global-norm"})))
    return optimize(parse_profile(json.dumps(PROFILE)), Options.model_validate({"exchange": exchange}))


@pytest.mark.parametrize("exchange", ["allreduce", "sharded", "behind a norm"])
def test_no_plan_of_any_exchange_hangs(exchange: str, tmp_path: Path) -> None:
    """Whatever streams a device runs at once; two iterations are checked."""
    file = tmp_path / "schedule.json"
    file.write_bytes(schedule(exchange).to_json())
    for streams in ("side-by-side", "launch-order"):
        report = check_order(file, streams=streams)
        assert report.cannot_hang, report.findings
        assert report.num_operations > 0


def test_two_wrappers_at_once_need_streams_side_by_side(tmp_path: Path) -> None:
    """With one queue of launches, the order of two threads' collectives is up to chance on each rank."""
    files = []
    for exchange in ("allreduce", "sharded"):
        files.append(tmp_path / f"{exchange}.json")
        files[-1].write_bytes(schedule(exchange).to_json())
    assert check_order(files).cannot_hang
    (finding,) = check_order(files, streams="launch-order").findings
    assert finding.kind == "order"
    assert 'threads "PACE 1" and "PACE 2"' in finding.title


def test_replicas_of_a_sharded_graph(tmp_path: Path) -> None:
    """HSDP: the graph's collectives in each replica, and our all-reduces between replicas."""
    graph, ours = tmp_path / "graph.json", tmp_path / "schedule.json"
    graph.write_bytes(graph_of(backward(3)).to_json())
    ours.write_bytes(schedule("allreduce").to_json())
    report = check_order([graph, ours])
    assert report.cannot_hang, report.findings
    assert report.num_ranks == 8


@pytest.mark.parametrize("nodes", [forward(4), backward(4)], ids=["forward", "backward"])
def test_graphs_before_and_after_planning(nodes: list, tmp_path: Path) -> None:  # type: ignore[type-arg]
    """One graph for all ranks, or one for each; buckets are one collective."""
    graph = graph_of(nodes)
    plan = optimize(graph)
    file, planned = tmp_path / "graph.json", tmp_path / "schedule.json"
    file.write_bytes(graph.to_json())
    planned.write_bytes(plan.to_json())
    before = check_order(file)
    after = check_order([file, planned])
    assert before.cannot_hang
    assert after.cannot_hang
    assert after.num_operations == 4 * 2 * len(plan.groups) <= before.num_operations
    every = check_order([file, file, file, file, planned])
    assert every.cannot_hang
    assert every.num_operations == after.num_operations


def swapped() -> tuple[CollectiveGraph, CollectiveGraph]:
    """Return graphs of two ranks that wait in two groups in opposite orders."""
    first = [collective("a", "all-reduce"), wait("a", returned=True)]
    second = [collective("b", "all-reduce", group="tp"), wait("b", returned=True)]
    one, other = graph_of([*first, *second]), graph_of([*second, *first])
    two = tuple(each.model_copy(update={"ranks": 2}) for each in one.communicators)
    return one.model_copy(update={"communicators": two}), other.model_copy(update={"communicators": two})


def test_graphs_of_ranks_that_wait_for_one_another() -> None:
    """Each rank's stream waits in one group before it starts the other."""
    (finding,) = check_order(program_of_plans([], swapped())).findings
    assert finding.kind == "circle"
    assert any(line.startswith('rank 0 waits in all-reduce "a"') for line in finding.lines)


def test_what_graphs_do_not_say_is_asked_for() -> None:
    """The ranks of a group that not all ranks are in, and the graph that a schedule orders."""
    graph = graph_of(forward(2))
    with pytest.raises(InvalidJobProgram, match="--group dp=0,1"):
        program_of_plans([], [graph] * 8)
    pairs = program_of_plans([], [graph] * 4, groups={"dp": [(0, 1), (2, 3)]})
    assert pairs.groups[0].communicators == ((0, 1), (2, 3))
    following = graph.model_copy(update={"name": "the backward pass"})
    with pytest.raises(InvalidJobProgram, match="are not one graph of several ranks: check each by itself"):
        program_of_plans([], [graph, following])
    with pytest.raises(InvalidJobProgram, match="give the graph, too"):
        program_of_plans([optimize(graph)])


def test_a_gather_before_what_it_needs_waits_for_itself() -> None:
    """The thread that sends waits for a call that it sends only afterwards."""
    calls = [
        PlannedCall(op="all-gather", label="gather", size_bytes=8, dtype="float32", needs=(1,)),
        PlannedCall(op="reduce-scatter", label="scatter", size_bytes=8, dtype="float32"),
    ]
    job = {
        "groups": [{"name": "PACE", "communicators": [[0, 1]]}],
        "programs": [
            {
                "ranks": [0, 1],
                "threads": [sender_thread("PACE", calls, 1).model_dump(mode="json", exclude_none=True)],
            }
        ],
    }
    from pace import parse_job_program

    report = check_order(parse_job_program(json.dumps(job)))
    assert not report.cannot_hang
    assert any("waits for itself" in finding.title for finding in report.findings)
