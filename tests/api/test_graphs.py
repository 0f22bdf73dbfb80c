"""Graphs of sharded training over HTTP: schedules, windows with memory, and what-ifs."""

import json
from typing import Any

import pytest

from pace import Options, optimize
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.schedule import parse_schedule
from pace.simulation import make_policy
from pace.simulation.graph.run import run_graph_policy
from pace.whatif.graphs import GraphGrid, what_if_graph
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.sharded_graphs import backward, graph_of

pytestmark = ON_SQLITE

GRAPH = graph_of(backward(4))


def document(graph: CollectiveGraph = GRAPH) -> dict[str, Any]:
    """Return a graph as a request has it."""
    return json.loads(graph.to_json())  # type: ignore[no-any-return]


def planned(service: Caller, **options: Any) -> dict[str, Any]:
    """Return the stored schedule of the graph."""
    answer = service.http.post("/v1/graph-schedules", json={"graph": document(), **options})
    assert answer.status_code == 201, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_the_schedule_is_the_librarys(service: Caller) -> None:
    """With a budget and without; it is stored together with its graph."""
    free = planned(service)
    assert parse_schedule(json.dumps(free["schedule"])) == optimize(GRAPH)
    budget = free["schedule"]["predicted"]["peak_bytes"] - 1
    within = planned(service, memory_bytes=budget)
    assert parse_schedule(json.dumps(within["schedule"])) == optimize(GRAPH, Options(memory_bytes=budget))
    assert within["id"] != free["id"]
    again = service.http.get(f"/v1/graph-schedules/{free['id']}")
    assert again.json() == free
    brought = service.http.get(f"/v1/graph-schedules/{free['id']}/graph")
    assert brought.json() == document()
    assert (
        service.http.get(
            f"/v1/graph-schedules/{free['id']}/graph", headers={"If-None-Match": brought.headers["etag"]}
        ).status_code
        == 304
    )
    listed = service.http.get("/v1/graph-schedules").json()["items"]
    assert {item["id"] for item in listed} == {free["id"], within["id"]}
    assert service.http.delete(f"/v1/graph-schedules/{free['id']}").status_code == 204
    for path in ("", "/graph"):
        assert service.http.get(f"/v1/graph-schedules/{free['id']}{path}").status_code == 404


def test_windows_have_wires_and_memory(service: Caller) -> None:
    """A row for the schedule and for each policy; each says what it holds at its peak."""
    made = planned(service, memory_bytes=10**6)
    answer = service.http.post(
        "/v1/simulations/graph-windows", json={"schedule_id": made["id"], "policies": ["as-traced", "fsdp2"]}
    )
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert [row["name"] for row in result["rows"]] == ["schedule", "as-traced", "fsdp2"]
    runs = {name: run_graph_policy(GRAPH, make_policy(name, "graph")) for name in ("as-traced", "fsdp2")}
    predicted = made["schedule"]["predicted"]
    expected = [
        (predicted["iteration_s"], predicted["peak_bytes"]),
        *((run.iteration_s, run.memory.peak_bytes) for run in runs.values()),
    ]
    for row, (iteration_s, peak_bytes) in zip(result["rows"], expected, strict=True):
        assert row["iteration_s"] == pytest.approx(iteration_s)
        assert max(row["memory"]["in_use_bytes"]) == peak_bytes
        assert row["memory"]["budget_bytes"] == 10**6
        assert set(row["op_phases"]) <= {"compute", "copy"}
        carried = [name for group in row["groups"] for name in group["gradients"]]
        collectives = [node.name for node in GRAPH.nodes if node.collective is not None]
        assert sorted(carried) == sorted(collectives)
    assert result["num_collectives"] == 8


def test_what_ifs_are_the_librarys(service: Caller) -> None:
    """Cells of both axes, also those in which no plan fits."""
    grid = GraphGrid(
        ranks=(2, 8), bandwidth_factor=(0.5, 2.0), memory_gb=(1e-7, 1.0), policies=("as-traced", "pace")
    )
    asked = {
        "ranks": grid.ranks,
        "bandwidth_factor": grid.bandwidth_factor,
        "memory_gb": grid.memory_gb,
        "policies": grid.policies,
    }
    answer = service.http.post("/v1/graph-what-if", json={"graph": document(), "grid": asked})
    assert answer.status_code == 201, answer.text
    expected = json.loads(json.dumps(what_if_graph(GRAPH, grid).to_document()))
    assert answer.json()["what_if"] == expected
    assert answer.json()["num_cells"] == 16
    assert any(cell["iteration_s"] is None for cell in expected["cells"])


def test_what_is_wrong_is_named(service: Caller) -> None:
    """The node, the budget, the policy or the id at fault."""
    unwaited = document()
    unwaited["nodes"] = [node for node in unwaited["nodes"] if node["name"] != "wait scatter 3"]
    asked = service.http.post
    made = planned(service)
    windows = "/v1/simulations/graph-windows"
    for path, body, status, words in (
        ("/v1/graph-schedules", {"graph": unwaited}, 422, 'collective "scatter 3" has no wait'),
        ("/v1/graph-schedules", {"graph": document(), "memory_bytes": 1}, 422, "at node"),
        ("/v1/graph-schedules", {"graph": document(), "memory_bytes": 0}, 422, "memory_bytes"),
        (
            "/v1/graph-what-if",
            {"graph": document(), "grid": {"policies": ["ddp"]}},
            422,
            'policy "ddp"',
        ),
        (
            "/v1/graph-what-if",
            {"graph": document(), "grid": {"ranks": [3], "policies": ["pace"]}},
            422,
            "do not divide into 3 shards",
        ),
        ("/v1/graph-what-if", {"graph": document(), "grid": {"ranks": [1]}}, 422, "ranks"),
        (windows, {"schedule_id": made["id"], "policies": ["ddp"]}, 422, 'policy "ddp"'),
        (windows, {"schedule_id": "0" * 32}, 404, "no graph schedule"),
    ):
        answer = asked(path, json=body)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"], answer.text
