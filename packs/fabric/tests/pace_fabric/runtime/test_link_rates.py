"""Which link a slow transfer tells about."""

from pathlib import Path

import pytest

from pace_fabric.documents.network import FabricNetwork
from pace_fabric.runtime.scheduling.link_rates import Direction, MeasuredState, SeenTransfer
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.scheduling.transfer_queue import TransferQueue
from tests.pace_fabric.runtime.processes import Fabric

FULL, SLOW = 1e7, 1e6
NAMES = ("h0", "h1", "h2", "server")


def _state() -> MeasuredState:
    hosts = [{"name": name, "up_bytes_per_s": FULL, "down_bytes_per_s": FULL} for name in NAMES]
    return MeasuredState(FabricNetwork.model_validate({"hosts": hosts, "server": "server"}))


def _slow(state: MeasuredState, source: str, target: str, at_s: float) -> None:
    """Have a pair seen slow twice in a row."""
    state.observe(_seen(source, target, SLOW), at_s)
    state.observe(_seen(source, target, SLOW), at_s + 0.1)


def _seen(source: str, target: str, rate: float, **others: float) -> SeenTransfer:
    return SeenTransfer(
        source=source, target=target, size_bytes=round(rate), seconds=1.0, waited_s=1.0, **others
    )


def test_a_link_that_was_fast_a_moment_ago_is_not_blamed() -> None:
    """h1 sent fast to the server, then h0 does not: h0's way up is slow, once it is seen again."""
    state = _state()
    state.observe(_seen("h1", "server", FULL), 1.0)
    state.observe(_seen("h0", "server", SLOW), 2.0)
    assert state.rates("h0", 2.0)[0] == FULL
    state.observe(_seen("h0", "server", SLOW), 2.1)
    assert state.rates("h0", 2.0)[0] == SLOW
    assert state.rates("server", 2.0)[1] == FULL


def test_a_wrong_blame_is_taken_back_by_the_next_transfer() -> None:
    """Of two links that nothing is known of either is blamed; once that one is fast, the other one is."""
    state = _state()
    _slow(state, "h0", "h1", 1.0)
    state.observe(_seen("h0", "server", FULL), 2.0)
    _slow(state, "h0", "h1", 3.0)
    assert state.rates("h0", 3.0)[0] == FULL
    assert state.rates("h1", 3.0)[1] == SLOW


def test_a_full_link_says_nothing_of_the_other() -> None:
    """Two senders share the server's way down: neither of their ways up is slow."""
    state = _state()
    state.observe(_seen("h0", "server", 0.5 * FULL, other_down=0.5 * FULL), 1.0)
    state.observe(_seen("h1", "server", 0.5 * FULL, other_down=0.5 * FULL), 1.0)
    assert [state.rates(name, 1.0)[0] for name in ("h0", "h1")] == [FULL, FULL]
    assert state.rates("server", 1.0)[1] == FULL


def test_what_a_transfer_was_held_to_is_no_news() -> None:
    """A transfer that was paced to a tenth and had it; one that had less than that tells about a link."""
    state = _state()
    state.observe(_seen("h0", "server", SLOW, most=SLOW), 1.0)
    assert state.rates("h0", 1.0)[0] == state.rates("server", 1.0)[1] == FULL
    state.observe(_seen("h1", "server", FULL), 2.0)
    state.observe(_seen("h0", "server", 0.5 * SLOW, most=SLOW), 3.0)
    state.observe(_seen("h0", "server", 0.5 * SLOW, most=SLOW), 3.1)
    assert state.rates("h0", 3.0)[0] == pytest.approx(0.5 * SLOW)


def test_a_late_reader_does_not_make_a_link_fast() -> None:
    """The receiver found all at once what the scheduler waited two seconds for."""
    state = _state()
    seen = SeenTransfer(
        source="h0", target="server", size_bytes=20_000_000, seconds=0.01, waited_s=2.0, other_up=0.0
    )
    state.observe(seen, 1.0)
    assert state.rates("h0", 1.0)[0] == FULL


