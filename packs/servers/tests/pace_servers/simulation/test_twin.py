"""The simulator of push and pull against its SimPy twin, event by event."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import Gradient, Op, Profile
from pace.documents.cluster import Cluster
from pace.documents.collective_costs import AffineAllReduce
from pace.simulation import make_policy
from pace.simulation.registry import policies_for
from pace_servers.planning.problem import ServersProblem
from pace_servers.simulation.inputs import partition_work
from pace_servers.simulation.run import _durations, run_server_policy
from pace_servers.simulation.traffic import ServersRules, ServersTraffic
from tests.pace_servers.planning.clusters import cluster
from tests.pace_servers.simulation.twin import Twin
from tests.strategies import properties

KNOBS: dict[str, list[dict[str, Any]]] = {
    "fifo": [{}, {"keys": "round-robin", "barrier": True}, {"keys": "parts", "partition_bytes": 7}],
    "p3": [{"partition_bytes": 4}, {"partition_bytes": 9, "credit_of": "worker"}],
    "bytescheduler": [
        {"partition_bytes": 5, "credit_bytes": 12},
        {"partition_bytes": 5, "credit_bytes": 12, "admission": "paper", "servers": "arrival"},
        {"partition_bytes": 8, "credit_bytes": 20, "credit_of": "connection"},
    ],
    "byteps": [{"partition_bytes": 6}, {"partition_bytes": 6, "scheduling": True, "credit_bytes": 10}],
    "tio": [{}, {"streams": 2}],
    "tao": [{}, {"streams": 3}],
    "pace": [{"partition_bytes": 6}, {"order": "static"}, {"order": "by-layer", "paced": True}],
}
CASES = [(name, knobs) for name in policies_for("servers") for knobs in KNOBS[name]]


@st.composite
def trained(draw: st.DrawFn) -> tuple[Profile, Cluster]:
    """Draw a chain of layers, some with several gradients, and servers; no two durations are alike."""
    layers = draw(st.integers(1, 4))
    workers = draw(st.integers(1, 3))
    seconds = st.floats(0.1, 3.0)
    ops, gradients = [], []
    for layer in range(layers):
        ops.append(Op(name=f"bwd/{layer}", duration_s=draw(seconds), stream="compute"))
        for number in range(draw(st.integers(1, 2))):
            size = draw(st.integers(0, 30))
            name = f"{layer}.{number}"
            gradients.append(Gradient(name=name, size_bytes=size, dtype="int8", producer=f"bwd/{layer}"))
    for layer in reversed(range(layers)):
        waits = tuple(g.name for g in gradients if g.producer == f"bwd/{layer}" and draw(st.booleans()))
        stream = draw(st.sampled_from(["compute", None]))
        ops.append(
            Op(
                name=f"fwd/{layer}",
                duration_s=draw(seconds),
                stream=stream,
                deps=("bwd/0",),
                waits_for=waits,
            )
        )
    profile = Profile(
        name="drawn",
        workers=workers,
        ops=tuple(ops),
        gradients=tuple(gradients),
        allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=0.1),
    )
    colocated = workers > 1 and draw(st.booleans())
    chosen = cluster(
        draw(st.integers(1, workers if colocated else 3)),
        bytes_per_s=draw(st.sampled_from([3.0, 10.0])),
        colocated=colocated,
        partition_s=draw(st.sampled_from([0.0, 0.11])),
        round_trip_s=draw(st.sampled_from([0.0, 0.23])),
        server_bytes_per_s=None if colocated else draw(st.sampled_from([None, 7.0])),
    )
    return profile, chosen


@st.composite
def any_traffic(draw: st.DrawFn, profile: Profile, servers: int) -> ServersTraffic:
    """Draw partitions, servers, priorities (ties, none) and rules, as no policy might combine them."""
    groups, part_groups, sizes = [], [], []
    for number, gradient in enumerate(profile.gradients):
        left = gradient.size_bytes
        if left:
            groups.append((number,))
        while left > 0:
            size = min(left, draw(st.integers(1, 12)))
            part_groups.append(len(groups) - 1)
            sizes.append(size)
            left -= size
    count = len(sizes)
    priority = st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, nan]), min_size=count, max_size=count)
    rules = ServersRules(
        credit_bytes=draw(st.sampled_from([0.0, 5.0, 15.0, inf])),
        overshoots=draw(st.booleans()),
        per_connection=draw(st.booleans()),
        acknowledged=draw(st.booleans()),
        until_pulled=draw(st.booleans()),
        arrival_pushes=draw(st.booleans()),
        arrival_pulls=draw(st.booleans()),
        pull_in_order=False,
        streams=draw(st.integers(1, 2)),
        step_barrier=draw(st.booleans()),
        barrier=draw(st.booleans()),
        paced=draw(st.booleans()),
    )
    return ServersTraffic(
        groups=tuple(groups),
        part_groups=np.array(part_groups, dtype=np.int64),
        server=np.array([draw(st.integers(0, servers - 1)) for _ in sizes], dtype=np.int64),
        sizes=np.array(sizes, dtype=np.int64),
        push_priority=np.array(draw(priority)),
        pull_priority=np.array(draw(priority)),
        rules=rules,
    )


class Fixed:
    """A policy that has decided already."""

    def __init__(self, traffic: ServersTraffic) -> None:
        self._traffic = traffic

    def traffic(self, profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Return the decision."""
        del profile, cluster
        return self._traffic


