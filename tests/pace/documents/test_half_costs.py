"""What the halves of an all-reduce cost: formulas, measured halves, other networks, and in the profile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import Profile, parse_profile
from pace.checker.collective_times import half_s
from pace.documents.collective_costs import (
    AffineAllReduce,
    AffineHalf,
    AllReduce,
    HalvingDoublingAllReduce,
    NetworkLevel,
    RingAllReduce,
    SampledAllReduce,
    SampledHalf,
    TreeAllReduce,
    TwoLevelAllReduce,
)
from pace.documents.cost_document import NetworkChange
from pace.errors import InvalidProfile
from pace.whatif import Scenario, profile_at
from tests.strategies import affine, layered, profiles, properties

LINK = {"bandwidth_bytes_per_s": 10.0, "latency_s": 1.0, "reduce_bytes_per_s": 100.0}


@pytest.mark.parametrize(
    ("document", "workers", "scatter", "gather"),
    [
        # Ring, 4 workers, 40 bytes: 3 messages, 30 bytes sent in 3 s, 30 added in 0.3 s.
        (RingAllReduce(**LINK), 4, 6.3, 6.0),
        # Halving: 2 rounds, 30 bytes.
        (HalvingDoublingAllReduce(**LINK), 4, 5.3, 5.0),
        # Five workers: one more is folded in with all 40 bytes.
        (HalvingDoublingAllReduce(**LINK), 5, 10.7, 10.0),
        # Tree: reduce 2 + 8 + 0.8, scatter 2 + 3; gather 2 + 3, broadcast 2 + 8.
        (TreeAllReduce(**LINK), 4, 15.8, 15.0),
        # Two rings of two: 1 message and 20 bytes each.
        (
            TwoLevelAllReduce(intra=NetworkLevel(**LINK), inter=NetworkLevel(**LINK), workers_per_node=2),
            4,
            6.4,
            6,
        ),
        (AffineAllReduce(latency_s=1.0, seconds_per_byte=0.1), 4, 2.5, 2.5),
        (SampledAllReduce(samples=((20, 1.0), (40, 3.0))), 4, 1.5, 1.5),
    ],
)
def test_halves_by_hand(document: AllReduce, workers: int, scatter: float, gather: float) -> None:
    """Forty bytes: the formulas by hand, and of a measured all-reduce half each."""
    first, second = document.halves(workers)
    assert (float(first(40)), float(second(40))) == pytest.approx((scatter, gather))


@given(profiles(), st.integers(1, 500))
@properties(40)
def test_the_checker_prices_halves_alike(profile: Profile, size: int) -> None:
    """Both sides have formulas of their own."""
    first, second = profile.half_costs
    assert float(first(size)) == pytest.approx(half_s(profile, "reduce-scatter", size))
    assert float(second(size)) == pytest.approx(half_s(profile, "all-gather", size))


def test_a_measured_half_on_another_network() -> None:
    """Half a ring: twice the bandwidth halves the volume's time, and latency is that of n - 1 messages."""
    half = AffineHalf(latency_s=3.0, seconds_per_byte=0.075)  # 4 workers, 1 s a message, 10 bytes a second
    change = NetworkChange(measured_workers=4, bandwidth_bytes_per_s=20.0, latency_s=2.0)
    assert half.with_changes(change) == AffineHalf(latency_s=6.0, seconds_per_byte=0.0375)
    samples = SampledHalf(samples=((1, 3.0), (101, 10.5)))
    changed = samples.with_changes(NetworkChange(measured_workers=4, workers=2))
    # One message instead of three, half a buffer instead of three quarters.
    assert [seconds for _, seconds in changed.samples] == pytest.approx([1.0, 6.0])


def test_what_if_takes_measured_halves_along() -> None:
    """They stay, scale, or give way to the formula of the algorithm that is named."""
    half = AffineHalf(latency_s=3.0, seconds_per_byte=0.075)
    profile = layered([4], allreduce=affine(6.0, 0.15)).replace(reduce_scatter=half, all_gather=half)
    assert profile_at(profile, Scenario(compute_speedup=2.0)).reduce_scatter == half
    slower = profile_at(profile, Scenario(bandwidth_gbps=4e-8)).all_gather
    assert slower == AffineHalf(latency_s=3.0, seconds_per_byte=0.15)
    assert profile_at(profile, Scenario(algorithm="ring")).reduce_scatter is None


def test_a_profile_keeps_its_hash_until_it_says_something_new() -> None:
    """Defaults are not hashed; the document of a norm and measured halves is read back as it was."""
    profile = layered([4, 2], allreduce=affine(1.0, 0.1))
    new = profile.replace(
        update="global-norm",
        reduce_scatter=AffineHalf(latency_s=1.0, seconds_per_byte=0.1),
        all_gather=SampledHalf(samples=((8, 1.0), (16, 1.5))),
    )
    assert parse_profile(profile.to_json()).sha256 == profile.sha256
    assert "update" not in profile.to_json().decode()
    assert parse_profile(new.to_json()) == new
    assert len({profile.sha256, new.sha256, profile.replace(update="global-norm").sha256}) == 3


def test_a_half_without_end_is_refused() -> None:
    """As an all-reduce is."""
    profile = layered([16], allreduce=affine(1.0, 0.1))
    text = profile.replace(all_gather=AffineHalf(latency_s=1.0, seconds_per_byte=1.0)).to_json().decode()
    with pytest.raises(InvalidProfile, match="an all-gather of 16 bytes"):
        parse_profile(text.replace('"seconds_per_byte": 1.0', '"seconds_per_byte": 1e17'))
