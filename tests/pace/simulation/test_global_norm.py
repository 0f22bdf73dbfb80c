"""Policies where updates wait for a norm: by hand, and never ahead of what no schedule beats."""

import pytest
from hypothesis import given

from pace import Options, Profile, check, optimize
from pace.documents.collective_costs import AffineHalf
from pace.planning.lower_bound import lower_bound_s
from pace.simulation import POLICIES, make_policy, run_policy
from tests.strategies import affine, layered, profiles, properties

# Two layers: g2 of 2 bytes is ready at 1, g1 of 4 bytes at 2; forward 1 s each. A byte takes 1 s in each half
# and 2 s as an all-reduce.
HALF = AffineHalf(latency_s=0, seconds_per_byte=1)
TWO = layered([2, 4], allreduce=affine(0, 2), workers=2).replace(reduce_scatter=HALF, all_gather=HALF)
CLIPPED = TWO.replace(update="global-norm")


def window(name: str, profile: Profile, **knobs: object) -> float:
    """Return the window under a policy."""
    return run_policy(profile, make_policy(name, **knobs)).iteration_s


def test_whole_all_reduces_by_hand() -> None:
    """First in, first out: g2 1-5, g1 5-13, forward 13-15, with a norm and without."""
    assert window("fifo", TWO, barrier=False) == 15
    assert window("fifo", CLIPPED, barrier=False) == 15
    # With g1 first, from 2 to 10, and g2 until 14, forward 10-11 and 14-15: nothing is won with a norm.
    assert window("pace", TWO) <= 15
    assert window("pace", CLIPPED) == 15
    assert window("ddp-best", CLIPPED) == 15


def test_rivals_in_two_halves_by_hand() -> None:
    """RS2 1-3, RS1 3-7; a norm of 8 bytes 7-23; AG1 23-27, forward 27-28; AG2 27-29, forward 29-30."""
    assert window("dear", CLIPPED, group_bytes=1) == 30
    assert window("zero-1", CLIPPED, bucket_parameters=1) == 30
    assert window("zero-1", CLIPPED, bucket_parameters=1, overlap_gather=False) == 31
    assert window("sharded", CLIPPED) == 30
    # Without a norm the step still comes behind the last reduce-scatter.
    assert window("zero-1", TWO, bucket_parameters=1) == 14
    assert window("dear", TWO, group_bytes=1) == 14
    # One bucket: RS 2-8, norm 8-24, AG 24-30, forward 30-32.
    assert window("zero-1", CLIPPED) == 32
    # All-reduce of both 2-14, no norm to exchange, broadcasts of both 14-20, forward 20-22.
    assert window("zero-redundancy", CLIPPED) == 22


def test_our_plan_is_simulated_as_it_is_predicted() -> None:
    """With and without a norm."""
    for profile in (TWO, CLIPPED):
        predicted = optimize(profile, Options(exchange="sharded")).predicted.iteration_s
        assert window("sharded", profile) == pytest.approx(predicted)


@given(profiles())
@properties(40)
def test_no_policy_beats_the_bound_behind_a_norm(drawn: Profile) -> None:
    """The bound is that of whole all-reduces or of two halves, whichever is lower."""
    profile = drawn.replace(update="global-norm")
    bound = lower_bound_s(profile)
    for name in ("fifo", "ddp-best", "pace", "sharded"):
        assert window(name, profile) >= bound * (1 - 1e-9)
    schedule = optimize(profile, Options(exchange="allreduce"))
    assert check(profile, schedule) == []
    assert schedule.predicted.iteration_s == pytest.approx(window("pace", profile))


@pytest.mark.parametrize("name", POLICIES)
def test_a_norm_never_helps(name: str) -> None:
    """Under every policy the window with a norm is no shorter than without."""
    assert window(name, CLIPPED) >= window(name, TWO) - 1e-12
