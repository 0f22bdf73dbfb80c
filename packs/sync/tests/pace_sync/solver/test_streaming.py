"""Streaming outer steps: the steady state, the bound and its attainment, and the program for one link."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace_sync.solver.streaming.capacity import StreamingLinks, fill_windows, least_period
from pace_sync.solver.streaming.one_link import send_in_order
from pace_sync.solver.streaming.steady_state import SteadyState, StreamingSends, steady_state
from tests.pace_sync.solver.plans_of_small_models import best_period


def sends(
    transfers: list[float],
    at: list[int],
    delays: list[int],
    *,
    steps: int,
    links: list[int] | None = None,
    step_s: float = 1.0,
) -> StreamingSends:
    """Return fragments."""
    return StreamingSends(
        transfer_s=np.array(transfers),
        link=np.array(links or [0] * len(transfers)),
        send_step=np.array(at),
        delay_steps=np.array(delays),
        step_s=step_s,
        period_steps=steps,
    )


def played(given_: StreamingSends, periods: int) -> float:
    """Return the mean period of a long run, played step by step."""
    now, free, due, ends = 0.0, {0: 0.0, 1: 0.0}, dict[int, list[float]](), list[float]()
    for step in range(1, periods * given_.period_steps + 1):
        now += given_.step_s
        for each in range(len(given_.transfer_s)):
            if given_.send_step[each] == step % given_.period_steps:
                link = int(given_.link[each])
                free[link] = max(free[link], now) + float(given_.transfer_s[each])
                due.setdefault(step + int(given_.delay_steps[each]), []).append(free[link])
        now = max(now, *due.pop(step, [now]))
        ends.append(now)
    half = periods // 2 * given_.period_steps
    return (ends[-1] - ends[-1 - half]) / (periods // 2)


@pytest.mark.parametrize(
    ("given_", "period"),
    [
        (sends([], [], [], steps=4), 4.0),
        (sends([1.5], [0], [0], steps=4), 5.5),  # waited for at once
        (sends([1.5], [0], [1], steps=4), 4.5),
        (sends([1.5], [0], [2], steps=4), 4.0),
        (sends([3.0, 3.0], [0, 2], [2, 2], steps=4), 6.0),  # the link is never idle
        (sends([2.0, 2.0], [0, 0], [1, 1], steps=4), 7.0),  # both within one step
        (sends([2.0, 2.0], [0, 0], [1, 1], steps=4, links=[0, 1]), 5.0),
    ],
)
def test_periods_by_hand(given_: StreamingSends, period: float) -> None:
    """Small cases, computed by hand."""
    assert steady_state(given_).period_s == pytest.approx(period)


fragments = st.integers(1, 5).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 30).map(lambda each: each / 8), min_size=count, max_size=count),
        st.lists(st.integers(0, 5), min_size=count, max_size=count),
        st.lists(st.integers(0, 5), min_size=count, max_size=count),
        st.lists(st.integers(0, 1), min_size=count, max_size=count),
    )
)


@settings(max_examples=60, deadline=None)
@given(fragments)
def test_the_steady_state_is_where_runs_end_up(
    made: tuple[list[float], list[int], list[int], list[int]],
) -> None:
    """A long run, played step by step, has the same mean period, and stated times repeat."""
    transfers, at, delays, links = made
    given_ = sends(transfers, at, delays, steps=6, links=links)
    found = steady_state(given_)
    assert found.period_s == pytest.approx(played(given_, 400), rel=5e-3)
    repeats(given_, found)


def repeats(given_: StreamingSends, found: SteadyState) -> None:
    """Assert that the stated times can be those of every period."""
    reached = np.concatenate([[0.0], np.cumsum(found.wait_s + given_.step_s)])
    assert reached[-1] == pytest.approx(found.period_s)
    for each in range(len(given_.transfer_s)):
        assert found.start_s[each] >= reached[given_.send_step[each]] - 1e-9
        turns, due = divmod(int(given_.send_step[each] + given_.delay_steps[each]), given_.period_steps)
        assert found.end_s[each] <= turns * found.period_s + reached[due] + found.wait_s[due] + 1e-9


cases = st.tuples(
    st.lists(st.integers(1, 24).map(lambda each: each / 8), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3]),
)


@settings(max_examples=25, deadline=None)
@given(cases)
def test_one_link_is_optimal(case: tuple[list[float], int, float]) -> None:
    """Over all orders, the dynamic program finds what enumeration of all send steps finds."""
    sizes, steps, call = case
    for delay in range(steps):
        judged = best_period(sizes, [call], [1.0], step_s=1.0, steps=steps, delay=delay, together=False)
        found = min(
            send_in_order(call + np.array(order), np.ones(steps), delay).period_s
            for order in permutations(sizes)
        )
        assert found == pytest.approx(judged, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40).map(lambda each: each / 8), min_size=1, max_size=7),
    st.integers(1, 8),
    st.integers(0, 7),
)
def test_times_of_one_link_are_what_they_say(transfers: list[float], steps: int, delay: int) -> None:
    """The steady state is no longer than the program says, and delays keep the limit."""
    delay = min(delay, steps - 1)
    times = send_in_order(np.array(transfers), np.ones(steps), delay)
    order = sorted(times.sequence, key=lambda place: times.send_steps[place])
    found = steady_state(
        sends(
            [transfers[place] for place in order],
            [times.send_steps[place] for place in order],
            [times.delays[place] for place in order],
            steps=steps,
        )
    )
    assert max(times.delays) <= delay
    assert found.period_s <= times.period_s + 1e-9


problems = st.builds(
    lambda calls, rates, steps, delay: StreamingLinks(
        call_s=np.array(calls[: len(rates)]),
        seconds_per_byte=np.array(rates),
        step_s=1.0,
        period_steps=steps,
        most_delay=min(delay, steps - 1),
        most_fragments=10**9,
    ),
    st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.5]), min_size=3, max_size=3),
    st.lists(st.sampled_from([1.0, 0.5, 3.0]), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(0, 6),
)


@settings(max_examples=50, deadline=None)
@given(problems, st.sampled_from([0.2, 3.0, 8.0, 20.0, 60.0]))
def test_windows_attain_the_bound(links: StreamingLinks, size: float) -> None:
    """Theorem 2: for bytes that may be cut anywhere, the bound is the optimum, over any number of links."""
    bound = least_period(links, size)
    windows = fill_windows(links, size, bound)
    assert sum(window.size_bytes for window in windows) == pytest.approx(size)
    assert all(window.delay_steps <= links.most_delay for window in windows)
    found = steady_state(
        StreamingSends(
            transfer_s=np.array(
                [
                    links.call_s[each.link] + each.size_bytes * links.seconds_per_byte[each.link]
                    for each in windows
                ]
            ),
            link=np.array([each.link for each in windows]),
            send_step=np.array([each.send_step for each in windows]),
            delay_steps=np.array([each.delay_steps for each in windows]),
            step_s=1.0,
            period_steps=links.period_steps,
        )
    )
    assert found.period_s == pytest.approx(bound, rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(cases, st.booleans())
def test_no_plan_is_below_the_bound(case: tuple[list[float], int, float], two: bool) -> None:
    """Every way to group whole layers, to choose links, and to send them is at least the bound."""
    sizes, steps, call = case
    rates = [1.0, 2.0][: 1 + two]
    calls = [call, 0.1][: 1 + two]
    for delay in range(steps):
        links = StreamingLinks(
            call_s=np.array(calls),
            seconds_per_byte=np.array(rates),
            step_s=1.0,
            period_steps=steps,
            most_delay=delay,
            most_fragments=len(sizes),
        )
        judged = best_period(sizes, calls, rates, step_s=1.0, steps=steps, delay=delay, together=True)
        assert least_period(links, sum(sizes)) <= judged + 1e-9
