"""HSDP over two wires: bounds by hand, and held against every order of all-reduces of small windows."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.contenders import BY_NAME
from benchmarks.harness.prediction import predict, schedule_for
from benchmarks.harness.workload.two_wires import InnerTimes, bounds, with_inner
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Gradient, Op, Profile

SHARDS = 2


def window(backward_s: list[float], forward_s: list[float], sizes: list[int], latency_s: float) -> Profile:
    """Return a window of one gradient a layer, layers from the input on; a second moves 25 bytes."""
    layers = range(len(sizes))
    backward = [Op(name=f"bwd/{n}", duration_s=backward_s[n], stream="s") for n in reversed(layers)]
    forward = [Op(name=f"fwd/{n}", duration_s=forward_s[n], stream="s", waits_for=(f"w{n}",)) for n in layers]
    return Profile(
        name="window",
        workers=2,
        ops=(*backward, *forward),
        gradients=tuple(
            Gradient(name=f"w{n}", size_bytes=sizes[n], producer=f"bwd/{n}") for n in reversed(layers)
        ),
        allreduce=AffineAllReduce(latency_s=latency_s, seconds_per_byte=0.04),
    )


def test_bounds_by_hand() -> None:
    """Two layers: backward 2 s each, forward 1 s each, gathers of 0.5 s and scatters of 0.25 s.

    First both all-reduces take 4 s: the wire between replicas decides, behind one scatter and before one
    gather. Then the second layer's takes 1.92 s: the path of the first layer decides, and where compute waits
    it holds the collectives of both layers.
    """
    found = bounds(
        window([2.0, 2.0], [1.0, 1.0], [100, 100], 0.0),
        InnerTimes(gather_s=(0.5, 0.5), scatter_s=(0.25, 0.25)),
        SHARDS,
    )
    assert found.outer_s == pytest.approx(2 + 8 + 1)
    assert found.beside_s == pytest.approx(2 + 0.25 + 8 + 0.5 + 1)
    assert found.joint_s == pytest.approx(11.75)
    found = bounds(
        window([2.0, 2.0], [1.0, 1.0], [100, 48], 0.0),
        InnerTimes(gather_s=(0.5, 0.5), scatter_s=(0.25, 0.25)),
        SHARDS,
    )
    assert found.outer_s == pytest.approx(4 + 4 + 2)
    assert found.beside_s == pytest.approx(4 + 0.25 + 4 + 0.5 + 2)
    assert found.joint_s == pytest.approx(4 + 2 * 0.25 + 4 + 2 * 0.5 + 2)


seconds = st.floats(0.0, 4.0)
windows = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        *(st.lists(seconds, min_size=n, max_size=n) for _ in range(4)),
        st.lists(st.integers(10, 40).map(lambda size: 4 * size), min_size=n, max_size=n),
    )
)


@given(windows, st.floats(0.0, 1.0))
def test_no_order_beats_the_bounds(
    drawn: tuple[list[float], list[float], list[float], list[float], list[int]], latency_s: float
) -> None:
    """Every order of whole all-reduces takes the joint bound or more, and so do PACE's and FIFO's plans."""
    backward_s, forward_s, gather_s, scatter_s, sizes = drawn
    profile = window(backward_s, forward_s, sizes, latency_s)
    inner = InnerTimes(gather_s=tuple(gather_s), scatter_s=tuple(scatter_s))
    found = bounds(profile, inner, SHARDS)
    assert found.outer_s <= found.beside_s <= found.joint_s
    allreduce_s = [latency_s + 0.04 * size for size in sizes]
    for wait, bound_s in ((True, found.joint_s), (False, found.beside_s)):
        fastest = min(
            run(order, backward_s, forward_s, allreduce_s, inner, wait=wait)
            for order in permutations(range(len(sizes)))
        )
        assert fastest >= bound_s * (1 - 1e-9)
    joint = with_inner(profile, inner)
    for name in ("hsdp-fifo", "hsdp-fifo-overlap", "pace-hsdp"):
        schedule = schedule_for(BY_NAME[name], joint, 1.0)
        assert predict(BY_NAME[name], joint, 1.0, schedule, None) >= found.joint_s * (1 - 1e-9)


def run(
    order: tuple[int, ...],
    backward_s: list[float],
    forward_s: list[float],
    allreduce_s: list[float],
    inner: InnerTimes,
    *,
    wait: bool,
) -> float:
    """Return the window with whole all-reduces in this order, layer by layer.

    With `wait`, compute waits for the collectives within the replica. Otherwise those have a wire, on which
    they follow one another as they are issued: scatters, then gathers.
    """
    layers = range(len(allreduce_s))
    clock, inner_free = 0.0, 0.0
    ready: dict[int, float] = {}
    for n in reversed(layers):
        clock += backward_s[n]
        ready[n] = inner_free = max(inner_free, clock) + inner.scatter_s[n]
        if wait:
            clock = ready[n]
    outer_free, summed = 0.0, {}
    for n in order:
        summed[n] = outer_free = max(outer_free, ready[n]) + allreduce_s[n]
    for n in layers:
        issued = max(summed[n], clock) if wait else summed[n]
        inner_free = max(inner_free, issued) + inner.gather_s[n]
        clock = max(clock, inner_free) + forward_s[n]
    return clock
