"""Windows laid out in time: they end when they are predicted to, and carry every gradient in full."""

import pytest
from hypothesis import given

from pace import Options, Profile, optimize
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions
from pace.planning.sharded.optimize import optimize_sharded
from pace.simulation import make_policy, run_policy
from pace.view.window import Window, lay_out, lay_out_policy, phases_of
from tests.strategies import affine, layered, profiles, properties

POLICIES = ("fifo", "ddp", "bytescheduler", "p3", "dear")


def two_layers() -> Profile:
    """Return two ops back, two forward, and two gradients of 1,000 and 3,000 bytes at 1 us a byte."""
    backward_s, forward_s = [0.001, 0.002], [0.001, 0.001]
    allreduce = affine(0.0, 1e-6)
    return layered([3000, 1000], backward_s=backward_s, forward_s=forward_s, allreduce=allreduce)


def ends(window: Window) -> float:
    """Return when the last op and the last transfer have ended."""
    return max([0.0, *map(float, window.times.ends_s), *(moved.end_s for moved in window.transfers)])


def test_fifo_worked_out_by_hand() -> None:
    """Gradient 2 goes from 1 to 4 ms, 1 from 4 to 5 ms; behind the barrier forward runs from 5 to 7 ms."""
    window = lay_out_policy(two_layers(), "fifo")
    assert window.barrier
    assert (window.lanes, window.links) == (("compute",), ("network",))
    assert window.op_lanes == (0, 0, 0, 0)
    assert window.times.starts_s.tolist() == pytest.approx([0, 0.001, 0.005, 0.006])
    assert window.times.ends_s.tolist() == pytest.approx([0.001, 0.003, 0.006, 0.007])
    assert [moved.start_s for moved in window.transfers] == pytest.approx([0.001, 0.004])
    assert [moved.end_s for moved in window.transfers] == pytest.approx([0.004, 0.005])
    assert [moved.size_bytes for moved in window.transfers] == [3000, 1000]
    assert [window.cargo[moved.cargo].gradients for moved in window.transfers] == [("g2",), ("g1",)]
    assert phases_of(two_layers()) == ("backward", "backward", "forward", "forward")


def test_a_name_of_no_policy_is_refused() -> None:
    """As everywhere."""
    with pytest.raises(InvalidOptions, match="hope"):
        lay_out_policy(two_layers(), "hope")


@given(profiles())
@properties(40)
def test_policies_end_when_they_are_simulated_to(profile: Profile) -> None:
    """The op times that are drawn belong to the iteration time that is written beside them."""
    for name in POLICIES:
        window = lay_out_policy(profile, name)
        assert ends(window) == pytest.approx(window.iteration_s, rel=1e-6, abs=1e-12), name
        assert window.iteration_s == pytest.approx(run_policy(profile, make_policy(name)).iteration_s)
        moved = {gradient for each in window.transfers for gradient in window.cargo[each.cargo].gradients}
        assert {gradient.name for gradient in profile.gradients if gradient.size_bytes} <= moved


@given(profiles())
@properties(30)
def test_schedules_of_every_exchange_end_when_they_are_predicted_to(profile: Profile) -> None:
    """All-reduces and shards, with and without a norm; every byte of a schedule's groups is drawn once."""
    made: list[tuple[Profile, Schedule]] = [(profile, optimize(profile, Options()))]
    for rule in ("per-gradient", "global-norm"):
        ruled = profile.replace(update=rule)
        if (halves := optimize_sharded(ruled)) is not None:
            made.append((ruled, halves))
    read = {name for op in profile.ops for name in op.waits_for}
    all_read = bool(read) and read == {gradient.name for gradient in profile.gradients}
    for ruled, schedule in made:
        window = lay_out(ruled, schedule)
        predicted_s = pytest.approx(schedule.predicted.iteration_s, rel=1e-6, abs=1e-12)
        if schedule.exchange == "sharded" and not all_read:
            # A plan of halves counts neither gathers of parameters that no op reads nor a norm of nothing.
            limit_s = schedule.predicted.iteration_s * (1 + 1e-6) + 1e-12
            assert max(window.times.ends_s.tolist(), default=0.0) <= limit_s
        else:
            assert ends(window) == predicted_s
        drawn = dict.fromkeys(range(len(window.cargo)), 0)
        for moved in window.transfers:
            drawn[moved.cargo] += moved.size_bytes
        assert list(drawn.values()) == [cargo.size_bytes for cargo in window.cargo]
