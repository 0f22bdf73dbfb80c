"""One point of a grid, and the profile that it stands for: what is assumed to scale how."""

import math
from dataclasses import dataclass

from pace.documents.collective_costs import (
    ON_ONE_LEVEL,
    AffineAllReduce,
    Algorithm,
    AllReduce,
    HalfCost,
    NetworkLevel,
    SampledAllReduce,
    TwoLevelAllReduce,
)
from pace.documents.cost_document import NetworkChange
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidOptions

GBPS = 1e9 / 8  # bytes a second in one Gb/s

ASSUMPTIONS = (
    "Bandwidth is that of one link, latency that of one message. A measured cost (a line or samples) is "
    "scaled like that of a ring (eq. 1 of the PACE paper); a formula is evaluated.",
    "Samples are scaled in two parts: the cost of the smallest messages is latency (an assumption if no "
    "sample is that small), and the rest depends on the bandwidth. To use a formula instead, name an "
    "algorithm.",
    "Each worker keeps its batch and its ops, whatever the number of workers (weak scaling).",
    "Durations of ops are divided by the compute speed-up, and multiplied by the batch relative to the "
    "profile's. Durations of other collectives depend on the batch only, not on bandwidth, latency, "
    "speed-up or workers.",
    "The halves of an all-reduce scale like the all-reduce. If they were not measured, they are those of "
    "its algorithm, or each is half of the measured cost.",
    "Communication slows compute by the same factor as profiled, on every network and at every scale. A "
    "longer transfer slows compute for longer.",
    "Compression divides every gradient's bytes, rounded up to whole elements; compressing takes no time.",
    "Scaling efficiency is the throughput, divided by that of the same number of single workers without "
    "all-reduces.",
    "Iterations have the durations of the profile: no stragglers, no other traffic.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLevel:
    """What the two-level algorithm needs to know of the inside of a node."""

    workers_per_node: int
    intra_gbps: float
    intra_latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One point; None keeps what was profiled.

    Attributes
    ----------
    bandwidth_gbps, latency_s
        Bandwidth of one link (between nodes) in Gbit/s, and latency of one message in seconds.
    workers
        How many train together.
    algorithm
        Algorithm of the all-reduce.
    compute_speedup
        How many times as fast ops run.
    batch
        Samples on each worker.
    compression
        How many times smaller gradients are on the network.
    """

    bandwidth_gbps: float | None = None
    latency_s: float | None = None
    workers: int | None = None
    algorithm: Algorithm | None = None
    compute_speedup: float = 1.0
    batch: float | None = None
    compression: float = 1.0


def measured_batch(profile: Profile) -> float | None:
    """Return the batch that a profile says it was measured or computed with, if it does."""
    batch = profile.metadata.get("batch")
    if isinstance(batch, bool) or not isinstance(batch, int | float) or not 0 < batch < math.inf:
        return None
    return float(batch)


def batch_unit(profile: Profile) -> str:
    """Return what a profile's batch counts, for example images or tokens; batches without a size."""
    if measured_batch(profile) is None:
        return "batches"
    unit = str(profile.metadata.get("batch_unit") or "samples")
    return unit.split(" of ")[0].split(",")[0]


def computed_at(profile: Profile, scenario: Scenario) -> Profile:
    """Return the profile with the scenario's compute and gradients; its network stays."""
    factor = 1.0
    if scenario.batch is not None:
        measured = measured_batch(profile)
        if measured is None:
            raise InvalidOptions(
                f'profile "{profile.name}" does not say in its metadata with which batch it was measured'
            )
        factor = scenario.batch / measured
    # A faster device sends no sooner; more samples are more to send.
    factors = {"compute": factor / scenario.compute_speedup, "communication": factor}
    changes: dict[str, object] = {}
    if any(each != 1.0 for each in factors.values()):
        changes["ops"] = tuple(
            op.model_copy(
                update={
                    "duration_s": op.duration_s * factors[op.kind],
                    "duration_std_s": op.duration_std_s * factors[op.kind],
                }
            )
            for op in profile.ops
        )
    if scenario.compression != 1.0:
        changes["gradients"] = tuple(
            gradient.model_copy(
                update={
                    "size_bytes": _compressed(
                        gradient.size_bytes, ELEMENT_BYTES[gradient.dtype], scenario.compression
                    )
                }
            )
            for gradient in profile.gradients
        )
    return profile.replace(**changes) if changes else profile


def _compressed(size_bytes: int, element_bytes: int, compression: float) -> int:
    return math.ceil(size_bytes / compression / element_bytes) * element_bytes


def networked_at(profile: Profile, scenario: Scenario, two_level: TwoLevel | None = None) -> Profile:
    """Return the profile with the scenario's network and workers; its ops and gradients stay.

    Raises
    ------
    InvalidOptions
        If the profile's cost does not say what would have to be kept.
    """
    workers = profile.workers if scenario.workers is None else scenario.workers
    try:
        allreduce = _allreduce_at(profile, scenario, workers, two_level)
        return profile.with_network(
            allreduce,
            workers,
            reduce_scatter=_half_at(profile, profile.reduce_scatter, scenario, workers),
            all_gather=_half_at(profile, profile.all_gather, scenario, workers),
        )
    except ValueError as error:
        raise InvalidOptions(f'profile "{profile.name}": {error}') from None


def _allreduce_at(
    profile: Profile, scenario: Scenario, workers: int, two_level: TwoLevel | None
) -> AllReduce:
    bandwidth = None if scenario.bandwidth_gbps is None else scenario.bandwidth_gbps * GBPS
    kept = scenario.algorithm is None and bandwidth is None and scenario.latency_s is None
    if kept and workers == profile.workers:
        return profile.allreduce
    if scenario.algorithm is None or scenario.algorithm == profile.allreduce.kind:
        change = NetworkChange(
            measured_workers=profile.workers,
            workers=workers,
            bandwidth_bytes_per_s=bandwidth,
            latency_s=scenario.latency_s,
        )
        return profile.allreduce.with_changes(change)
    level = _level_of(profile.allreduce, profile.workers, bandwidth, scenario.latency_s)
    if scenario.algorithm == "two-level":
        if two_level is None:
            raise ValueError("two-level all-reduce needs workers_per_node and intra_gbps: give both")
        intra = NetworkLevel(
            bandwidth_bytes_per_s=two_level.intra_gbps * GBPS, latency_s=two_level.intra_latency_s
        )
        return TwoLevelAllReduce(intra=intra, inter=level, workers_per_node=two_level.workers_per_node)
    return ON_ONE_LEVEL[scenario.algorithm](**level.model_dump())


def _half_at(profile: Profile, half: HalfCost | None, scenario: Scenario, workers: int) -> HalfCost | None:
    """Return a measured half on the scenario's network; None where an algorithm's formula takes its place."""
    if half is None or scenario.algorithm is not None:
        return None
    bandwidth = None if scenario.bandwidth_gbps is None else scenario.bandwidth_gbps * GBPS
    if bandwidth is None and scenario.latency_s is None and workers == profile.workers:
        return half
    return half.with_changes(
        NetworkChange(
            measured_workers=profile.workers,
            workers=workers,
            bandwidth_bytes_per_s=bandwidth,
            latency_s=scenario.latency_s,
        )
    )


def _level_of(
    allreduce: AllReduce, workers: int, bandwidth: float | None, latency_s: float | None
) -> NetworkLevel:
    """Return link bandwidth and message latency of a cost in any form."""
    if isinstance(allreduce, SampledAllReduce):
        ordered = sorted(allreduce.samples)
        (size, longest), floor = ordered[-1], allreduce.latency_floor_s(workers)
        slope = (longest - floor) / size
        allreduce = AffineAllReduce(latency_s=floor, seconds_per_byte=slope)
    if isinstance(allreduce, AffineAllReduce):
        change = NetworkChange(measured_workers=workers, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s)
        allreduce = allreduce.with_changes(change)
    if isinstance(allreduce, PushPull):
        return NetworkLevel(
            bandwidth_bytes_per_s=allreduce.worker_bytes_per_s if bandwidth is None else bandwidth,
            latency_s=allreduce.round_trip_s / 2 if latency_s is None else latency_s,
        )
    network = allreduce.inter if isinstance(allreduce, TwoLevelAllReduce) else allreduce
    return NetworkLevel(
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s if bandwidth is None else bandwidth,
        latency_s=network.latency_s if latency_s is None else latency_s,
        reduce_bytes_per_s=network.reduce_bytes_per_s,
    )


def profile_at(profile: Profile, scenario: Scenario, two_level: TwoLevel | None = None) -> Profile:
    """Return the profile that a scenario stands for, under ``ASSUMPTIONS``; raises InvalidOptions."""
    return networked_at(computed_at(profile, scenario), scenario, two_level)
