"""Rescaling a profile's network to a wanted ratio of communication to compute."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.documents.collective_costs import (
    AffineAllReduce,
    AllReduce,
    HalvingDoublingAllReduce,
    NetworkLevel,
    RingAllReduce,
    SampledAllReduce,
    TreeAllReduce,
    TwoLevelAllReduce,
)
from pace.errors import InvalidProfile
from pace.models import build, communication_ratio, with_ratio

FAST = NetworkLevel(bandwidth_bytes_per_s=5e10, latency_s=5e-6)
SLOW = NetworkLevel(bandwidth_bytes_per_s=1e9, latency_s=2e-5, reduce_bytes_per_s=1e10)
NETWORKS: list[AllReduce] = [
    AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9),
    SampledAllReduce(samples=((1024, 4e-4), (1024, 5e-4), (2**20, 3e-3), (2**26, 0.1), (2**25, 0.12))),
    RingAllReduce(bandwidth_bytes_per_s=1.25e9, latency_s=2e-5),
    RingAllReduce(bandwidth_bytes_per_s=1.25e9, latency_s=2e-5, reduce_bytes_per_s=1e10),
    TreeAllReduce(bandwidth_bytes_per_s=1.25e9, latency_s=2e-5),
    HalvingDoublingAllReduce(bandwidth_bytes_per_s=1.25e9, latency_s=2e-5),
    TwoLevelAllReduce(intra=FAST, inter=SLOW, workers_per_node=4),
]
PROFILE = build("vgg16", device_tflops=8.0, batch=64, workers=8)


@settings(deadline=None)  # the first example imports SciPy
@given(network=st.sampled_from(NETWORKS), ratio=st.floats(0.1, 10.0))
def test_the_wanted_ratio_is_reached(network: AllReduce, ratio: float) -> None:
    """For every form of cost; ops and gradients stay, and the smallest message keeps its latency."""
    profile = PROFILE.replace(allreduce=network)
    scaled = with_ratio(profile, ratio)
    assert communication_ratio(scaled) == pytest.approx(ratio, rel=1e-9)
    assert scaled.ops == profile.ops
    assert scaled.fingerprint == profile.fingerprint
    assert scaled.metadata["communication_ratio"] == ratio


def test_the_ratio_is_the_cost_of_one_large_allreduce_over_compute() -> None:
    """VGG16's 553 MB over a ring of 8 at 10 Gb/s, worked out by hand."""
    expected = (0.3e-3 + 138_357_544 * 4 * 1.75 / 1.25e9) / PROFILE.timing.compute_s
    assert communication_ratio(PROFILE) == pytest.approx(expected, rel=1e-12)


def test_latency_stays() -> None:
    """Only what is paid per byte is scaled."""
    assert float(with_ratio(PROFILE, 3.0).cost(1)) == pytest.approx(0.3e-3, rel=1e-4)


def test_a_ratio_below_the_latency_is_refused() -> None:
    """No bandwidth makes an all-reduce faster than its latency."""
    with pytest.raises(InvalidProfile, match="cannot reach a communication/compute ratio of 1e-06"):
        with_ratio(PROFILE, 1e-6)


@pytest.mark.parametrize("workers", [1, 8])
def test_a_network_that_costs_nothing_for_a_byte_is_refused(workers: int) -> None:
    """There is nothing to scale."""
    free = PROFILE.replace(workers=workers, allreduce=AffineAllReduce(latency_s=1e-3, seconds_per_byte=0.0))
    with pytest.raises(InvalidProfile, match="cannot reach"):
        with_ratio(free, 1.0)


def test_no_compute_has_no_ratio() -> None:
    """A profile without compute is refused by name."""
    idle = PROFILE.replace(ops=tuple(op.model_copy(update={"duration_s": 0.0}) for op in PROFILE.ops))
    with pytest.raises(InvalidProfile, match='"vgg16-b64-w8" has no compute'):
        communication_ratio(idle)