def compare(
    profile: Profile, chosen: Cluster, traffic: ServersTraffic, windows: int, staleness: int | None
) -> None:
    """Run both and compare every time."""
    consistency: Any = "async" if staleness is None else "sync"
    found = run_server_policy(
        profile,
        chosen,
        Fixed(traffic),
        iterations=windows,
        jitter=0.3,
        seed=5,
        consistency=consistency,
        staleness=staleness,
    )
    works = partition_work(ServersProblem.of(profile, chosen), traffic)
    twin = Twin(
        profile,
        chosen,
        traffic,
        _durations(profile, 0.3, windows, 5),
        inf if staleness is None else staleness,
        (works[0].tolist(), works[1].tolist()),
    )
    for window in range(windows):
        for worker in range(profile.workers):
            assert found.window_ends_s[window, worker] == pytest.approx(twin.ends[window, worker], rel=1e-7)
            for part in range(len(traffic.sizes)):
                expected = twin.times[window, worker, part]
                mine = [
                    found.push_starts_s[window, worker, part],
                    found.push_ends_s[window, worker, part],
                    found.pull_starts_s[window, worker, part],
                    found.pull_ends_s[window, worker, part],
                ]
                assert mine == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("name", "knobs"), CASES)
@properties(6)
@given(drawn=trained())
def test_every_policy_agrees_with_the_twin(
    name: str, knobs: dict[str, Any], drawn: tuple[Profile, Cluster]
) -> None:
    """Two windows of up to three workers, every message's four times."""
    profile, chosen = drawn
    compare(profile, chosen, make_policy(name, "servers", **knobs).traffic(profile, chosen), 2, 0)


@properties(30)
@given(data=st.data(), drawn=trained())
def test_any_rules_agree_with_the_twin(data: st.DataObject, drawn: tuple[Profile, Cluster]) -> None:
    """Credit, admission, streams, barriers and staleness in any combination."""
    profile, chosen = drawn
    traffic = data.draw(any_traffic(profile, chosen.exchange.servers))
    # Workers that hold credit until a pull may wait for one another's pushes for ever, but in async mode.
    waits = traffic.rules.step_barrier
    staleness = 0 if waits else data.draw(st.sampled_from([0, 1, None]))
    if staleness is not None:
        traffic = replace(traffic, rules=traffic.rules._replace(until_pulled=False))
    compare(profile, chosen, traffic, data.draw(st.integers(1, 3)), staleness)
