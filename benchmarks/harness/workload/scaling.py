"""Fits a profile to the testbed: a window of a stated length, and gradients that its network can carry.

Every duration is multiplied by one factor and every size by another, so that the model's shape stays: which
gradient is large, which is early, which op is long. Latency cannot be scaled: it is the network's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.harness.contenders import Backend
from pace.documents.collective_costs import AllReduce
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.errors import InvalidProfile
from pace.models import communication_ratio
from pace.runtime.profiler import Contention


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A profile that fits the testbed, and by what its times and sizes were multiplied.

    Attributes
    ----------
    contention
        How compute and all-reduces of each backend slow one another down, where that was measured.
    shards
        How many shards a gradient has, of which the profile holds one.
    real
        The name of the model with real compute that it was captured from; None when it is to be replayed.
    """

    profile: Profile
    time_factor: float
    size_factor: float
    real: str | None = None
    shards: int = 1
    contention: Mapping[Backend, Contention] = field(default_factory=dict)

    @property
    def whole(self) -> Profile:
        """The profile with whole gradients, as the model has them."""
        return _sized(self.profile, self.shards)


def fit(profile: Profile, *, workers: int, allreduce: AllReduce, compute_s: float, ratio: float) -> Fitted:
    """Scale a profile to `compute_s` of compute and a communication/compute ratio on a measured network.

    Raises
    ------
    InvalidProfile
        When no size reaches the ratio: latency alone is longer.
    """
    times = compute_s / profile.timing.compute_s
    timed = with_compute(profile, compute_s).replace(workers=workers, allreduce=allreduce)
    smallest, largest = 0.0, 1.0
    while communication_ratio(_sized(timed, largest)) < ratio and largest < 1e6:
        smallest, largest = largest, largest * 2
    for _ in range(40):
        middle = (smallest + largest) / 2
        if communication_ratio(_sized(timed, middle)) < ratio:
            smallest = middle
        else:
            largest = middle
    fitted = _sized(timed, largest)
    reached = communication_ratio(fitted)
    if abs(reached / ratio - 1) > 0.02:
        raise InvalidProfile(
            f'profile "{profile.name}" reaches a ratio of {reached:.3g} instead of {ratio:g} on this network:'
            " latency alone takes that long"
        )
    metadata = {
        **profile.metadata,
        "time_factor": times,
        "size_factor": largest,
        "communication_ratio": ratio,
    }
    return Fitted(profile=fitted.replace(metadata=metadata), time_factor=times, size_factor=largest)


def with_compute(profile: Profile, compute_s: float) -> Profile:
    """Return the profile with all ops' durations multiplied by one factor, so that compute takes so long."""
    times = compute_s / profile.timing.compute_s
    ops = tuple(
        op.model_copy(
            update={"duration_s": op.duration_s * times, "duration_std_s": op.duration_std_s * times}
        )
        for op in profile.ops
    )
    return profile.replace(ops=ops)


def _sized(profile: Profile, factor: float) -> Profile:
    gradients = []
    for gradient in profile.gradients:
        element = ELEMENT_BYTES[gradient.dtype]
        elements = max(round(gradient.size_bytes / element * factor), 1)
        gradients.append(gradient.model_copy(update={"size_bytes": elements * element}))
    return profile.replace(gradients=tuple(gradients))
