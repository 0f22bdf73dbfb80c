"""The predicted window laid out in time, and the Chrome trace of it."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from pace import Options, Profile, optimize
from pace.view.perfetto import MICROSECONDS, chrome_trace
from pace.view.window import lay_out
from tests.strategies import affine, layered, options, profiles, properties


@given(profiles(), options())
@properties(30)
def test_the_window_ends_when_it_is_predicted_to(profile: Profile, chosen: Options) -> None:
    """Running every op as early as its gradients allow gives iteration_s, whatever the target and oracle."""
    schedule = optimize(profile, chosen)
    times = lay_out(profile, schedule).times
    arrivals = [segment.end_s for segment in schedule.transfers]
    # A gradient that nobody waits for ends the window too, with a tail of 0.
    last = max([0.0, *times.ends_s.tolist(), *arrivals])
    assert last == pytest.approx(schedule.predicted.iteration_s, rel=1e-9)


@given(profiles(), options())
@properties(40)
def test_ops_wait_for_their_predecessors_stream_and_gradients(profile: Profile, chosen: Options) -> None:
    """No op starts before what it depends on has ended."""
    schedule = optimize(profile, chosen)
    times = lay_out(profile, schedule).times
    number = {op.name: at for at, op in enumerate(profile.ops)}
    arrival: dict[str, float] = defaultdict(float)
    for segment in schedule.transfers:
        for name in schedule.groups[segment.group].tensors:
            arrival[name] = max(arrival[name], segment.end_s)
    streams: dict[str, float] = {}
    for at, op in enumerate(profile.ops):
        assert times.ends_s[at] == times.starts_s[at] + op.duration_s
        assert all(times.starts_s[at] >= times.ends_s[number[name]] for name in op.deps)
        assert all(times.starts_s[at] >= arrival[name] for name in op.waits_for)
        if op.stream is not None:
            assert times.starts_s[at] >= streams.get(op.stream, 0.0)
            streams[op.stream] = times.ends_s[at]


@given(profiles(), options())
@properties(30)
def test_the_trace_is_well_formed(profile: Profile, chosen: Options) -> None:
    """Slices of a lane never overlap, every op and segment has one, flows pair up, nothing owes bytes."""
    schedule = optimize(profile, chosen)
    trace = json.loads(json.dumps(chrome_trace(profile, schedule), allow_nan=False))
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(profile.ops) + len(schedule.transfers)
    lanes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0
        lanes[event["tid"]].append(event)
    slack = 1e-9 * schedule.predicted.iteration_s * MICROSECONDS
    for lane in lanes.values():
        lane.sort(key=lambda event: (event["ts"], event["ts"] + event["dur"]))
        for first, second in pairwise(lane):
            assert second["ts"] >= first["ts"] + first["dur"] - slack
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert set(lanes) <= named
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    assert len(flows) == len(schedule.transfers)
    for flow in flows.values():
        kinds = "".join(event["ph"] for event in flow)
        assert kinds in ("sf", "stf")
        times = [event["ts"] for event in flow]
        assert times == sorted(times) or max(a - b for a, b in pairwise(times)) <= slack
    waiting = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert all(number >= 0 for number in waiting)
    assert not waiting or waiting[-1] == 0


def test_a_trace_by_hand() -> None:
    """One layer: bwd 0-1, its 4 bytes on the network 1-6, fwd 6-7, and an arrow from one to the next."""
    profile = layered([4], allreduce=affine(1, 1))
    trace = chrome_trace(profile, optimize(profile))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["tid"], event["ts"], event["dur"]) for event in slices] == [
        ("bwd/1", 0, 0.0, 1e6),
        ("fwd/1", 0, 6e6, 1e6),
        ("group 0", 1, 1e6, 5e6),
    ]
    arrows = [
        (event["ph"], event["tid"], event["ts"]) for event in trace["traceEvents"] if event["ph"] in "stf"
    ]
    assert arrows == [("s", 0, 1e6), ("t", 1, 1e6), ("f", 0, 6e6)]
    counters = [(event["ts"], event["args"]["bytes"]) for event in trace["traceEvents"] if event["ph"] == "C"]
    assert counters == [(1e6, 4), (6e6, 0)]
    assert trace["otherData"] == {"profile_sha256": profile.sha256}
