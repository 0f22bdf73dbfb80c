"""Draws and lays out windows, and simulates stored profiles: plain functions from bytes to bytes.

They can need much time or memory for a large profile, so they never run in the serving process. What they
import themselves is large, too, and that process does without it.
"""

import json
import statistics
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from pace.api.errors import NotInstalled
from pace.client.documents import PolicyResult, SimulationRequest, SimulationResult
from pace.client.graph_documents import GraphWindowRequest, GraphWindowResult
from pace.client.page_documents import (
    WindowGroup,
    WindowMemory,
    WindowRequest,
    WindowResult,
    WindowRow,
)
from pace.documents.graph.collective_graph import parse_graph
from pace.documents.profile import parse_profile
from pace.documents.recorded_step import recorded_step
from pace.documents.schedule import parse_schedule

if TYPE_CHECKING:
    from pace.view.window import Window

_DIGITS = 9  # a nanosecond: more digits would only make charts larger


def timeline(profile_document: bytes, schedule_document: bytes) -> bytes:
    """Return the predicted window as a Chrome trace."""
    from pace.view.perfetto import chrome_trace

    profile = parse_profile(zlib.decompress(profile_document))
    trace = chrome_trace(profile, parse_schedule(schedule_document))
    return json.dumps(trace, separators=(",", ":")).encode()


def chart(profile_document: bytes, schedule_document: bytes) -> bytes:
    """Return the predicted window as an SVG picture."""
    try:
        import matplotlib  # noqa: F401  (is there? plot imports it)
    except ImportError:
        detail = "charts need matplotlib, which is not installed with this service (pace-scheduler[plot])"
        raise NotInstalled(detail) from None
    from pace.view.chart import plot

    profile = parse_profile(zlib.decompress(profile_document))
    schedule = parse_schedule(schedule_document)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chart.svg"
        plot(profile, schedule, path)
        return path.read_bytes()


def windows(profile_document: bytes, schedule_document: bytes | None, request: WindowRequest) -> bytes:
    """Return the JSON of a WindowResult."""
    from pace.view.window import lay_out, lay_out_policy, phases_of
    from pace.whatif.scenario import batch_unit, measured_batch

    profile = parse_profile(zlib.decompress(profile_document))
    rows = []
    if schedule_document is not None:
        rows.append(lay_out(profile, parse_schedule(schedule_document)))
    rows += [lay_out_policy(profile, name) for name in request.policies]
    replay = recorded_step(profile)
    cost = profile.allreduce.model_dump(mode="json")
    bandwidth = cost.get("bandwidth_bytes_per_s")
    batch = measured_batch(profile)
    result = WindowResult(
        profile_id=profile.sha256,
        name=profile.name,
        workers=profile.workers,
        update=profile.update,
        cost=cost["kind"],
        bandwidth_gbps=None if bandwidth is None else bandwidth * 8e-9,
        latency_s=cost.get("latency_s"),
        compute_s=float(profile.timing.compute_s),
        recorded_s=None if replay is None else statistics.median(replay.recorded_s),
        batch=None if batch is None else batch * profile.workers,
        batch_unit=None if batch is None else batch_unit(profile),
        op_names=tuple(op.name for op in profile.ops),
        op_phases=phases_of(profile),
        rows=tuple(_window_row(row) for row in rows),
    )
    return result.model_dump_json().encode()


def graph_windows(graph_document: bytes, schedule_document: bytes, request: GraphWindowRequest) -> bytes:
    """Return the JSON of a GraphWindowResult."""
    from pace.simulation import make_policy
    from pace.simulation.graph.run import run_graph_policy, run_schedule
    from pace.view.graph_window import lay_out_graph

    policies = {name: make_policy(name, "graph") for name in request.policies}
    graph, schedule = parse_graph(zlib.decompress(graph_document)), parse_schedule(schedule_document)
    budget = schedule.graph_plan.budget_bytes
    runs = {"schedule": run_schedule(graph, schedule)}
    runs |= {name: run_graph_policy(graph, policy) for name, policy in policies.items()}
    shown = [lay_out_graph(graph, run, name, budget, by_bucket=True) for name, run in runs.items()]
    result = GraphWindowResult(
        graph_sha256=graph.sha256,
        name=graph.name,
        compute_s=schedule.predicted.compute_s,
        num_nodes=len(graph.nodes),
        num_collectives=sum(node.collective is not None for node in graph.nodes),
        rows=tuple(_window_row(window, own_ops=True) for window in shown),
    )
    return result.model_dump_json().encode()


def _window_row(window: "Window", *, own_ops: bool = False) -> WindowRow:
    moved, memory = window.transfers, window.memory
    return WindowRow(
        op_phases=window.op_phases if own_ops else (),
        memory=None
        if memory is None
        else WindowMemory(
            starts_s=tuple(memory.starts_s.round(_DIGITS).tolist()),
            in_use_bytes=tuple(memory.in_use_bytes.tolist()),
            budget_bytes=memory.budget_bytes,
        ),
        name=window.name,
        iteration_s=window.iteration_s,
        barrier=window.barrier,
        lanes=window.lanes,
        op_lanes=window.op_lanes,
        op_starts_s=tuple(window.times.starts_s.round(_DIGITS).tolist()),
        op_ends_s=tuple(window.times.ends_s.round(_DIGITS).tolist()),
        links=window.links,
        groups=tuple(
            WindowGroup(
                name=group.name,
                gradients=group.gradients,
                size_bytes=group.size_bytes,
                critical=group.critical,
            )
            for group in window.cargo
        ),
        transfer_links=tuple(each.link for each in moved),
        transfer_groups=tuple(each.cargo for each in moved),
        transfer_bytes=tuple(each.size_bytes for each in moved),
        transfer_starts_s=tuple(round(each.start_s, _DIGITS) for each in moved),
        transfer_ends_s=tuple(round(each.end_s, _DIGITS) for each in moved),
    )


def simulation(profile_document: bytes, request: SimulationRequest) -> bytes:
    """Return the JSON of a SimulationResult."""
    from pace.kinds.comparison import simulate
    from pace.simulation import SimulationOptions

    profile = parse_profile(zlib.decompress(profile_document))
    options = SimulationOptions(iterations=request.iterations, jitter=request.jitter, seed=request.seed)
    results = tuple(
        PolicyResult(policy=name, iteration_s=each.iteration_s, iterations_s=each.iterations_s)
        for name, each in simulate(profile, request.policies, options).items()
    )
    return SimulationResult(profile_id=profile.sha256, results=results).model_dump_json().encode()
