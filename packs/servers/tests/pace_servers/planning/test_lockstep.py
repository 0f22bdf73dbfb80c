"""Planned pushes and pulls of equal workers: worked by hand, conserved, and one server equals two links."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.flow_shop.lockstep import LockstepTimes, SharedLinks, send_in_lockstep
from pace.solver.flow_shop.two_links import TwoLinks, serve_by_rank, serve_in_order
from pace_servers.checker import host_shares
from tests.solver.flow_shop.two_links import drawn_links
from tests.strategies import eighths, properties


@properties(100)
@given(instance=drawn_links(8, ratio=st.just(1.0)), in_order=st.booleans())
def test_one_server_is_two_links_in_a_row(instance: TwoLinks, in_order: bool) -> None:
    """One connection at the link's rate: the two-link problem, by rank or in order."""
    sent = np.flatnonzero(instance.push)
    part = TwoLinks(
        ready=instance.ready[sent],
        push=instance.push[sent],
        pull=instance.pull[sent],
        tail=instance.tail[sent],
    )
    every = np.arange(len(part))
    expected = serve_in_order(part, every) if in_order else serve_by_rank(part, every)
    links = SharedLinks(num_servers=1, bytes_per_s=1.0, connection_bytes_per_s=1.0)
    found = send_in_lockstep(
        links,
        ready=part.ready,
        sizes=part.push,
        server=np.zeros(len(part), dtype=np.int64),
        in_order=in_order,
    )
    assert found.push_starts.tolist() == expected.push_starts.tolist()
    assert found.pull_ends.tolist() == expected.pull_ends.tolist()


def test_two_servers_share_a_link() -> None:
    """Two bytes to each of two servers at 1 byte/s: both take 4 s up, and then 4 s down."""
    links = SharedLinks(num_servers=2, bytes_per_s=1.0, connection_bytes_per_s=1.0, latency_s=1.0)
    both = send_in_lockstep(links, ready=np.zeros(2), sizes=np.array([2, 2]), server=np.array([0, 1]))
    assert both.push_ends.tolist() == [4.0, 4.0]
    assert both.pull_starts.tolist() == [5.0, 5.0]
    assert both.pull_ends.tolist() == [9.0, 9.0]
    # The second is ready at 1 s: the first has 1 byte left, sent by 3 s; the second has 1 left, sent by 4 s.
    later = send_in_lockstep(
        links, ready=np.array([0.0, 1.0]), sizes=np.array([2, 2]), server=np.array([0, 1])
    )
    assert later.push_ends.tolist() == [3.0, 4.0]


def test_servers_on_the_workers_hosts_share_both_directions() -> None:
    """Two workers with a server each: a push to one server and a pull from the other share two links.

    The first push ends at 2 s. From then on its pull and the other push halve each other's rate: the pull is
    back at 6 s; the push has 1 byte left and ends at 7 s, and its pull at 10 s.
    """
    links = SharedLinks(num_servers=2, bytes_per_s=2.0, connection_bytes_per_s=1.0, colocated_workers=2)
    found = send_in_lockstep(
        links, ready=np.array([0.0, 2.0]), sizes=np.array([2, 3]), server=np.array([0, 1])
    )
    assert found.push_ends.tolist() == [2.0, 7.0]
    assert found.pull_ends.tolist() == [6.0, 10.0]


def test_one_server_beside_a_worker_sends_while_it_receives() -> None:
    """The only other worker pushes over one direction and pulls over the other: nothing is shared."""
    links = SharedLinks(num_servers=1, bytes_per_s=2.0, connection_bytes_per_s=1.0, colocated_workers=2)
    found = send_in_lockstep(links, ready=np.zeros(2), sizes=np.array([2, 2]), server=np.array([0, 0]))
    assert found.push_ends.tolist() == [2.0, 4.0]
    assert found.pull_ends.tolist() == [4.0, 6.0]


def test_a_connection_that_waits_for_its_turn_idles() -> None:
    """The part planned first is ready last: in order nothing moves before it, else the other goes ahead."""
    links = SharedLinks(num_servers=1, bytes_per_s=1.0, connection_bytes_per_s=1.0)
    ready, sizes, server = np.array([3.0, 0.0]), np.array([1, 1]), np.array([0, 0])
    assert send_in_lockstep(
        links, ready=ready, sizes=sizes, server=server, in_order=True
    ).push_starts.tolist() == [
        3.0,
        4.0,
    ]
    assert send_in_lockstep(links, ready=ready, sizes=sizes, server=server).push_starts.tolist() == [3.0, 0.0]


