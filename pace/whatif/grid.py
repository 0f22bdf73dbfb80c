"""The grid: values along every axis, checked before anything is simulated."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from pace.documents.base import refuse_other
from pace.documents.collective_costs import ALGORITHMS, Algorithm
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.simulation import make_policy
from pace.whatif.scenario import Scenario, TwoLevel, measured_batch, networked_at

DEFAULT_POLICIES = ("fifo", "horovod", "ddp", "bytescheduler", "pace")

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

# An axis that is not here takes numbers from `SMALLEST`.
LEAST = {"workers": 1.0, "latency_s": 0.0, "compression": 1.0}
SMALLEST = 1e-9
MOST_WORKERS = 1_000_000
# No network or machine exceeds it, and below it no cost overflows.
MOST = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Axes of a what-if question; an empty axis keeps what was profiled.

    Attributes
    ----------
    policies
        Names in ``pace.simulation.POLICIES``.
    baseline
        Policy with which the others are compared; None for "ddp", or the first policy if "ddp" is not there.
    two_level
        The inside of a node, for algorithm "two-level".
    """

    bandwidth_gbps: tuple[float, ...] = ()
    workers: tuple[int, ...] = ()
    algorithm: tuple[Algorithm, ...] = ()
    latency_s: tuple[float, ...] = ()
    compute_speedup: tuple[float, ...] = ()
    batch: tuple[float, ...] = ()
    compression: tuple[float, ...] = ()
    policies: tuple[str, ...] = DEFAULT_POLICIES
    baseline: str | None = None
    two_level: TwoLevel | None = None

    def __post_init__(self) -> None:
        for axis in AXES:
            values = getattr(self, axis)
            if not isinstance(values, tuple):
                raise InvalidOptions(f"{axis} is {values!r}: expected a tuple of values")
            for value in values:
                _refuse_wrong(axis, value)
            if len(set(values)) < len(values):
                raise InvalidOptions(f"{axis} names a value twice: {', '.join(map(str, values))}")
        if not self.policies:
            raise InvalidOptions("policies is empty: give at least one policy")
        for policy in self.policies:
            make_policy(policy)
        if len(set(self.policies)) < len(self.policies):
            raise InvalidOptions(f"a policy is named twice: {', '.join(self.policies)}")
        if self.baseline is not None and self.baseline not in self.policies:
            raise InvalidOptions(
                f'baseline "{self.baseline}" is not simulated: choose one of {", ".join(self.policies)}'
            )
        if self.two_level is not None:
            refuse_other(self.two_level, TwoLevel, InvalidOptions)
            inside = self.two_level
            _refuse_outside("workers_per_node", inside.workers_per_node, 1, MOST_WORKERS)
            _refuse_outside("intra_gbps", inside.intra_gbps, SMALLEST, MOST)
            _refuse_outside("intra_latency_s", inside.intra_latency_s, 0, MOST)

    @property
    def num_points(self) -> int:
        """Points of the grid; each is simulated under every policy."""
        return prod(max(len(getattr(self, axis)), 1) for axis in AXES)

    @property
    def num_cells(self) -> int:
        """Simulations that the grid asks for."""
        return self.num_points * len(self.policies)

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


def _refuse_wrong(axis: str, value: object) -> None:
    if axis == "algorithm":
        if value not in ALGORITHMS:
            raise InvalidOptions(f'no algorithm "{value}": choose one of {", ".join(ALGORITHMS)}')
        return
    _refuse_outside(axis, value, LEAST.get(axis, SMALLEST), MOST_WORKERS if axis == "workers" else MOST)


def _refuse_outside(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidOptions(f"{name} is {value}: expected a number from {least:g} to {most:g}")
