"""Max-min fair sharing: worked by hand, and its defining property."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver.arrays import FloatArray
from pace_servers.simulation.kernel import share
from tests.strategies import properties


def rates(flows: list[tuple[int, int]], capacity: list[float], most: float = np.inf) -> FloatArray:
    """Return the rates of flows, each on two links."""
    found = np.zeros(len(flows))
    first, second = (np.array([flow[side] for flow in flows], dtype=np.int64) for side in (0, 1))
    links = len(capacity)
    scratch = np.zeros(links), np.zeros(links, dtype=np.int64), np.zeros(links, dtype=np.bool_)
    share(np.arange(len(flows)), len(flows), first, second, np.array(capacity), most, found, *scratch)
    return found


def test_what_one_link_cannot_use_others_get() -> None:
    """Three flows on a link of 3, one held to 1/2 by another link: the others get 5/4 each."""
    assert rates([(0, 1), (0, 2), (0, 3)], [3.0, 0.5, 9.0, 9.0]).tolist() == [0.5, 1.25, 1.25]
    assert rates([(0, 1), (0, 2)], [3.0, 9.0, 9.0], most=1.0).tolist() == [1.0, 1.0]


@properties(100)
@given(
    flows=st.lists(st.tuples(st.integers(0, 2), st.integers(3, 5)), min_size=1, max_size=8),
    capacity=st.lists(st.floats(0.5, 10), min_size=6, max_size=6),
)
def test_every_flow_has_a_full_link_on_which_none_is_faster(
    flows: list[tuple[int, int]], capacity: list[float]
) -> None:
    """That is what max-min fair means; no link carries more than it can."""
    found = rates(flows, capacity)
    used = [sum(r for r, flow in zip(found, flows, strict=True) if at in flow) for at in range(6)]
    assert all(u <= c * (1 + 1e-9) for u, c in zip(used, capacity, strict=True))
    for rate, flow in zip(found, flows, strict=True):
        bottlenecks = [
            link
            for link in flow
            if used[link] >= capacity[link] * (1 - 1e-9)
            and all(r <= rate * (1 + 1e-9) for r, other in zip(found, flows, strict=True) if link in other)
        ]
        assert bottlenecks
    assert found.min() == pytest.approx(
        min(capacity[link] / sum(link in flow for flow in flows) for link in {x for f in flows for x in f})
    )
