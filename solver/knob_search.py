"""Searches for the best setting of a few knobs: Bayesian optimization, a grid, random places, momentum.

A search is a generator: it yields a place in the unit cube and receives what the caller measured there. So
the same search tunes a simulated policy and a running job. The caller converts places to settings.

Bayesian optimization follows ByteScheduler's tuner (Peng et al., SOSP 2019, section 5): a Gaussian process
over the logarithms of sizes, and expected improvement with xi = 0.1.
"""

import math
import warnings
from collections.abc import Callable, Generator, Iterator
from itertools import product
from typing import Literal, NamedTuple, get_args

import numpy as np

from pace.solver.arrays import FloatArray

Search = Literal["bayes", "grid", "random", "momentum"]
SEARCHES: tuple[Search, ...] = get_args(Search)

# The credit with which a search for both begins. ByteScheduler's best ones are 3.5 to 5.8 partitions (Table
# 1).
CREDIT_IN_PARTITIONS = 4
EXPLORATION = 0.1
RANDOM_POINTS = 5
MOMENTUM = 0.9
# The first trials around a given start: all knobs together move by about a factor of two either way.
NEIGHBORHOOD = (0.0, 0.1, -0.1)
# Limits of the noise that the Gaussian process assumes, as a share of the variance of all results.
LEAST_NOISE, MOST_NOISE = 1e-6, 1.0


class Measured(NamedTuple):
    """What a place costs, and the standard deviation over repetitions; 0 if the cost does not vary."""

    cost: float
    deviation: float = 0.0


Places = Generator[FloatArray, Measured, None]


def places(
    search: Search, num_knobs: int, num_trials: int, *, seed: int, first: FloatArray | None = None
) -> Places:
    """Return a search: it yields at most `num_trials` places, the same for the same seed and costs.

    Parameters
    ----------
    search
        The method.
    num_knobs
        Dimensions of the unit cube.
    num_trials
        Most places to try. A grid uses the largest number of steps with which it has no more places.
    seed
        Seed of the random places.
    first : array of shape (num_knobs,)
        Where Bayesian optimization and momentum begin (default: a random place).
    """
    random = np.random.default_rng(seed)
    if search == "bayes":
        return _bayes(num_knobs, num_trials, random, first)
    if search == "momentum":
        return _momentum(num_knobs, num_trials, random, first)
    return {"grid": _grid, "random": _random}[search](num_knobs, num_trials, random)


def run(found: Places, measure: Callable[[FloatArray], Measured]) -> None:
    """Run a search to its end: `measure` returns what each place costs."""
    try:
        place = next(found)
        while True:
            place = found.send(measure(place))
    except StopIteration:
        return


def log_place(value: float, least: float, most: float) -> float:
    """Return the place of a value between limits on a logarithmic scale: 0 for `least`, 1 for `most`."""
    if most <= least:
        return 1.0
    return float(np.clip(np.log(max(value, least) / least) / np.log(most / least), 0, 1))


def log_value(place: float, least: float, most: float) -> float:
    """Return the value at a place; the inverse of ``log_place``."""
    return least * math.pow(most / least, place)


def _bayes(num_knobs: int, num_trials: int, random: np.random.Generator, first: FloatArray | None) -> Places:
    from bayes_opt import BayesianOptimization
    from bayes_opt.acquisition import ExpectedImprovement

    names = [str(number) for number in range(num_knobs)]
    optimizer = BayesianOptimization(
        f=None,
        pbounds=dict.fromkeys(names, (0.0, 1.0)),
        acquisition_function=ExpectedImprovement(xi=EXPLORATION),
        random_state=int(random.integers(2**31)),
        verbose=0,
    )
    scale = None
    known: set[tuple[float, ...]] = set()
    targets: list[float] = []
    deviations: list[float] = []
    for number in range(num_trials):
        if first is not None and number < len(NEIGHBORHOOD):
            place = np.clip(first + NEIGHBORHOOD[number], 0, 1)
        elif first is None and number < RANDOM_POINTS:
            place = random.random(num_knobs)
        else:
            optimizer.set_gp_params(alpha=_noise(targets, deviations))
            with warnings.catch_warnings():
                # On a flat objective the length scale may reach its limit. Any place is then as good.
                warnings.simplefilter("ignore")
                suggested = optimizer.suggest()
            place = np.array([float(suggested[name]) for name in names])
        measured = yield place
        scale = scale or measured.cost or 1.0
        # xi has the unit of the objective. Relative to the first cost, 0.1 means 10 %.
        targets.append(-measured.cost / scale)
        deviations.append(measured.deviation / scale)
        # The optimizer refuses a place twice, or prints a line on stdout: the next number is as good.
        inwards = np.where(place < 0.5, 1.0, 0.0)
        while tuple(place.tolist()) in known:
            place = np.nextafter(place, inwards)
        known.add(tuple(place.tolist()))
        optimizer.register(params=dict(zip(names, place.tolist(), strict=True)), target=targets[-1])


def _noise(targets: list[float], deviations: list[float]) -> float:
    """Return the variance over repetitions as a share of the variance of all results.

    The Gaussian process normalizes results by the latter.
    """
    spread = float(np.var(targets))
    if spread == 0:
        return LEAST_NOISE
    return float(np.clip(np.mean(np.square(deviations)) / spread, LEAST_NOISE, MOST_NOISE))


def _grid(num_knobs: int, num_trials: int, random: np.random.Generator) -> Places:
    del random
    for place in product(*(_steps_of_axis(steps) for steps in _grid_sizes(num_knobs, num_trials))):
        yield np.array(place)


def _grid_sizes(num_knobs: int, num_trials: int) -> list[int]:
    """Return the number of steps of each axis, as equal as possible."""
    sizes = [max(int(num_trials ** (1 / num_knobs) + 1e-9), 1)] * num_knobs
    for axis in range(num_knobs):
        if np.prod(sizes) // sizes[axis] * (sizes[axis] + 1) <= num_trials:
            sizes[axis] += 1
    return sizes


def _steps_of_axis(steps: int) -> FloatArray:
    return np.linspace(0, 1, steps) if steps > 1 else np.array([0.5])


def _random(num_knobs: int, num_trials: int, random: np.random.Generator) -> Places:
    for _ in range(num_trials):
        yield random.random(num_knobs)


def _momentum(
    num_knobs: int, num_trials: int, random: np.random.Generator, first: FloatArray | None
) -> Places:
    """Descend along differences with momentum (Polyak 1964); restart from a random place when stuck."""
    left = num_trials
    while left > 0:
        place = random.random(num_knobs) if first is None else first
        first = None
        speed = np.zeros(num_knobs)
        for step in _step_sizes():
            if left < 1 + num_knobs:
                for _ in range(left):
                    yield random.random(num_knobs)
                return
            here = (yield place).cost
            nudges = np.where(place < 0.5, 0.05, -0.05)
            slope = np.zeros(num_knobs)
            for axis, nudge in enumerate(nudges.tolist()):
                nudged = place.copy()
                nudged[axis] += nudge
                slope[axis] = ((yield nudged).cost - here) / nudge / (here or 1.0)
            left -= 1 + num_knobs
            speed = MOMENTUM * speed - step * slope
            place = np.clip(place + speed, 0, 1)
            if not slope.any():
                break  # a plateau shows no direction


def _step_sizes() -> Iterator[float]:
    for number in range(1000):
        yield 0.3 / (1 + number / 5)
