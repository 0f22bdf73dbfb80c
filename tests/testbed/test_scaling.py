"""Profiles are fitted to the testbed without losing their shape."""

import numpy as np
import pytest

from benchmarks.harness.workload.scaling import fit
from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.errors import InvalidProfile
from pace.models import build, communication_ratio

COST = SampledAllReduce(samples=((1024.0, 0.001), (1e6, 0.04), (4e6, 0.155)))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_window_and_ratio_are_reached(ratio: float) -> None:
    """Compute lasts as asked, one all-reduce of everything `ratio` times as long."""
    profile = build("resnet50", device_tflops=5, batch=32, workers=8)
    fitted = fit(profile, workers=4, allreduce=COST, compute_s=0.5, ratio=ratio)
    assert fitted.profile.timing.compute_s == pytest.approx(0.5)
    assert communication_ratio(fitted.profile) == pytest.approx(ratio, rel=0.02)
    assert (fitted.profile.workers, fitted.profile.allreduce) == (4, COST)


def test_the_shape_stays() -> None:
    """Every op is scaled by one factor, every gradient by another, up to whole elements."""
    profile = build("vgg16", device_tflops=5, batch=32, workers=4)
    fitted = fit(profile, workers=4, allreduce=COST, compute_s=0.5, ratio=1)
    before = np.array([op.duration_s for op in profile.ops])
    after = np.array([op.duration_s for op in fitted.profile.ops])
    assert after == pytest.approx(before * fitted.time_factor)
    sizes = np.array([gradient.size_bytes for gradient in profile.gradients])
    scaled = np.array([gradient.size_bytes for gradient in fitted.profile.gradients])
    assert np.all(abs(scaled - sizes * fitted.size_factor) <= 4)
    assert np.all(scaled >= 4)
    assert np.all(scaled % 4 == 0)


def test_a_ratio_that_latency_exceeds_is_refused() -> None:
    """A network whose latency is longer than the wanted communication cannot have that ratio."""
    profile = build("vgg16", device_tflops=5, batch=32, workers=4)
    slow = AffineAllReduce(latency_s=1.0, seconds_per_byte=1e-9)
    with pytest.raises(InvalidProfile, match="latency alone"):
        fit(profile, workers=4, allreduce=slow, compute_s=0.5, ratio=0.5)