def rates_of_messages(
    links: SharedLinks, server: IntArray, pushed: BoolArray, pulled: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return the rates of pushes and of pulls under way; where hosts share links, by the checker's code."""
    if not links.colocated_workers:
        fair = [
            min(links.connection_bytes_per_s, links.bytes_per_s / max(side.sum(), 1))
            for side in (pushed, pulled)
        ]
        return np.full(len(server), fair[0]), np.full(len(server), fair[1])
    both = set(server[pushed]) & set(server[pulled])
    num_both = len(both)
    shares = host_shares(
        int(pushed.sum()) - num_both, int(pulled.sum()) - num_both, num_both, links.colocated_workers
    )
    host = links.connection_bytes_per_s * (links.colocated_workers - 1)
    rates = [
        np.array([host * shares.get((way, number in both), 0.0) for number in server.tolist()])
        for way in ("push", "pull")
    ]
    return rates[0], rates[1]


def carried(times: LockstepTimes, links: SharedLinks, server: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the bytes that the links carry of every push and pull between its start and its end."""
    messages = [(times.push_starts, times.push_ends), (times.pull_starts, times.pull_ends)]
    moments = np.unique(np.concatenate([side for message in messages for side in message]))
    amounts = (np.zeros(len(server)), np.zeros(len(server)))
    for start, end in pairwise(moments):
        under_way = [(starts <= start) & (ends >= end) for starts, ends in messages]
        for amount, active, rate in zip(
            amounts, under_way, rates_of_messages(links, server, *under_way), strict=True
        ):
            amount[active] += rate[active] * (end - start)
            assert np.bincount(server[active], minlength=1).max(initial=0) <= 1
    return amounts


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[SharedLinks, FloatArray, IntArray, IntArray, bool]:
    """Draw links and parts."""
    servers = draw(st.integers(1, 3))
    count = draw(st.integers(0, 8))
    links = SharedLinks(
        num_servers=servers,
        bytes_per_s=1.0,
        connection_bytes_per_s=draw(st.sampled_from([0.25, 0.5, 1.0])),
        overhead_bytes=draw(st.sampled_from([0.0, 0.5])),
        latency_s=draw(eighths(1)),
        colocated_workers=draw(st.sampled_from([0, max(servers, 2), servers + 2])),
    )
    ready = np.array([draw(eighths(3)) for _ in range(count)])
    sizes = np.array([draw(st.integers(1, 4)) for _ in range(count)], dtype=np.int64)
    server = np.array([draw(st.integers(0, servers - 1)) for _ in range(count)], dtype=np.int64)
    return links, ready, sizes, server, draw(st.booleans())


@properties(100)
@given(drawn=exchanges())
def test_bytes_are_conserved(drawn: tuple[SharedLinks, FloatArray, IntArray, IntArray, bool]) -> None:
    """Between its start and its end every message gets its bytes; pushes come first."""
    links, ready, sizes, server, in_order = drawn
    times = send_in_lockstep(links, ready=ready, sizes=sizes, server=server, in_order=in_order)
    assert (times.push_starts >= ready).all()
    assert (times.pull_starts >= times.push_ends + links.latency_s).all()
    for amount in carried(times, links, server):
        assert amount == pytest.approx(sizes + links.overhead_bytes, rel=1e-9)
    if in_order:
        for number in range(links.num_servers):
            on_it = server == number
            assert (np.diff(times.push_starts[on_it]) >= 0).all()
            assert (np.diff(times.pull_starts[on_it]) >= 0).all()


def test_other_sizes_may_come_back() -> None:
    """Sparse pushes, dense pulls."""
    links = SharedLinks(num_servers=1, bytes_per_s=1.0, connection_bytes_per_s=1.0, overhead_bytes=1.0)
    found = send_in_lockstep(
        links,
        ready=np.zeros(1),
        sizes=np.array([1]),
        server=np.zeros(1, dtype=np.int64),
        pull_sizes=np.array([4]),
    )
    assert (found.push_ends[0], found.pull_ends[0]) == (2.0, 7.0)
