"""One workload on one layout, before it is measured, and what its profile is for each backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.harness.contenders import Backend
from benchmarks.harness.layouts import Layout
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.training.trainer import Workload
from benchmarks.harness.workload import real
from benchmarks.harness.workload.replay import FloatArray, expected_weights, norm_to_clip_to, renamed
from benchmarks.harness.workload.scaling import Fitted
from benchmarks.harness.workload.two_wires import InnerTimes, TwoWireBounds, bounds, with_inner
from pace.documents.cluster import Cluster
from pace.documents.collective_costs import AllReduce, SampledHalf
from pace.documents.profile import Profile
from pace.runtime.profiler import Contention


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What communication costs on a layout's hosts; schedules, predictions and bounds are made from it.

    Attributes
    ----------
    allreduce
        Over each backend.
    halves
        What a reduce-scatter and an all-gather cost over each backend, where that was measured.
    cluster
        Links to servers, where there are servers.
    """

    allreduce: Mapping[str, AllReduce] = field(default_factory=dict)
    halves: Mapping[str, tuple[SampledHalf, SampledHalf]] = field(default_factory=dict)
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One workload on one layout, before it is measured.

    Attributes
    ----------
    clip
        Whether gradients are clipped by their global norm.
    paced
        Whether connections to servers are paced.
    inner
        For how long compute waits for collectives within a replica, where the model is sharded.
    """

    on: Sequence[Host]
    layout: Layout
    model: str
    ratio: float
    fitted: Fitted
    costs: Costs
    clip: bool = False
    paced: bool = False
    inner: InnerTimes | None = None

    def __post_init__(self) -> None:
        assert (self.inner is None) == (self.fitted.shards == 1)
        if self.clip:
            assert self.fitted.real is None, "what clipping makes of real compute has no reference"
            profile = self.fitted.profile.replace(update="global-norm")
            object.__setattr__(self, "fitted", replace(self.fitted, profile=profile))

    @property
    def workload(self) -> Workload:
        """What all contenders train."""
        fitted = self.fitted
        return Workload(
            profile=fitted.whole,
            size_factor=fitted.size_factor,
            real=fitted.real,
            max_norm=norm_to_clip_to(fitted.profile) if self.clip else None,
        )

    @property
    def pacing_bytes_per_s(self) -> float | None:
        """The rate of a paced connection; None without pacing."""
        if self.costs.cluster is None or not self.paced:
            return None
        return self.costs.cluster.exchange.pace_bytes_per_s(self.layout.workers)

    def priced(self, backend: Backend) -> Profile:
        """Return the profile with a backend's costs."""
        profile, costs = self.fitted.profile, self.costs
        contention = self.fitted.contention.get(backend, Contention())
        profile = profile.replace(
            allreduce=costs.allreduce[backend],
            compute_slowdown=contention.compute_slowdown,
            load=contention.load,
        )
        if backend in costs.halves:
            first, second = costs.halves[backend]
            profile = profile.replace(reduce_scatter=first, all_gather=second)
        return profile

    def named(self, profile: Profile) -> Profile:
        """Return a profile with the names and units of the model that is trained."""
        if self.fitted.real is None:
            profile = renamed(profile)
        return profile if self.inner is None else with_inner(profile, self.inner)

    def two_wire_bounds(self) -> TwoWireBounds | None:
        """Return the bounds of a sharded model; None for others."""
        if self.inner is None:
            return None
        return bounds(self.priced("torch"), self.inner, self.fitted.shards)

    def expected(self, iterations: int) -> FloatArray:
        """Return the weights after so many iterations."""
        fitted, workers = self.fitted, self.layout.workers
        if fitted.real is None:
            return expected_weights(
                fitted.whole, workers=workers, iterations=iterations, max_norm=self.workload.max_norm
            )
        order = [gradient.name for gradient in fitted.profile.gradients]
        return real.expected_weights(fitted.real, order, workers=workers, iterations=iterations)
