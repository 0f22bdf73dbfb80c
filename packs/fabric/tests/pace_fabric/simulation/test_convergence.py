"""Learning with the delays of commit logs."""

import numpy as np

from pace_fabric.documents.scenario import FabricScenario, Straggling
from pace_fabric.simulation import simulate_fabric
from tests.pace_fabric.simulation.convergence import (
    LogisticRegression,
    NoisyQuadratic,
    delayed_log,
    replay,
)

MEAN = 15


def error(spread: int) -> float:
    """Return the mean loss along runs whose delays are within `spread` of 15; seeds are the same for each."""
    losses = []
    for seed in range(8):
        problem = NoisyQuadratic(dimension=10, seed=seed)
        log = delayed_log(150, MEAN, spread, seed)
        step = lambda t: 1 / (1 + 3 * np.sqrt(t + MEAN))  # noqa: E731  # the theory's
        losses.append(np.mean(replay(log, problem, step, every=10).losses))
    return float(np.mean(losses))


def test_a_narrower_spread_of_delays_is_no_worse() -> None:
    """Paired seeds: the error with delays in 15 +- eps does not rise as eps falls (within 1 %)."""
    exact, narrow, wide = error(0), error(5), error(15)
    assert exact <= 1.01 * narrow
    assert narrow <= 1.01 * wide


def test_without_delay_a_replay_is_plain_descent() -> None:
    """A log without delays is w - step g, step by step."""
    problem = NoisyQuadratic(dimension=4, noise=0.0)
    model = problem.start()
    for _ in range(20):
        model = model - 0.5 * problem.curvature * model
    learned = replay(delayed_log(20, 0, 0, 0), problem, lambda _: 0.5)
    np.testing.assert_allclose(learned.model, model)


def test_momentum_by_hand() -> None:
    """Two steps with gamma 0.5: the second repeats half of the first."""
    problem = NoisyQuadratic(dimension=1, noise=0.0)
    log = delayed_log(2, 0, 0, 0)
    learned = replay(log, problem, lambda _: 0.1, momentum=0.5)
    h = float(problem.curvature[0])
    first = 2.0 - 0.1 * h * 2.0
    second = first - 0.1 * h * first + 0.5 * (first - 2.0)
    np.testing.assert_allclose(learned.model, [second])


def test_a_real_model_learns_with_simulated_delays() -> None:
    """Logistic regression with the delays of a simulated run ends about where it ends without any."""
    scenario = FabricScenario(
        machines=5, duration_s=12.0, delay_bound=10, straggling=Straggling(percent=20, slowdown=4)
    )
    commits = simulate_fabric(scenario, "mlfabric-a").commits
    problem = LogisticRegression(samples=500, features=8)

    def step(t: int) -> float:
        return float(1 / (1 + np.sqrt(t)))

    delayed = replay(commits, problem, step)
    plain = replay(delayed_log(len(commits), 0, 0, 0), problem, step)
    assert max(commit.delay for commit in commits) >= 4
    assert delayed.losses[-1] < 0.6 * delayed.losses[0]
    assert delayed.losses[-1] <= 1.1 * plain.losses[-1]
    assert problem.accuracy(delayed.model) > 0.75
