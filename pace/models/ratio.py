"""Rescale a profile's network to a wanted ratio of communication to compute."""

from pace.collectives import Link
from pace.documents.collective_costs import AffineAllReduce, AllReduce, SampledAllReduce, TwoLevelAllReduce
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidProfile


def communication_ratio(profile: Profile) -> float:
    """Time of one all-reduce of all gradients together over the time of all compute (C0)."""
    if not profile.timing.compute_s:
        raise InvalidProfile(f'profile "{profile.name}" has no compute to compare with')
    return _together_s(profile) / profile.timing.compute_s


def with_ratio(profile: Profile, ratio: float) -> Profile:
    """Return the profile with a network that makes ``communication_ratio`` equal to `ratio`.

    Latency stays; everything that is paid per byte is scaled: bandwidth, the speed of the
    reduction, and of samples what lies above the smallest. The metadata keeps the ratio.

    Raises
    ------
    InvalidProfile
        If latency alone exceeds the wanted ratio, or no byte costs anything.
    """
    together = _together_s(profile)
    latency = _latency_s(profile)
    wanted = ratio * profile.timing.compute_s
    if together <= latency or wanted <= latency:
        raise InvalidProfile(
            f'profile "{profile.name}" cannot reach a communication/compute ratio of {ratio:g}: '
            f"one all-reduce of everything takes {together:g} s, {latency:g} s of it latency, "
            f"beside {profile.timing.compute_s:g} s of compute"
        )
    factor = (wanted - latency) / (together - latency)
    return profile.replace(
        allreduce=_scaled(profile.allreduce, factor),
        metadata={**profile.metadata, "communication_ratio": ratio},
    )


def _together_s(profile: Profile) -> float:
    return float(profile.cost(sum(gradient.size_bytes for gradient in profile.gradients)))


def _latency_s(profile: Profile) -> float:
    if isinstance(profile.allreduce, SampledAllReduce):
        return min(seconds for _, seconds in profile.allreduce.samples)
    return profile.cost.durations_s[0]


def _scaled(allreduce: AllReduce, factor: float) -> AllReduce:
    if isinstance(allreduce, AffineAllReduce):
        return allreduce.model_copy(update={"seconds_per_byte": allreduce.seconds_per_byte * factor})
    if isinstance(allreduce, SampledAllReduce):
        floor = min(seconds for _, seconds in allreduce.samples)
        samples = tuple((size, floor + (seconds - floor) * factor) for size, seconds in allreduce.samples)
        return allreduce.model_copy(update={"samples": samples})
    if isinstance(allreduce, TwoLevelAllReduce):
        intra = allreduce.intra.model_copy(update=_slower(allreduce.intra, factor))
        inter = allreduce.inter.model_copy(update=_slower(allreduce.inter, factor))
        return allreduce.model_copy(update={"intra": intra, "inter": inter})
    if isinstance(allreduce, PushPull):
        rate, at_servers = allreduce.worker_bytes_per_s, allreduce.server_bytes_per_s
        scaled = None if at_servers is None else at_servers / factor
        return allreduce.model_copy(
            update={"worker_bytes_per_s": rate / factor, "server_bytes_per_s": scaled}
        )
    return allreduce.model_copy(update=_slower(allreduce, factor))


def _slower(network: Link, factor: float) -> dict[str, float | None]:
    reduce = network.reduce_bytes_per_s
    return {
        "bandwidth_bytes_per_s": network.bandwidth_bytes_per_s / factor,
        "reduce_bytes_per_s": None if reduce is None else reduce / factor,
    }
