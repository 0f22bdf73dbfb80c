"""Asks the functions of the workers everything that a request can ask for, in many variants."""

import json
import zlib
from typing import Any

from pace.api.questions.all_kinds import KINDS, answer_question
from pace.api.workers.drawings import graph_windows, simulation, windows
from pace.client.documents import SimulationRequest
from pace.client.graph_documents import GraphWindowRequest
from pace.client.page_documents import WindowRequest
from pace.documents.options import Options
from pace.documents.profile import parse_profile
from pace.simulation import POLICIES
from tests.api.profiles import layered_profile


def ask_everything() -> None:
    """Ask; answers are for other tests."""
    profile = layered_profile(12)
    document = _packed(profile)
    for options in (
        Options(),
        Options(fusion="paper"),
        Options(oracle="lp", slot_s=0.001),
        Options(oracle="lp", slot_s=0.001, lp_solver="pulp"),
        Options(max_segment_bytes=4000, risk="p95"),
        Options(exchange="allreduce"),
        Options(exchange="sharded"),
        Options(framework="ddp"),
        Options(framework="horovod"),
    ):
        answer_question("schedule", document, options.model_dump_json())
    answer_question("schedule", _packed(profile | {"update": "global-norm"}), Options().model_dump_json())
    sha256 = parse_profile(json.dumps(profile)).sha256
    asked = SimulationRequest(profile_id=sha256, policies=tuple(POLICIES), iterations=2, jitter=0.1)
    simulation(document, asked)
    windows(
        document,
        answer_question("schedule", document, Options().model_dump_json()),
        WindowRequest(profile_id=sha256),
    )
    grid = {"bandwidth_gbps": [1.0, 10.0], "workers": [2, 8], "latency_s": [0.0, 1e-4]}
    answer_question("what-if", document, json.dumps(grid | {"target_efficiency": 0.9}))
    example: dict[str, Any] = KINDS["graph"].example["graph"]
    graph = _packed(example)
    planned = answer_question("graph", graph, json.dumps({"memory_bytes": 10**9}))
    policies = ("as-traced", "fsdp2", "inductor", "zero-3", "blocks")
    graph_windows(graph, planned, GraphWindowRequest(schedule_id="0" * 32, policies=policies))
    grid = {
        "ranks": [2, 8],
        "bandwidth_factor": [1.0, 2.0],
        "memory_gb": [1e-3, 1.0],
        "policies": [*policies, "pace"],
    }
    answer_question("graph-grid", graph, json.dumps(grid))
    program = _packed(KINDS["order"].example["program"])
    for streams in ("side-by-side", "launch-order"):
        answer_question("order", program, json.dumps({"streams": streams, "launch_slots": 2}))


def _packed(document: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(document).encode())
