"""The best knobs of a policy for a profile: Bayesian optimization, and cheaper searches beside it.

The searches are those of ``pace.solver.knob_search``, over logarithms of sizes. A search's cost is the number
of settings that it tried.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pace.documents.options import SimulationOptions
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.kinds.comparison import knobs_given, simulated_kind
from pace.kinds.kind import AnyProblem
from pace.simulation.registry import entry_of, knobs_of
from pace.solver.arrays import FloatArray
from pace.solver.knob_search import (
    SEARCHES,
    Measured,
    Search,
    log_place,
    log_value,
    places,
    run,
)

# Limits between which the authors' tuners search (ByteScheduler: partitions of 2-32 M and credit of 4-64 M
# parameters; Horovod: 0-64 MB and 1-100 ms; DeAR: 1-256 MB), widened where simulated networks are slower.
RANGES: dict[str, tuple[float, float]] = {
    "partition_bytes": (1 << 18, 128 << 20),
    "credit_bytes": (1 << 20, 256 << 20),
    "fusion_bytes": (1 << 18, 256 << 20),
    "cycle_s": (1e-3, 0.1),
    "first_bytes": (1 << 16, 64 << 20),
    "bucket_bytes": (1 << 18, 256 << 20),
    "group_bytes": (1 << 20, 256 << 20),
}
CLOSE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedKnobs:
    """One setting and the iteration time that it gave."""

    knobs: dict[str, int | float]
    iteration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What one search found.

    Attributes
    ----------
    best
        The best setting; the policy's defaults count as tried before the search.
    num_trials
        Settings that were simulated.
    """

    policy: str
    search: Search
    best: TriedKnobs
    default: TriedKnobs
    trials: tuple[TriedKnobs, ...]

    @property
    def num_trials(self) -> int:
        """Settings that were simulated."""
        return len(self.trials)

    def trials_to(self, iteration_s: float) -> int | None:
        """Return after how many settings the search was within 1 % of an iteration time, if ever."""
        for number, trial in enumerate(self.trials, start=1):
            if trial.iteration_s <= iteration_s * CLOSE:
                return number
        return None


def tunable(policy: str, exchange: Exchange | None = None) -> tuple[str, ...]:
    """Return the knobs of a policy that a search may set."""
    return tuple(knob for knob in knobs_of(policy, exchange) if knob in RANGES)


def tune(
    problem: AnyProblem,
    policy: str,
    options: SimulationOptions | None = None,
    *,
    search: Search = "bayes",
    num_trials: int = 40,
    informed: bool = True,
) -> Tuned:
    """Search for the knobs of `policy` that make the window shortest.

    Bayesian optimization and momentum start at the sizes that a formula of the kind gives, if it has one.

    Parameters
    ----------
    options
        How windows are simulated. Knobs of the policy keep their values; the seed is also that of the search.
    num_trials
        Settings to simulate; a grid takes the largest that is no larger.
    informed
        Whether a search begins at those sizes; else it begins as the search does by itself.

    Raises
    ------
    InvalidOptions
        If the policy has no knob to search, or the search does not exist.
    """
    options = SimulationOptions() if options is None else options
    kind, exchange = simulated_kind(problem, options)
    fixed = knobs_given(options, policy, exchange)
    names = tuple(knob for knob in tunable(policy, exchange) if knob not in fixed)
    if search not in SEARCHES:
        raise InvalidOptions(f'no search "{search}": choose one of {", ".join(SEARCHES)}')
    if num_trials < 1:
        raise InvalidOptions(f"{num_trials} trials: expected at least 1")
    if not names:
        raise InvalidOptions(f'policy "{policy}" has no knob to tune: {", ".join(RANGES)} can be tuned')

    def price(settings: dict[str, int | float]) -> float:
        return kind.simulate(problem, policy, fixed | settings, options).iteration_s

    start = kind.first_knobs(problem, options) if informed else None
    trials = _search_settings(
        names, price, search=search, num_trials=num_trials, seed=options.seed, start=start
    )
    preset = entry_of(policy, exchange).defaults
    default = TriedKnobs(knobs={name: preset[name] for name in names}, iteration_s=price({}))
    best = min((default, *trials), key=lambda trial: trial.iteration_s)
    return Tuned(policy=policy, search=search, best=best, default=default, trials=trials)


def _search_settings(
    names: tuple[str, ...],
    price: Callable[[dict[str, int | float]], float],
    *,
    search: Search,
    num_trials: int,
    seed: int,
    start: Mapping[str, float] | None,
) -> tuple[TriedKnobs, ...]:
    trials: list[TriedKnobs] = []

    def try_out(place: FloatArray) -> Measured:
        """Price the setting at `place` in the unit cube."""
        settings = {
            name: _value(name, float(at)) for name, at in zip(names, np.clip(place, 0, 1), strict=True)
        }
        window = price(settings)
        trials.append(TriedKnobs(knobs=settings, iteration_s=window))
        return Measured(window)

    first = None if start is None else np.array([log_place(start[name], *RANGES[name]) for name in names])
    run(places(search, len(names), num_trials, seed=seed, first=first), try_out)
    return tuple(trials)


def _value(name: str, at: float) -> int | float:
    value = log_value(at, *RANGES[name])
    return value if name.endswith("_s") else round(value)
