"""The grids: values along every axis, checked before anything is simulated."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from pace.documents.base import repeated
from pace.documents.collective_costs import Algorithm
from pace.documents.options import JOB, NETWORK, DescribedOptions, For
from pace.documents.profile import MOST_WORKERS, Profile
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.simulation import make_policy
from pace.whatif.scenario import Scenario, TwoLevel, measured_batch, networked_at

# Outermost first: changing ops costs most, changing the network least.
AXES = (
    "compute_speedup",
    "batch",
    "compression",
    "algorithm",
    "workers",
    "latency_s",
    "bandwidth_gbps",
)

SMALLEST = 1e-9
# No network or machine exceeds it, and below it no cost overflows.
MOST = 1e9

Positive = Annotated[float, Field(ge=SMALLEST, le=MOST)]
NotNegative = Annotated[float, Field(ge=0, le=MOST)]
AtLeastOne = Annotated[float, Field(ge=1, le=MOST)]
Workers = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
Policies = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=50)], ...], Field(min_length=1, max_length=20)
]
Many = Field(max_length=100_000)
AS_PROFILED = "as profiled"


class PolicyGrid(DescribedOptions):
    """Base of the grids of what-ifs: each combination of the axes' values is simulated under every policy.

    Attributes
    ----------
    exchange
        The exchange whose policies a grid may have, such as "graph"; None for the policies of profiles, which
        are simulated on the profile's network.
    """

    exchange: ClassVar[Exchange | None] = None

    policies: Policies
    """Policies to simulate."""

    @model_validator(mode="after")
    def _once_and_known(self) -> Self:
        for name, values in self:
            twice = repeated(values) if isinstance(values, tuple) else None
            if twice is not None:
                raise ValueError(f"{name}: {twice} is given twice")
        for policy in self.policies:
            make_policy(policy, self.exchange)
        return self

    @property
    def num_cells(self) -> int:
        """Simulations that the grid asks for."""
        return prod(max(len(values), 1) for _, values in self if isinstance(values, tuple))


class Grid(PolicyGrid):
    """Axes of a what-if question; an empty axis keeps what was profiled."""

    workers: Annotated[
        tuple[Workers, ...], Many, For(unset=AS_PROFILED, example="8,16,32 or 1-8", panel=JOB)
    ] = ()
    """Numbers of workers."""

    batch: Annotated[tuple[Positive, ...], Many, For(unset=AS_PROFILED, example="16,32,64", panel=JOB)] = ()
    """Samples per worker and iteration."""

    compute_speedup: Annotated[
        tuple[Positive, ...], Many, For(unset=AS_PROFILED, example="1,2,4", panel=JOB)
    ] = ()
    """Factors by which compute is faster."""

    compression: Annotated[
        tuple[AtLeastOne, ...], Many, For(unset=AS_PROFILED, example="1,2,10", panel=JOB)
    ] = ()
    """Factors by which gradients are compressed."""

    bandwidth_gbps: Annotated[
        tuple[Positive, ...],
        Many,
        For(unset=AS_PROFILED, example="1,5,10 or 1:25:1 (from:to:step)", panel=NETWORK),
    ] = ()
    """Link bandwidths in Gbit/s."""

    latency_s: Annotated[
        tuple[NotNegative, ...], Many, For(unset=AS_PROFILED, example="1e-5,5e-5", panel=NETWORK)
    ] = ()
    """Latencies of one message in seconds."""

    algorithm: Annotated[
        tuple[Algorithm, ...], For(unset=AS_PROFILED, example="ring,tree", panel=NETWORK)
    ] = ()
    """All-reduce algorithms (ring, tree, halving-doubling, two-level)."""

    policies: Annotated[Policies, For()] = ("fifo", "horovod", "ddp", "bytescheduler", "pace")
    """Policies to simulate."""

    baseline: Annotated[str | None, For(unset="ddp if it is simulated, else the first policy")] = None
    """Policy with which the others are compared: a speed-up of 1 is as fast as this one."""

    target_efficiency: Annotated[Annotated[float, Field(gt=0, le=1)] | None, For(unset="not computed")] = None
    """Find the bandwidth at which each policy reaches this scaling efficiency, for example 0.9."""

    workers_per_node: Annotated[Workers | None, For(unset="none", panel=NETWORK)] = None
    """With `algorithm` two-level: number of workers in one node."""

    intra_gbps: Annotated[Positive | None, For(unset="none", panel=NETWORK)] = None
    """With `algorithm` two-level: bandwidth inside a node, in Gbit/s."""

    intra_latency_s: NotNegative = 0.0
    """With `algorithm` two-level: latency of one message inside a node, in seconds."""

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.baseline is not None and self.baseline not in self.policies:
            raise ValueError(
                f'baseline "{self.baseline}" is not simulated: choose one of {", ".join(self.policies)}'
            )
        if (self.workers_per_node is None) != (self.intra_gbps is None):
            names = ("workers_per_node", "intra_gbps")
            given, missing = names if self.intra_gbps is None else names[::-1]
            raise ValueError(f"{given} needs {missing}: give both, or leave {given} out")
        return self

    @property
    def two_level(self) -> TwoLevel | None:
        """The inside of a node, for algorithm two-level."""
        if self.workers_per_node is None or self.intra_gbps is None:
            return None
        return TwoLevel(
            workers_per_node=self.workers_per_node,
            intra_gbps=self.intra_gbps,
            intra_latency_s=self.intra_latency_s,
        )

    @property
    def num_points(self) -> int:
        """Points of the grid; each is simulated under every policy."""
        return self.num_cells // len(self.policies)

    @property
    def baseline_policy(self) -> str:
        """The policy that speed-ups are against."""
        if self.baseline is not None:
            return self.baseline
        return "ddp" if "ddp" in self.policies else self.policies[0]

    def varied(self) -> tuple[str, ...]:
        """Return the axes with more than one value."""
        return tuple(axis for axis in AXES if len(getattr(self, axis)) > 1)

    def scenarios(self) -> Iterator[Scenario]:
        """Yield every point, the bandwidth changing fastest."""
        for point in product(*self._values()):
            yield Scenario(**dict(zip(AXES, point, strict=True)))

    def scenario(self, number: int) -> Scenario:
        """Return one point by its number in the order of ``scenarios``."""
        point = []
        for values in reversed(self._values()):
            number, at = divmod(number, len(values))
            point.append(values[at])
        return Scenario(**dict(zip(AXES, reversed(point), strict=True)))

    def _values(self) -> list[tuple[Any, ...]]:
        unset = {"compute_speedup": 1.0, "compression": 1.0}
        return [getattr(self, axis) or (unset.get(axis),) for axis in AXES]

    def refuse_misfits(self, profile: Profile) -> None:
        """Raise InvalidOptions if the profile cannot answer for some point."""
        if self.batch and measured_batch(profile) is None:
            raise InvalidOptions(
                f'profile "{profile.name}" does not say in its metadata with which batch it was measured: '
                'leave out other values of "batch", or add "batch" to the metadata'
            )
        for algorithm in self.algorithm or (None,):
            for workers in self.workers or (None,):
                scenario = Scenario(
                    algorithm=algorithm,
                    workers=workers,
                    bandwidth_gbps=self.bandwidth_gbps[0] if self.bandwidth_gbps else None,
                    latency_s=self.latency_s[0] if self.latency_s else None,
                )
                networked_at(profile, scenario, self.two_level)
