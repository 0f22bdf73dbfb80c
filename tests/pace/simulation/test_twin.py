"""The simulator against its SimPy twin, event by event."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import Op, Profile
from pace.documents.collective_costs import AffineAllReduce
from pace.simulation import POLICIES, make_policy, run_policy
from pace.simulation.run import carry
from pace.simulation.traffic import Rules, Traffic
from tests.pace.simulation.twin import run_twin
from tests.strategies import affine, eighths, layered, profiles, properties

KNOBS: dict[str, list[dict[str, Any]]] = {
    "fifo": [{}, {"barrier": False}],
    "horovod": [
        {},
        {"fusion_bytes": 16, "cycle_s": 0.125, "negotiation_s": 0.25},
        {"fusion_bytes": 0, "cycle_s": 0.0, "barrier": False},
        {"fusion_bytes": 64, "cycle_s": 0.375, "blocking": True},
    ],
    "ddp": [{}, {"first_bytes": 4, "bucket_bytes": 16}, {"bucket_bytes": 8, "barrier": False}],
    "mg-wfbp": [{}, {"barrier": False}],
    "tio": [{}, {"barrier": True}],
    "tao": [{}, {"barrier": True}],
    "p3": [{}, {"partition_bytes": 4}],
    "bytescheduler": [
        {},
        {"partition_bytes": 4, "credit_bytes": 0, "admission": "paper"},
        {"partition_bytes": 8, "credit_bytes": 16},
        {"partition_bytes": 8, "credit_bytes": 20, "admission": "paper", "barrier": True},
    ],
    "dear": [{}, {"group_bytes": 16}],
    "ddp-best": [{}],
    "zero-1": [{}, {"bucket_parameters": 8}, {"bucket_parameters": 8, "overlap_gather": False}],
    "zero-redundancy": [{"bucket_bytes": 16}, {"as_bucket_view": True}],
    "paper": [{}, {"preemption": "free"}],
    "pace": [{}, {"preemption": "free"}],
    "sharded": [{}],
}
CASES = [(name, knobs) for name, several in KNOBS.items() for knobs in several]


def test_every_policy_is_judged() -> None:
    """A policy that is added has to be added here."""
    assert tuple(KNOBS) == POLICIES


@pytest.mark.parametrize(("name", "knobs"), CASES, ids=[f"{name}-{knobs}" for name, knobs in CASES])
def test_the_twin_sees_the_same_events(name: str, knobs: dict[str, Any]) -> None:
    """Ready times, every transfer's start and end, every arrival and the window, on random profiles."""

    @properties(25)
    @given(drawn=profiles(), norm=st.booleans())
    def agree(drawn: Profile, norm: bool) -> None:
        profile = drawn.replace(update="global-norm") if norm else drawn
        policy = make_policy(name, **knobs)
        sender = policy.prepare(profile)
        window = run_policy(profile, policy).windows[0]
        twin = run_twin(profile, window.traffic, sender.rules)
        assert twin.ready_s == profile.timing.ready_s.tolist()
        np.testing.assert_allclose(window.starts_s, twin.starts_s, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(window.ends_s, twin.ends_s, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(window.arrival_s, twin.arrival_s, rtol=1e-12, atol=1e-12)
        assert window.iteration_s == pytest.approx(twin.iteration_s, rel=1e-12, abs=1e-12)
        # Nothing is sent before it exists.
        for gradient, carriers in enumerate(window.traffic.carriers):
            if name != "dear":
                assert (window.starts_s[carriers] >= profile.timing.ready_s[gradient]).all()

    agree()


@st.composite
def traffics(draw: st.DrawFn) -> tuple[Traffic, Rules]:
    """Draw transfers and rules that no policy combines so; ties and free transfers are frequent."""
    count = draw(st.integers(0, 9))
    chain = [draw(st.integers(-1, number - 1)) for number in range(count)]
    shuffled = draw(st.permutations(range(count)))
    after = np.full(count, -1, dtype=np.int64)
    for number, before in enumerate(chain):
        if before >= 0:
            after[shuffled[number]] = shuffled[before]
    in_order = draw(st.booleans())
    # Strictly in order, what goes after another must not come before it.
    priority = np.empty(count)
    priority[list(shuffled)] = range(count)
    if not in_order:
        priority = np.array([float(draw(st.integers(0, 3))) for _ in range(count)])
    traffic = Traffic(
        release_s=np.array([draw(eighths(2)) for _ in range(count)]),
        duration_s=np.array([draw(eighths(1)) for _ in range(count)]),
        size_bytes=np.array([draw(st.integers(0, 5)) for _ in range(count)], dtype=np.int64),
        priority=priority,
        after=after,
        carriers=(),
    )
    rules = Rules(
        credit_bytes=float(draw(st.integers(0, 9))), overshoots=draw(st.booleans()), in_order=in_order
    )
    return traffic, rules


@properties(120)
@given(drawn=traffics())
def test_the_network_serves_as_the_twin_does(drawn: tuple[Traffic, Rules]) -> None:
    """Credit, overshoot, strict order and precedence, in any combination; exact, for times are eighths."""
    traffic, rules = drawn
    starts, ends = carry(traffic, rules)
    twin = run_twin(NOTHING, traffic, rules)
    assert starts.tolist() == twin.starts_s
    assert ends.tolist() == twin.ends_s


@properties(120)
@given(drawn=traffics())
def test_the_network_keeps_its_rules(drawn: tuple[Traffic, Rules]) -> None:
    """One transfer at a time, none early, no more credit than there is."""
    traffic, rules = drawn
    starts, ends = carry(traffic, rules)
    assert (ends - starts == traffic.duration_s).all()
    assert (starts >= traffic.release_s).all()
    followers = np.flatnonzero(traffic.after >= 0)
    assert (starts[followers] >= ends[traffic.after[followers]]).all()
    order = np.lexsort((ends, starts))
    assert (starts[order][1:] >= ends[order][:-1]).all()
    if rules.in_order:
        by_priority = np.argsort(traffic.priority, kind="stable")
        assert (np.diff(starts[by_priority]) >= 0).all()
    twin = run_twin(NOTHING, traffic, rules)
    largest = int(traffic.size_bytes.max(initial=0))
    extra = largest if rules.overshoots else 0
    assert twin.most_in_flight <= max(rules.credit_bytes + extra, largest)


NOTHING = Profile(
    name="nothing",
    workers=2,
    ops=(Op(name="bwd/a", duration_s=0.0),),
    gradients=(),
    allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=0.0),
)


def test_a_transfer_released_as_its_predecessor_ends_goes_once() -> None:
    """Both at 1 s: the network once handed such a transfer over twice and lost another."""
    traffic = Traffic(
        release_s=np.array([0.0, 1.0, 0.0]),
        duration_s=np.array([1.0, 1.0, 1.0]),
        size_bytes=np.array([1, 1, 1]),
        priority=np.array([0.0, 1.0, 2.0]),
        after=np.array([-1, 0, -1]),
        carriers=(),
    )
    starts, _ = carry(traffic, Rules(credit_bytes=0.0))
    assert starts.tolist() == [0.0, 1.0, 2.0]


def test_a_worked_window() -> None:
    """Two layers, worked by hand: FIFO sends the upper layer first, so the lower waits for it.

    Backward 1 s each; 2 s a gradient. The upper layer's goes 1-3, the lower's 3-5; forward needs the lower
    first: 5-6, 6-7. With a barrier the same, and so with any order: the upper is alone at 1 s.
    Halves of 1 s (partition) let the lower go 2-4: forward 4-5, the upper's second half 4-5, then 5-6.
    """
    profile = layered([8, 8], allreduce=affine(0.0, 0.25))
    assert run_policy(profile, make_policy("fifo")).iteration_s == 7.0
    assert run_policy(profile, make_policy("tao")).iteration_s == 7.0
    halves = make_policy("bytescheduler", partition_bytes=4, credit_bytes=0)
    window = run_policy(profile, halves).windows[0]
    assert window.starts_s.tolist() == [1.0, 4.0, 2.0, 3.0]
    assert window.arrival_s.tolist() == [5.0, 4.0]
    assert window.iteration_s == 6.0
    assert run_policy(profile, make_policy("pace")).iteration_s == 6.0