def test_others_may_start_as_soon_as_a_transfer_is_seen_to_be_slow() -> None:
    """h0 is ten times slower than believed: after two notices h1 gets what h0 leaves of the server."""
    rates: dict[str, float | None] = {}
    queue = TransferQueue(
        _state(),
        lambda transfer: rates.__setitem__(transfer.source, transfer.rate),
        lambda transfer: rates.__setitem__(transfer.source, transfer.rate),
    )
    ended: list[bool] = []
    first = queue.submit("h0", "server", "a", 10_000_000, ended.append)
    queue.submit("h1", "server", "b", 10_000_000, ended.append)
    queue.pump(0.0)
    assert rates == {"h0": None}
    queue.hear(first, 250_000, 250_000, 0.25, 0.25)
    queue.hear(first, 500_000, 250_000, 0.25, 0.5)
    queue.pump(0.5)
    assert rates == {"h0": None, "h1": pytest.approx(FULL - SLOW)}


def test_the_next_transfer_starts_just_before_the_first_one_ends() -> None:
    """A transfer of a second still has the link after 0.9 s; after 0.98 s the next one starts."""
    started: list[str] = []
    queue = TransferQueue(_state(), lambda transfer: started.append(transfer.source), lambda _transfer: None)
    for source in ("h0", "h1", "h2"):
        queue.submit(source, "server", source, 10_000_000, lambda _arrived: None)
    queue.pump(0.0)
    assert queue.next_handover_s(0.0) == pytest.approx(0.97)
    queue.pump(0.9)
    assert started == ["h0"]
    queue.pump(0.98)
    assert started == ["h0", "h1"]


def test_noise_on_a_narrow_link_is_not_blamed_on_a_wide_one() -> None:
    """h1's way down is known to be narrow: a little less than that says nothing of the server's way up."""
    state = _state()
    state.observe(_seen("server", "h0", FULL), 1.0)
    _slow(state, "server", "h1", 2.0)
    state.observe(_seen("h2", "h1", 0.8 * SLOW), 3.0)
    state.observe(_seen("server", "h1", 0.7 * SLOW), 4.0)
    assert state.rates("server", 4.0)[0] == FULL
    assert state.rates("h1", 4.0)[1] == pytest.approx(0.7 * SLOW)


def test_idle_links_are_probed_and_found_slow(tmp_path: Path) -> None:
    """Nobody trains, and still every way up and down of three hosts is measured; probes are no traffic."""
    state = _state()
    options = SchedulerOptions(tick_s=0.02, probe_s=0.5)
    with Fabric(tmp_path, 3, options, state=state) as fabric:
        ends: list[tuple[str, Direction]] = [(n, "up") for n in NAMES] + [(n, "down") for n in NAMES]
        fabric.wait(lambda _status: all(state.known_s(*end) > 0 for end in ends))
        status = fabric.status()
        assert {host["received_bytes"] for host in status["hosts"].values()} == {0}
        assert fabric.push(fabric.client(0)).wait().outcome == "committed"


def test_a_link_that_carries_all_that_is_asked_is_asked_for_more() -> None:
    """The server's way up was taken for slow: paced transfers that have their pace raise it."""
    state = _state()
    _slow(state, "server", "h1", 1.0)
    state.observe(_seen("h0", "h1", FULL), 2.0)
    _slow(state, "server", "h1", 3.0)
    for second in range(4, 40):
        rate = state.rates("server", float(second))[0]
        half = _seen("server", "h2", 0.5 * rate, most=0.5 * rate, other_up=0.5 * rate)
        state.observe(half, float(second))
    assert state.rates("server", 40.0)[0] == FULL


def test_plans_learn_how_late_transfers_are() -> None:
    """Every transfer ends 40 ms after its plan, as messages take their time: plans soon say so."""
    planned: list[float] = []
    queue = TransferQueue(
        _state(), lambda transfer: planned.append(transfer.planned_s), lambda _transfer: None
    )
    for second in range(100):
        now = float(second)
        number = queue.submit("h0", "server", "a", 1_000_000, lambda _arrived: None, planned_s=now + 0.1)
        queue.pump(now)
        queue.hear(number, 1_000_000, 1_000_000, 0.1, now + 0.14)
        queue.arrive(number)
    assert planned[0] == pytest.approx(0.1)
    assert planned[-1] - 99.1 == pytest.approx(0.04, abs=0.003)
