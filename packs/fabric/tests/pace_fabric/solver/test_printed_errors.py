"""What MLfabric's paper prints, transcribed, beside what the fabric computes: the page of printed errors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pace_fabric.solver.aggregation import aggregate
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.updates import Updates

PAGE = (Path(__file__).parents[5] / "docs/results/papers-errors.md").read_text(encoding="utf-8")


def says(*sentences: str) -> None:
    """Check that the page has these words, whatever its line breaks."""
    words = " ".join(PAGE.split())
    for sentence in sentences:
        assert sentence in words, sentence


def split(
    updates: Updates, order: Sequence[int], capacities: Capacities, relays: Sequence[int], direct: int
) -> tuple[float, float]:
    """Send `direct` updates directly and the others by way of relays, as Algorithm 3 does.

    Returns
    -------
    tuple of float
        When the last update is at the server or at the host that adds it to the last sum, by which the
        printed algorithm compares, and when all are at the server.
    """
    left = capacities.copy()
    server, printed_s = updates.server, 0.0
    for update in order[:direct]:
        end = left.reserve(int(updates.host[update]), server, float(updates.size[update])).end_s
        printed_s = max(printed_s, end)
    at, real_s = direct, printed_s
    for number, relay in enumerate(relays):
        members, ready_s = 0, 0.0
        while at < len(order):
            source, size = int(updates.host[order[at]]), float(updates.size[order[at]])
            end = left.finish(source, relay, size)
            if members and number < len(relays) - 1 and end > real_s:
                break
            left.reserve(source, relay, size)
            members, ready_s, at = members + 1, max(ready_s, end), at + 1
        if members:
            printed_s = max(real_s, ready_s)
            real_s = max(real_s, left.reserve(relay, server, 1.0, ready_s).end_s)
    return printed_s, real_s


def compared(up: Sequence[float], relay_up: Sequence[float]) -> tuple[float, float]:
    """Return the last commit by the printed comparison, and ours, for equal updates and these uplinks."""
    n, num_relays = len(up), len(relay_up)
    updates = Updates(size=np.ones(n), host=np.arange(n), server=n)
    network = Capacities.constant([*up, 1.0, *relay_up], [1.0] * (n + 1) + [*relay_up])
    order = order_updates(updates, network).commits
    relays = range(n + 1, n + 1 + num_relays)
    ours = aggregate(updates, order, network, relays)
    assert ours is not None
    splits = [split(updates, order, network, relays, direct) for direct in range(n + 1)]
    assert min(real_s for _, real_s in splits) == pytest.approx(ours.last_s)
    return min(splits, key=lambda each: each[0])[1], ours.last_s


def test_the_last_sum_takes_time_too() -> None:
    """MLfabric, Algorithm 3: two updates and a slow relay; 30 random batches of six and two relays."""
    slow = split(
        Updates(size=np.ones(2), host=np.arange(2), server=2),
        [0, 1],
        Capacities.constant([1.0, 1.0, 1.0, 0.25], [1.0] * 4),
        [3],
        1,
    )
    assert slow == pytest.approx((1, 5))
    later = 0
    for seed in range(30):
        draw = np.random.default_rng(seed)
        up, relay_up = draw.choice([0.1, 0.25, 0.5, 1.0], 6), draw.choice([0.25, 0.5, 1.0], 2)
        printed_s, ours_s = compared(up.tolist(), relay_up.tolist())
        later += printed_s > ours_s + 1e-9
    says("both updates are there after 2 s", "As printed they are there after 5 s", f"later in {later} of 30")


def test_the_sum_of_the_proof_ends_where_the_delay_ends() -> None:
    """MLfabric, equation 24: tau = 5, epsilon = 1 and l = 4."""
    tau, epsilon, length = 5, 1, 4

    def inner(terms: int) -> int:
        return sum(range(2, terms + 2))

    assert inner(length - tau + epsilon) == 0
    printed = length + tau - epsilon
    assert inner(printed) == printed * (printed + 3) // 2 == 44
    # The sum over all delays from tau - epsilon to tau + epsilon, with the right number of terms.
    total = sum(inner(delay - tau + epsilon) for delay in range(tau - epsilon, tau + epsilon + 1))
    assert total == epsilon * (2 * epsilon + 1) * (2 * epsilon + 5) // 3 == 7
    says("it is 0", "As printed it is 44")
